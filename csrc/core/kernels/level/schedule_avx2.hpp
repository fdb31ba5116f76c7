// The schedule's parts for AVX2: Words64 and EventScan.

// Words of four counters, one in the low half of each 64-bit lane; what stands in the high half is never read.
struct Words64 {
  static constexpr int kLanes = 4;
  __m256i v;

  static Words64 load(const std::uint32_t* p) {
    return {_mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Words64 set(std::uint32_t x) { return {_mm256_set1_epi64x(static_cast<long long>(x))}; }
  void store(std::uint32_t* p) const {
    const __m256i low = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(low));
  }
  // Products of 64 bits.
  Words64 times(Words64 factor) const { return {_mm256_mul_epu32(v, factor.v)}; }
  // (high half) ^ a ^ b.
  Words64 high_xor(Words64 a, Words64 b) const {
    return {_mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(v, 32), a.v), b.v)};
  }
};

using EventScan = EventScanLoops;
