// Vectors on huge pages.
#include <cstdint>

#include "check.hpp"
#include "memory/huge_pages.hpp"

namespace {

TEST(large_vector_begins_at_a_huge_page) {
  fedbuff::LargeVector<std::uint32_t> numbers(10, 7u);
  numbers.resize(fedbuff::kHugePage, 9u);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(numbers.data()) % fedbuff::kHugePage, std::uintptr_t{0});
  CHECK(numbers.front() == 7u && numbers[10] == 9u && numbers.back() == 9u);
}

}  // namespace
