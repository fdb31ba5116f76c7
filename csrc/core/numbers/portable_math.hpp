// log, exp, pow and sincos made of + - * / and bit operations only.
//
// libm's variants differ in the last bit between machines and versions; a delay that differs in its last bit can change
// the order of arrivals. These give the same bits wherever IEEE double arithmetic is not contracted
// (-ffp-contract=off), and fedbuff/backends/python/portable_math.py computes the same expressions in the same order.
//
// The polynomials are fdlibm's. Largest errors seen: log, exp and sincos below 1 ulp, pow below 1 ulp.
#pragma once

#include <cstdint>
#include <cstring>

namespace fedbuff::portable {

namespace detail {

inline std::uint64_t bits_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline double double_of(std::uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr double kInfinity = __builtin_huge_val();
inline constexpr double kNan = __builtin_nan("");
inline constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 bits: k * kLn2High is exact for every exponent k
inline constexpr double kLn2Low = 1.90821492927058770002e-10;
inline constexpr std::uint64_t kExponentOffset = 0x3FF0000000000000u - 0x3FE6A09E00000000u;  // 1 / sqrt(1/2), rounded

// x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for normal x > 0.
struct Reduced {
  double k;
  double f;
};

inline Reduced reduce(double x) {
  const std::uint64_t shifted = bits_of(x) + kExponentOffset;
  const double k = double_of(shifted >> 52 | 0x4330000000000000u) - 4503599627371519.0;  // 2^52 + 1023
  const double m = double_of((shifted & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E00000000u);
  return {k, m - 1.0};
}

// log(x) for normal x > 0, without a branch, so that loops over it vectorise.
inline double log_positive(double x) {
  const Reduced r = reduce(x);
  const double s = r.f / (2.0 + r.f);
  const double z = s * s;
  const double w = z * z;
  const double t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double t2 =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * r.f * r.f;
  return r.k * kLn2High - ((half_square - (s * (half_square + (t1 + t2)) + r.k * kLn2Low)) - r.f);
}

// exp(x + tail) for |tail| far below |x|; x is clamped to where the result is 0 or infinite.
inline double exp_sum(double x, double tail) {
  x = x > 710.0 ? 710.0 : x;
  x = x < -746.0 ? -746.0 : x;
  const double shifted = x * 1.44269504088896338700e+00 + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
  const double k = shifted - 6755399441055744.0;
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low - tail;
  const double r = high - low;
  const double t = r * r;
  const double c =
      r -
      t * (1.66666666666666019037e-01 +
           t * (-2.77777777770155933842e-03 +
                t * (6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  const double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
  // 2^k in two factors, so that a subnormal or infinite result is rounded once.
  const std::uint64_t biased = ((bits_of(shifted) & 0xFFFFu) + 2048u) & 0xFFFFu;  // k + 2048, positive
  const std::uint64_t half = biased >> 1;
  return y * double_of((half - 1u) << 52) * double_of((biased - half - 1u) << 52);
}

struct TwoDoubles {
  double high;
  double low;
};

// Dekker's exact product.
inline TwoDoubles exact_product(double a, double b) {
  const double pa = a * 134217729.0;
  const double pb = b * 134217729.0;
  const double a1 = pa - (pa - a);
  const double b1 = pb - (pb - b);
  const double a2 = a - a1;
  const double b2 = b - b1;
  const double p = a * b;
  return {p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2};
}

// log(x) to about 2^-66 relative, for normal x > 0.
inline TwoDoubles log_two_doubles(double x) {
  const Reduced r = reduce(x);
  // s = f / (2 + f)
  const double d1 = 2.0 + r.f;
  const double d2 = r.f - (d1 - 2.0);
  const double s1 = r.f / d1;
  const TwoDoubles back = exact_product(s1, d1);
  const double s2 = (((r.f - back.high) - back.low) - s1 * d2) / d1;
  // z = s^2, cube = s z / 3
  TwoDoubles z = exact_product(s1, s1);
  z.low += 2.0 * s1 * s2;
  TwoDoubles cube = exact_product(s1, z.high);
  cube.low += s1 * z.low + s2 * z.high;
  const TwoDoubles third = exact_product(cube.high, 0.33333333333333331483);
  const double third_low = third.low + (cube.high * 1.8503717077085943e-17 + cube.low * 0.33333333333333331483);
  // The series atanh(s) = s + s^3/3 + s^5/5 + ...; |s| <= 0.1716, so s^23 is the last that matters.
  const double y = z.high;
  const double tail =
      y * y * s1 *
      (1.0 / 5 +
       y * (1.0 / 7 +
            y * (1.0 / 9 +
                 y * (1.0 / 11 +
                      y * (1.0 / 13 +
                           y * (1.0 / 15 + y * (1.0 / 17 + y * (1.0 / 19 + y * (1.0 / 21 + y * (1.0 / 23))))))))));
  // k ln2 + 2 (s + s^3/3 + tail), largest first; each sum keeps its rounding error.
  const double a = r.k * kLn2High;
  const double b = 2.0 * s1;
  const double sum1 = a + b;
  const double from_b = sum1 - a;
  const double error1 = (a - (sum1 - from_b)) + (b - from_b);
  const double c = 2.0 * third.high;
  const double sum2 = sum1 + c;
  const double from_c = sum2 - sum1;
  const double error2 = (sum1 - (sum2 - from_c)) + (c - from_c);
  const double low = (error1 + error2) + (2.0 * (s2 + third_low + tail) + r.k * kLn2Low);
  const double high = sum2 + low;
  return {high, low - (high - sum2)};
}

}  // namespace detail

inline double log(double x) {
  if (x > 0.0 && x < 2.2250738585072014e-308) {
    return detail::log_positive(x * 18014398509481984.0) - 54.0 * 6.93147180559945286227e-01;
  }
  if (x > 0.0 && x < detail::kInfinity) {
    return detail::log_positive(x);
  }
  return x == 0.0 ? -detail::kInfinity : (x > 0.0 ? x : detail::kNan);
}

inline double exp(double x) { return detail::exp_sum(x, 0.0); }

// x^y for normal x > 0 and finite y.
inline double pow(double x, double y) {
  const detail::TwoDoubles l = detail::log_two_doubles(x);
  double bounded = y;
  bounded = bounded > 1e30 ? 1e30 : bounded;
  bounded = bounded < -1e30 ? -1e30 : bounded;
  const detail::TwoDoubles p = detail::exact_product(bounded, l.high);
  return detail::exp_sum(p.high, p.low + bounded * l.low);
}

// sin and cos of 2 pi u for u in [0, 1).
inline void sincos2pi(double u, double& sine, double& cosine) {
  // u = q/4 + v exactly, |v| <= 1/8
  const double shifted = 4.0 * u + 6755399441055744.0;
  const std::uint64_t q = detail::bits_of(shifted) & 3u;
  const double v = u - (shifted - 6755399441055744.0) * 0.25;
  // x + y = 2 pi v, by products that are exact
  const double v1 = detail::double_of(detail::bits_of(v) & 0xFFFFFFFFF8000000u);
  const double v2 = v - v1;
  const double a = v1 * 6.28318524360656738281e+00;
  const double b = v1 * 6.35730190941127842192e-08 + v2 * 6.28318530717958623200e+00;
  const double x = a + b;
  const double y = (a - x) + b;
  const double z = x * x;
  const double w = z * z;
  const double rs = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06) +
                    z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
  const double cube = z * x;
  const double s = x - ((z * (0.5 * y - cube * rs) - y) - cube * -1.66666666666666324348e-01);
  const double rc =
      z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) +
      w * w * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
  const double half = 0.5 * z;
  const double one = 1.0 - half;
  const double c = one + (((1.0 - one) - half) + (z * rc - x * y));
  const double sin_size = (q & 1u) != 0 ? c : s;
  const double cos_size = (q & 1u) != 0 ? s : c;
  sine = (q & 2u) != 0 ? -sin_size : sin_size;
  cosine = ((q + 1u) & 2u) != 0 ? -cos_size : cos_size;
}

}  // namespace fedbuff::portable
