// Scans over the times of events, as loops: for the levels that have no better instructions for them.

struct EventScanLoops {
  static bool rank_times(double* time, std::size_t n, std::uint32_t* rank_out) {
    // Whole groups of eight, the last one filled up with times that are less than none.
    const std::size_t padded = (n + 7) / 8 * 8;
    for (std::size_t i = n; i < padded; ++i) {
      time[i] = __builtin_huge_val();
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

  static std::size_t pick_early(const double* time, std::size_t n, double bound, std::uint32_t* slot_out) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < n; ++i) {
      slot_out[found] = static_cast<std::uint32_t>(i);
      found += static_cast<std::size_t>(time[i] < bound);
    }
    return found;
  }

  static constexpr std::int64_t kMostListedSlots = 192;
};
