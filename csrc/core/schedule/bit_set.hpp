// BitSet: which of n numbers are in a set, and the first of them from a place on, in O(log n) with 64 children a node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fedbuff {

class BitSet {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  // The empty set of numbers below n.
  void resize(std::size_t n) {
    levels_.clear();
    do {
      n = (n + 63) / 64;
      levels_.emplace_back(n, 0);
    } while (n > 1);
  }

  void insert(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[number / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << number % 64;
      if (!was_empty) {
        return;
      }
      number /= 64;
    }
  }

  void remove(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[number / 64];
      word &= ~(std::uint64_t{1} << number % 64);
      if (word != 0) {
        return;
      }
      number /= 64;
    }
  }

  // The first number in the set that is not below `from`, or kNone.
  std::size_t first_from(std::size_t from) const {
    std::size_t level = 0;
    for (; level < levels_.size(); ++level, from = from / 64 + 1) {
      if (from / 64 >= levels_[level].size()) {
        return kNone;
      }
      const std::uint64_t word = levels_[level][from / 64] >> from % 64;
      if (word != 0) {
        from += static_cast<std::size_t>(__builtin_ctzll(word));
        break;
      }
    }
    if (level == levels_.size()) {
      return kNone;
    }
    while (level-- > 0) {
      from = from * 64 + static_cast<std::size_t>(__builtin_ctzll(levels_[level][from]));
    }
    return from;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // a bit for each number; above, one for each word that is not 0
};

}  // namespace fedbuff
