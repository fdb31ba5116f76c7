// The schedule's kernels for AVX-512: philox_batch and EventScan.

// As in schedule_baseline.hpp. Eight counters to a register.
inline void philox_batch(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1, std::uint32_t c2,
                         std::uint32_t c3, DrawWords& words_out) {
  constexpr int kGroups = kDrawBatch / 8;
  __m512i x0[kGroups], x1[kGroups], x2[kGroups], x3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    x0[g] = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c0 + 8 * g)));
    x1[g] = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c1 + 8 * g)));
    x2[g] = _mm512_set1_epi64(static_cast<long long>(c2));
    x3[g] = _mm512_set1_epi64(static_cast<long long>(c3));
  }
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53ll);
  const __m512i m1 = _mm512_set1_epi64(0xCD9E8D57ll);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m512i key0 = _mm512_set1_epi64(static_cast<long long>(k0));
    const __m512i key1 = _mm512_set1_epi64(static_cast<long long>(k1));
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      const __m512i p0 = _mm512_mul_epu32(x0[g], m0);
      const __m512i p1 = _mm512_mul_epu32(x2[g], m1);
      // 0x96: the exclusive or of three
      x0[g] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), x1[g], key0, 0x96);
      x2[g] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), x3[g], key1, 0x96);
      x1[g] = p1;
      x3[g] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int g = 0; g < kGroups; ++g) {
    const __m512i x[4] = {x0[g], x1[g], x2[g], x3[g]};
    for (int j = 0; j < 4; ++j) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words_out[j] + 8 * g), _mm512_cvtepi64_epi32(x[j]));
    }
  }
}

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
