// A set of integers in a window that moves upwards: one bit each, number i in bit i modulo the window's size.
//
// insert is O(1); pop_first scans words from the last result on, so a pass over the window costs window / 64 words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fedbuff {

class WindowBitset {
 public:
  // Removes all. From now on the numbers are at least `first`, and differ by less than `window`, a power of two.
  void reset(std::int64_t window, std::int64_t first) {
    words_.assign(static_cast<std::size_t>((window + 63) / 64), 0);
    lowest_ = first;
    size_ = 0;
  }

  std::int64_t size() const { return size_; }

  void insert(std::int64_t number) {
    words_[word(number)] |= bit(number);
    lowest_ = std::min(lowest_, number);
    ++size_;
  }

  // Removes and returns the smallest number. The window begins at `first` now. The set must not be empty.
  std::int64_t pop_first(std::int64_t first) {
    lowest_ = std::max(lowest_, first);
    std::uint64_t above = words_[word(lowest_)] >> (lowest_ & 63);
    while (above == 0) {
      lowest_ = (lowest_ | 63) + 1;
      above = words_[word(lowest_)];
    }
    lowest_ += count_trailing_zeros(above);
    words_[word(lowest_)] &= ~bit(lowest_);
    --size_;
    return lowest_++;
  }

 private:
  static std::uint64_t bit(std::int64_t number) { return std::uint64_t{1} << (number & 63); }
  static int count_trailing_zeros(std::uint64_t bits) { return __builtin_ctzll(bits); }
  std::size_t word(std::int64_t number) const { return static_cast<std::size_t>(number >> 6) & (words_.size() - 1); }

  std::vector<std::uint64_t> words_;  // their count is a power of two
  std::int64_t lowest_ = 0;           // no number below it is in the set
  std::int64_t size_ = 0;
};

}  // namespace fedbuff
