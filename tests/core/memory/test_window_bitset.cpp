// WindowBitset against std::set.
#include <cstdint>
#include <set>

#include "check.hpp"
#include "memory/window_bitset.hpp"

namespace {

TEST(window_bitset_gives_the_smallest_first) {
  for (const std::int64_t window : {2, 32, 64, 128, 512}) {
    fedbuff::WindowBitset numbers;
    std::set<std::int64_t> expected;
    std::set<std::int64_t> used;  // every number comes once
    std::int64_t first = 1000;
    numbers.reset(window, first);
    std::uint64_t state = 88172645463325252u;  // xorshift
    for (int turn = 0; turn < 20000; ++turn) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const std::int64_t number = first + static_cast<std::int64_t>(state >> 8) % window;
      if (state % 2 == 0 && used.insert(number).second) {
        numbers.insert(number);
        expected.insert(number);
      } else if (!expected.empty()) {
        CHECK_EQ(numbers.pop_first(first), *expected.begin());
        expected.erase(expected.begin());
      }
      CHECK_EQ(numbers.size(), static_cast<std::int64_t>(expected.size()));
      while (used.count(first) != 0 && expected.count(first) == 0) {  // the window moves past what is done
        used.erase(first++);
      }
    }
    CHECK(first > 1000 + 3 * window);
  }
}

}  // namespace
