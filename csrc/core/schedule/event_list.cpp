#include "schedule/event_list.hpp"

#if defined(__x86_64__) && !defined(__clang__)
// GCC 12 warns of its own undefined operands in the AVX-512 intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fedbuff {

namespace {

FB_ALWAYS_INLINE std::size_t pick(const double* time, std::size_t n, double bound, std::uint32_t* slot_out) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    slot_out[found] = static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(time[i] < bound);
  }
  return found;
}

std::size_t pick_plain(const double* time, std::size_t n, double bound, std::uint32_t* slot_out) {
  return pick(time, n, bound, slot_out);
}

#if defined(__x86_64__)
FB_WIDER std::size_t pick_wider(const double* time, std::size_t n, double bound, std::uint32_t* slot_out) {
  const __m512d limit = _mm512_set1_pd(bound);
  __m256i slots = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; i += 8) {
    const __mmask8 early = _mm512_cmp_pd_mask(_mm512_loadu_pd(time + i), limit, _CMP_LT_OQ);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(slot_out + found), _mm256_maskz_compress_epi32(early, slots));
    found += static_cast<std::size_t>(__builtin_popcount(early));
    slots = _mm256_add_epi32(slots, _mm256_set1_epi32(8));
  }
  return found;
}
#endif

}  // namespace

PickEarly pick_early(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::Avx512) {
    return &pick_wider;
  }
#endif
  (void)level;
  return &pick_plain;
}

}  // namespace fedbuff
