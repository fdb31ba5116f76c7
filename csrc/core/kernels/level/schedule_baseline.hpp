// The schedule's kernels for every CPU: philox_batch and EventScan.

// The words of the counters (c0[i], c1[i], c2, c3), i < kDrawBatch.
FB_ALWAYS_INLINE void philox_batch(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1,
                                   std::uint32_t c2, std::uint32_t c3, DrawWords& words_out) {
  for (int i = 0; i < kDrawBatch; ++i) {
    const PhiloxBlock block = philox4x32(seed, c0[i], c1[i], c2, c3);
    for (int j = 0; j < 4; ++j) {
      words_out[j][i] = block.word[j];
    }
  }
}

using EventScan = EventScanLoops;
