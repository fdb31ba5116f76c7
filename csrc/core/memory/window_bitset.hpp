// A set of whole numbers that lie in a window which moves upwards: a bit for each, number i in bit i modulo the window.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fedbuff {

class NumberSet {
 public:
  // Empty, for numbers from `first` on that differ by less than `window`, a power of two.
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

  // Takes out the smallest; the window begins at `first` by now. There must be one.
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

  std::vector<std::uint64_t> words_;  // as many as a power of two
  std::int64_t lowest_ = 0;           // no number below it is in the set
  std::int64_t size_ = 0;
};

}  // namespace fedbuff
