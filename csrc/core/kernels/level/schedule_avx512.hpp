// The schedule's parts for AVX-512: Words64 and EventScan.

// As for AVX2, with eight counters.
struct Words64 {
  static constexpr int kLanes = 8;
  __m512i v;

  static Words64 load(const std::uint32_t* p) {
    return {_mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Words64 set(std::uint32_t x) { return {_mm512_set1_epi64(static_cast<long long>(x))}; }
  void store(std::uint32_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(v)); }
  Words64 times(Words64 factor) const { return {_mm512_mul_epu32(v, factor.v)}; }
  Words64 high_xor(Words64 a, Words64 b) const {
    return {_mm512_ternarylogic_epi64(_mm512_srli_epi64(v, 32), a.v, b.v, 0x96)};  // 0x96: the exclusive or of three
  }
};

struct EventScan {
  static bool rank_times(double* time, std::size_t n, std::uint32_t* rank_out) {
    __m512d all[kMostRanked / 8];
    for (std::size_t v = 0; v < kMostRanked / 8; ++v) {
      const std::size_t left = n > 8 * v ? n - 8 * v : 0;
      const auto here = static_cast<__mmask8>(left >= 8 ? 0xFF : (1u << left) - 1u);
      all[v] = _mm512_mask_loadu_pd(_mm512_set1_pd(__builtin_huge_val()), here, time + 8 * v);
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

  static std::size_t pick_early(const double* time, std::size_t n, double bound, std::uint32_t* slot_out) {
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

  static constexpr std::int64_t kMostListedSlots = 640;
};
