// exp and tanh over a Vec, by the polynomials of Cephes (Moshier): exp within 2 ulp, tanh within 4 ulp (the conformance
// suite measures them); log1p by its series. exp saturates below and above its clamps instead of leaving the normal
// numbers; NaN stays NaN.

inline Vec<float> exp(Vec<float> x) {
  using V = Vec<float>;
  x = min(V::set(88.0f), max(V::set(-87.0f), x));
  const V n = round(x * V::set(1.44269504088896341f));
  const V r = madd(n, V::set(2.12194440e-4f), madd(n, V::set(-0.693359375f), x));
  V p = V::set(1.9875691500e-4f);
  p = madd(p, r, V::set(1.3981999507e-3f));
  p = madd(p, r, V::set(8.3334519073e-3f));
  p = madd(p, r, V::set(4.1665795894e-2f));
  p = madd(p, r, V::set(1.6666665459e-1f));
  p = madd(p, r, V::set(5.0000001201e-1f));
  return scale_by_power(madd(p, r * r, r) + V::set(1.0f), n);
}

inline Vec<double> exp(Vec<double> x) {
  using V = Vec<double>;
  x = min(V::set(709.0), max(V::set(-708.0), x));
  const V n = round(x * V::set(1.4426950408889634074));
  const V r = madd(n, V::set(-1.42860682030941723212e-6), madd(n, V::set(-6.93145751953125e-1), x));
  const V rr = r * r;
  V p = V::set(1.26177193074810590878e-4);
  p = madd(p, rr, V::set(3.02994407707441961300e-2));
  p = madd(p, rr, V::set(9.99999999999999999910e-1)) * r;
  V q = V::set(3.00198505138664455042e-6);
  q = madd(q, rr, V::set(2.52448340349684104192e-3));
  q = madd(q, rr, V::set(2.27265548208155028766e-1));
  q = madd(q, rr, V::set(2.00000000000000000005e0));
  return scale_by_power(V::set(1.0) + V::set(2.0) * (p / (q - p)), n);
}

// log(1 + x) for 0 <= x <= 1: twice the inverse tangent of t = x / (2 + x), hyperbolic, whose series in t^2 <= 1/9 ends
// where its terms are below a last bit. Relative accuracy for small x too.
inline Vec<double> log1p_of_unit(Vec<double> x) {
  using V = Vec<double>;
  constexpr int kTerms = 17;
  const V t = x / (x + V::set(2.0));
  const V tt = t * t;
  V p = V::set(1.0 / (2 * kTerms - 1));
  for (int k = kTerms - 1; k >= 1; --k) {
    p = madd(p, tt, V::set(1.0 / (2 * k - 1)));
  }
  return (t + t) * p;
}

// (1 + a) (1 + b) - 1, with relative accuracy for small a, b >= 0 too: the logarithm of many factors is taken once.
inline Vec<double> join_factors(Vec<double> a, Vec<double> b) { return madd(a, b, a + b); }
inline double join_factors(double a, double b) { return madd(a, b, a + b); }

inline Vec<float> tanh_near_zero(Vec<float> x) {
  using V = Vec<float>;
  const V z = x * x;
  V p = V::set(-5.70498872745e-3f);
  p = madd(p, z, V::set(2.06390887954e-2f));
  p = madd(p, z, V::set(-5.37397155531e-2f));
  p = madd(p, z, V::set(1.33314422036e-1f));
  p = madd(p, z, V::set(-3.33332819422e-1f));
  return madd(p * z, x, x);
}

inline Vec<double> tanh_near_zero(Vec<double> x) {
  using V = Vec<double>;
  const V z = x * x;
  V p = V::set(-9.64399179425052238628e-1);
  p = madd(p, z, V::set(-9.92877231001918586564e1));
  p = madd(p, z, V::set(-1.61468768441708447952e3));
  V q = z + V::set(1.12811678491632931402e2);
  q = madd(q, z, V::set(2.23548839060100448583e3));
  q = madd(q, z, V::set(4.84406305325125486048e3));
  return madd(z * (p / q), x, x);
}

template <class T>
Vec<T> tanh(Vec<T> x) {
  using V = Vec<T>;
  const V size = abs(x);
  // Past 20 tanh is 1 to the last bit, and exp stays far from its clamp.
  const V e = exp(min(V::set(T(20)), size) * V::set(T(2)));
  const V far = V::set(T(1)) - V::set(T(2)) / (e + V::set(T(1)));
  const V signed_far = if_less(x, V::zero(), V::zero() - far, far);
  return if_less(size, V::set(T(0.625)), tanh_near_zero(x), signed_far);
}
