// A pass over n rows in shuffled order, of which any element can be had by itself.
//
// An index is left * b + right, with a = ceil(sqrt(n)) lefts and b = ceil(n / a) rights. Each round adds a word made of
// one of the two to the other, which can be undone, so it is a permutation of a * b numbers; one that is not below n
// goes through the rounds again. With 16 rounds all orders of a few rows come equally often, as far as a test can see.
#pragma once

#include <cstdint>

#include "numbers/philox.hpp"

namespace fedbuff {

class Shuffle {
 public:
  // n_rows is 1 .. 2^31 - 1.
  Shuffle(std::uint64_t seed, std::uint32_t client, std::uint32_t task, std::uint32_t pass, std::uint32_t n_rows,
          Stream stream = Stream::Shuffles)
      : key_(philox4x32(seed, client, task, pass, stream_word(stream, 0))), n_rows_(n_rows), a_(1) {
    while (std::uint64_t{a_} * a_ < n_rows) {
      a_ = 2 * a_;
    }
    for (std::uint32_t part = a_ / 2; part > 0; part /= 2) {  // the least a with a * a >= n
      const std::uint32_t less = a_ - part;
      a_ = std::uint64_t{less} * less >= n_rows ? less : a_;
    }
    b_ = (n_rows + a_ - 1) / a_;
  }

  // The row at a place of the pass.
  std::uint32_t at(std::uint32_t index) const {
    do {
      std::uint32_t left = index / b_, right = index % b_;
      for (std::uint32_t round = 0; round < kRounds; round += 2) {
        left += word(round, right, a_);
        left -= left >= a_ ? a_ : 0;
        right += word(round + 1, left, b_);
        right -= right >= b_ ? b_ : 0;
      }
      index = left * b_ + right;
    } while (index >= n_rows_);
    return index;
  }

 private:
  static constexpr std::uint32_t kRounds = 16;

  // A word of the round and x, below n.
  std::uint32_t word(std::uint32_t round, std::uint32_t x, std::uint32_t n) const {
    std::uint64_t product = std::uint64_t{0xD2511F53u} * ((x ^ key_.word[round % 4]) + round * 0x9E3779B9u);
    std::uint32_t w =
        static_cast<std::uint32_t>(product >> 32) ^ static_cast<std::uint32_t>(product) ^ key_.word[(round + 1) % 4];
    product = std::uint64_t{0xCD9E8D57u} * w;
    w = static_cast<std::uint32_t>(product >> 32) ^ static_cast<std::uint32_t>(product);
    return index_below(w, n);
  }

  PhiloxBlock key_;
  std::uint32_t n_rows_, a_, b_;
};

}  // namespace fedbuff
