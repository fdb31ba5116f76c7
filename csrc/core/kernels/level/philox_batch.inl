// philox_batch of schedule_baseline.hpp, for the levels whose schedule part gives it Words64.

inline void philox_batch(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1, std::uint32_t c2,
                         std::uint32_t c3, DrawWords& words_out) {
  constexpr int kGroups = kDrawBatch / Words64::kLanes;
  Words64 x0[kGroups], x1[kGroups], x2[kGroups], x3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    x0[g] = Words64::load(c0 + Words64::kLanes * g);
    x1[g] = Words64::load(c1 + Words64::kLanes * g);
    x2[g] = Words64::set(c2);
    x3[g] = Words64::set(c3);
  }
  const Words64 m0 = Words64::set(0xD2511F53u);
  const Words64 m1 = Words64::set(0xCD9E8D57u);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words64 key0 = Words64::set(k0);
    const Words64 key1 = Words64::set(k1);
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const Words64 p0 = x0[g].times(m0);
      const Words64 p1 = x2[g].times(m1);
      x0[g] = p1.high_xor(x1[g], key0);
      x2[g] = p0.high_xor(x3[g], key1);
      x1[g] = p1;
      x3[g] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int g = 0; g < kGroups; ++g) {
    const Words64 x[4] = {x0[g], x1[g], x2[g], x3[g]};
    for (int j = 0; j < 4; ++j) {
      x[j].store(words_out[j] + Words64::kLanes * g);
    }
  }
}
