// The schedule's kernels for AVX2: philox_batch and EventScan.

// As in schedule_baseline.hpp. Four counters to a register, one in each 64-bit lane; what stands above 32 bits in a
// lane is never read.
inline void philox_batch(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1, std::uint32_t c2,
                         std::uint32_t c3, DrawWords& words_out) {
  constexpr int kGroups = kDrawBatch / 4;
  __m256i x0[kGroups], x1[kGroups], x2[kGroups], x3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    x0[g] = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c0 + 4 * g)));
    x1[g] = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c1 + 4 * g)));
    x2[g] = _mm256_set1_epi64x(static_cast<long long>(c2));
    x3[g] = _mm256_set1_epi64x(static_cast<long long>(c3));
  }
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53ll);
  const __m256i m1 = _mm256_set1_epi64x(0xCD9E8D57ll);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(static_cast<long long>(k0));
    const __m256i key1 = _mm256_set1_epi64x(static_cast<long long>(k1));
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const __m256i p0 = _mm256_mul_epu32(x0[g], m0);
      const __m256i p1 = _mm256_mul_epu32(x2[g], m1);
      x0[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x1[g]), key0);
      x2[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x3[g]), key1);
      x1[g] = p1;
      x3[g] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  for (int g = 0; g < kGroups; ++g) {
    const __m256i x[4] = {x0[g], x1[g], x2[g], x3[g]};
    for (int j = 0; j < 4; ++j) {
      const __m128i low = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(x[j], even));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(words_out[j] + 4 * g), low);
    }
  }
}

using EventScan = EventScanLoops;
