// What delays are drawn from, and one draw: Philox of (seed, client, task, component).
#pragma once

#include <cmath>
#include <cstdint>

#include "compiler/always_inline.hpp"
#include "numbers/philox.hpp"
#include "numbers/portable_math.hpp"

namespace fedbuff {

enum class DistributionKind : std::int64_t {
  Constant,
  Uniform,
  Exponential,
  HalfNormal,
  TruncatedNormal,
  LogNormal,
  Pareto,
  Weibull,
  Empirical,
};

struct Distribution {
  DistributionKind kind = DistributionKind::Constant;
  double p[4] = {0.0, 0.0, 0.0, 0.0};
  const double* samples = nullptr;  // Empirical: sorted
  std::uint64_t n_samples = 0;
};

inline constexpr std::uint32_t kWait = 0;
inline constexpr std::uint32_t kDownload = 1;
inline constexpr std::uint32_t kCompute = 2;
inline constexpr std::uint32_t kUpload = 3;
inline constexpr std::uint32_t kSpeed = 4;
inline constexpr std::uint32_t kOpenStart = 5;
inline constexpr std::uint32_t kServer = 6;
inline constexpr std::uint32_t kTruncatedNormalAttempts = 4096;

struct DelayModel {
  std::uint64_t seed = 0;
  Distribution component[4];
  const double* speed = nullptr;  // per client, or null
};

namespace detail {

FB_ALWAYS_INLINE double unit_exponential(std::uint32_t w0, std::uint32_t w1) {
  return 0.0 - portable::detail::log_positive(1.0 - unit_double_signed(w0, w1));
}

FB_ALWAYS_INLINE double standard_normal(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3) {
  double sine;
  double cosine;
  portable::sincos2pi(unit_double_signed(w2, w3), sine, cosine);
  return std::sqrt(-2.0 * portable::detail::log_positive(1.0 - unit_double_signed(w0, w1))) * cosine;
}

// A draw of every kind but TruncatedNormal from the words of one block.
template <DistributionKind kKind>
FB_ALWAYS_INLINE double from_words(const Distribution& d, std::uint32_t w0, std::uint32_t w1, std::uint32_t w2,
                                   std::uint32_t w3) {
  if constexpr (kKind == DistributionKind::Uniform) {
    return d.p[0] + (d.p[1] - d.p[0]) * unit_double_signed(w0, w1);
  } else if constexpr (kKind == DistributionKind::Exponential) {
    return unit_exponential(w0, w1) * d.p[0];
  } else if constexpr (kKind == DistributionKind::HalfNormal) {
    return d.p[1] + std::fabs(standard_normal(w0, w1, w2, w3)) * d.p[0];
  } else if constexpr (kKind == DistributionKind::LogNormal) {
    return portable::exp(d.p[0] + d.p[1] * standard_normal(w0, w1, w2, w3));
  } else if constexpr (kKind == DistributionKind::Pareto) {
    return d.p[1] * portable::pow(1.0 - unit_double_signed(w0, w1), -1.0 / d.p[0]);
  } else if constexpr (kKind == DistributionKind::Weibull) {
    const double e = unit_exponential(w0, w1);
    const double power = portable::pow(e > 0.0 ? e : 1.0, 1.0 / d.p[0]);
    return d.p[1] * (e > 0.0 ? power : 0.0);
  } else {
    static_assert(kKind == DistributionKind::Empirical);
    return d.samples[multiply_high(std::uint64_t{w0} << 32 | w1, d.n_samples)];
  }
}

}  // namespace detail

inline double draw(const Distribution& d, std::uint64_t seed, std::uint32_t client, std::uint32_t task,
                   std::uint32_t component) {
  using Kind = DistributionKind;
  if (d.kind == Kind::Constant) {
    return d.p[0];
  }
  if (d.kind == Kind::TruncatedNormal) {
    // The first block that falls inside; after so many misses the nearest bound.
    for (std::uint32_t block = 0; block < kTruncatedNormalAttempts; ++block) {
      const PhiloxBlock w = philox4x32(seed, client, task, component, stream_word(Stream::Delays, block));
      const double x = d.p[0] + d.p[1] * detail::standard_normal(w.word[0], w.word[1], w.word[2], w.word[3]);
      if (x >= d.p[2] && x <= d.p[3]) {
        return x;
      }
    }
    return d.p[0] < d.p[2] ? d.p[2] : d.p[3];
  }
  const PhiloxBlock block = philox4x32(seed, client, task, component, stream_word(Stream::Delays, 0));
  const std::uint32_t* w = block.word;
  switch (d.kind) {
    case Kind::Uniform: return detail::from_words<Kind::Uniform>(d, w[0], w[1], w[2], w[3]);
    case Kind::Exponential: return detail::from_words<Kind::Exponential>(d, w[0], w[1], w[2], w[3]);
    case Kind::HalfNormal: return detail::from_words<Kind::HalfNormal>(d, w[0], w[1], w[2], w[3]);
    case Kind::LogNormal: return detail::from_words<Kind::LogNormal>(d, w[0], w[1], w[2], w[3]);
    case Kind::Pareto: return detail::from_words<Kind::Pareto>(d, w[0], w[1], w[2], w[3]);
    case Kind::Weibull: return detail::from_words<Kind::Weibull>(d, w[0], w[1], w[2], w[3]);
    default: return detail::from_words<Kind::Empirical>(d, w[0], w[1], w[2], w[3]);
  }
}

}  // namespace fedbuff
