// ClientSet: a set of client ids with a constant-time update and the member of a given rank.
//
// One bit per client, and the counts of members of every 2^12 and every 2^18 clients. `set` and `has` touch one word of
// each; `member` scans n / 2^18 + 64 + 64 counts and words at most. Memory: n / 8 bytes and a little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fedbuff {

class ClientSet {
 public:
  // An empty set of clients 0 .. n - 1.
  void resize(std::int64_t n) {
    count_ = 0;
    words_.assign(static_cast<std::size_t>((n + 63) / 64), 0);
    low_.assign(static_cast<std::size_t>((n + 4095) / 4096), 0);
    high_.assign(static_cast<std::size_t>((n + 262143) / 262144), 0);
  }
  std::int64_t count() const { return count_; }
  bool has(std::uint32_t c) const { return (words_[c >> 6] >> (c & 63) & 1) != 0; }
  void set(std::uint32_t c, bool member) {
    if (member != has(c)) {
      const std::int32_t change = member ? 1 : -1;
      words_[c >> 6] ^= std::uint64_t{1} << (c & 63);
      low_[c >> 12] += change;
      high_[c >> 18] += change;
      count_ += change;
    }
  }
  // The member of this rank by id; 0 <= rank < count().
  std::uint32_t member(std::int64_t rank) const {
    std::size_t i = 0;
    for (; rank >= high_[i]; ++i) {
      rank -= high_[i];
    }
    for (i <<= 6; rank >= low_[i]; ++i) {
      rank -= low_[i];
    }
    for (i <<= 6;; ++i) {
      const int here = __builtin_popcountll(words_[i]);
      if (rank < here) {
        break;
      }
      rank -= here;
    }
    std::uint64_t word = words_[i];
    for (; rank > 0; --rank) {
      word &= word - 1;
    }
    return static_cast<std::uint32_t>(i << 6) + static_cast<std::uint32_t>(__builtin_ctzll(word));
  }

 private:
  std::vector<std::uint64_t> words_;  // one bit per client
  std::vector<std::int32_t> low_;     // members of every 2^12 clients
  std::vector<std::int32_t> high_;    // members of every 2^18 clients
  std::int64_t count_ = 0;
};

}  // namespace fedbuff
