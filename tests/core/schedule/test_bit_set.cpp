// The set of bits beside std::set.
#include "schedule/bit_set.hpp"

#include <cstddef>
#include <set>

#include "check.hpp"

namespace {

TEST(bit_set_finds_the_first_number_from_a_place_on) {
  for (const std::size_t n : {1u, 63u, 64u, 65u, 4096u, 4097u, 300000u}) {
    check::Numbers numbers(n);
    fedbuff::BitSet bits;
    bits.resize(n);
    std::set<std::size_t> expected;
    const auto some = [&] { return static_cast<std::size_t>(numbers.below(static_cast<std::int64_t>(n))); };
    for (int turn = 0; turn < 3000; ++turn) {
      const std::size_t number = some();
      if (numbers.below(5) < 2) {
        bits.insert(number);
        expected.insert(number);
      } else {
        const std::size_t gone = expected.empty() ? number : *expected.begin();
        bits.remove(gone);
        expected.erase(gone);
      }
      const std::size_t from = some();
      const auto next = expected.lower_bound(from);
      CHECK_EQ(bits.first_from(from), next == expected.end() ? fedbuff::BitSet::kNone : *next);
      CHECK_EQ(bits.first_from(n), fedbuff::BitSet::kNone);
    }
  }
}

}  // namespace
