// exp, tanh and erf over a Vec, by the polynomials of Cephes (Moshier): exp within 2 ulp, tanh within 4 ulp (the
// conformance suite measures them), erf within 4 ulp; log1p by its series. exp saturates below and above its clamps
// instead of leaving the normal numbers; NaN stays NaN.

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

template <class T>
Vec<T> sigmoid(Vec<T> x) {
  using V = Vec<T>;
  const V one = V::set(T(1)), e = exp(V::zero() - abs(x));
  return if_less(x, V::zero(), e, one) / (one + e);
}

// Highest power first.
template <class T, int N>
inline __attribute__((always_inline)) Vec<T> polynomial(Vec<T> x, const double (&coefficient)[N]) {
  Vec<T> sum = Vec<T>::set(static_cast<T>(coefficient[0]));
#pragma GCC unroll 10
  for (int i = 1; i < N; ++i) {
    sum = madd(sum, x, Vec<T>::set(static_cast<T>(coefficient[i])));
  }
  return sum;
}

template <class T>
Vec<T> erf(Vec<T> x) {
  using V = Vec<T>;
  constexpr double kNearTop[] = {9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
                                 7.00332514112805075473e3, 5.55923013010394962768e4};
  constexpr double kNearBottom[] = {1.0,
                                    3.35617141647503099647e1,
                                    5.21357949780152679795e2,
                                    4.59432382970980127987e3,
                                    2.26290000613890934246e4,
                                    4.92673942608635921086e4};
  constexpr double kFarTop[] = {2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
                                4.86371970985681366614e1,   1.96520832956077098242e2,  5.26445194995477358631e2,
                                9.34528527171957607540e2,   1.02755188689515710272e3,  5.57535335369399327526e2};
  constexpr double kFarBottom[] = {1.0,
                                   1.32281951154744992508e1,
                                   8.67072140885989742329e1,
                                   3.54937778887819891062e2,
                                   9.75708501743205489753e2,
                                   1.82390916687909736289e3,
                                   2.24633760818710981792e3,
                                   1.65666309194161350182e3,
                                   5.57535340817727675546e2};
  const V square = x * x;
  const V near = x * (polynomial(square, kNearTop) / polynomial(square, kNearBottom));
  const V size = min(V::set(T(6.5)), abs(x));  // past it erf is 1 to the last bit
  const V rest = exp(V::zero() - size * size) * (polynomial(size, kFarTop) / polynomial(size, kFarBottom));
  const V far = V::set(T(1)) - rest;
  return if_less(abs(x), V::set(T(1)), near, if_less(x, V::zero(), V::zero() - far, far));
}
