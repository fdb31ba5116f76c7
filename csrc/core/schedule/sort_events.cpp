#include "schedule/sort_events.hpp"

#include <limits>

#if defined(__x86_64__) && !defined(__clang__)
// GCC 12 warns of its own undefined operands in the AVX-512 intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fedbuff {

namespace {

// Whole groups of eight, the last one filled up with times that are less than none.
FB_ALWAYS_INLINE bool rank_all(double* time, std::size_t n, std::uint32_t* rank_out) {
  const std::size_t padded = (n + 7) / 8 * 8;
  for (std::size_t i = n; i < padded; ++i) {
    time[i] = std::numeric_limits<double>::infinity();
  }
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t less = 0;
    for (std::size_t j = 0; j < padded; ++j) {
      less += static_cast<std::uint64_t>(time[j] < time[i]);
    }
    rank_out[i] = static_cast<std::uint32_t>(less);
    seen |= std::uint32_t{1} << less;
  }
  return static_cast<std::size_t>(__builtin_popcount(seen)) == n;
}

bool rank_plain(double* time, std::size_t n, std::uint32_t* rank_out) { return rank_all(time, n, rank_out); }

#if defined(__x86_64__)
FB_WIDE bool rank_wide(double* time, std::size_t n, std::uint32_t* rank_out) { return rank_all(time, n, rank_out); }

FB_WIDER bool rank_wider(double* time, std::size_t n, std::uint32_t* rank_out) {
  __m512d all[kMostRanked / 8];
  for (std::size_t v = 0; v < kMostRanked / 8; ++v) {
    const std::size_t left = n > 8 * v ? n - 8 * v : 0;
    const auto here = static_cast<__mmask8>(left >= 8 ? 0xFF : (1u << left) - 1u);
    all[v] = _mm512_mask_loadu_pd(_mm512_set1_pd(std::numeric_limits<double>::infinity()), here, time + 8 * v);
  }
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const __m512d one = _mm512_set1_pd(time[i]);
    std::uint32_t less = 0;
    for (std::size_t v = 0; v < kMostRanked / 8; ++v) {
      less |= static_cast<std::uint32_t>(_mm512_cmp_pd_mask(all[v], one, _CMP_LT_OQ)) << 8 * v;
    }
    rank_out[i] = static_cast<std::uint32_t>(__builtin_popcount(less));
    seen |= 1u << rank_out[i];
  }
  return static_cast<std::size_t>(__builtin_popcount(seen)) == n;
}
#endif

}  // namespace

RankTimes rank_times(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::Avx512) {
    return &rank_wider;
  }
  if (level == SimdLevel::Avx2) {
    return &rank_wide;
  }
#endif
  (void)level;
  return &rank_plain;
}

}  // namespace fedbuff
