// The schedule's parts for AArch64: Words64 and EventScan.

// Words of two counters, one in the low half of each 64-bit lane; what stands in the high half is never read.
struct Words64 {
  static constexpr int kLanes = 2;
  uint64x2_t v;

  static Words64 load(const std::uint32_t* p) { return {vmovl_u32(vld1_u32(p))}; }
  static Words64 set(std::uint32_t x) { return {vdupq_n_u64(x)}; }
  void store(std::uint32_t* p) const { vst1_u32(p, vmovn_u64(v)); }
  // Products of 64 bits.
  Words64 times(Words64 factor) const { return {vmull_u32(vmovn_u64(v), vmovn_u64(factor.v))}; }
  // (high half) ^ a ^ b.
  Words64 high_xor(Words64 a, Words64 b) const { return {veorq_u64(veorq_u64(vshrq_n_u64(v, 32), a.v), b.v)}; }
};

using EventScan = EventScanLoops;
