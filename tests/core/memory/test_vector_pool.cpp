// VectorPool: vectors do not overlap, begin at a page, and keep their block alive.
#include "memory/vector_pool.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"

using fedbuff::SharedMemory;
using fedbuff::VectorPool;

TEST(vector_pool_gives_vectors_that_do_not_overlap) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{70'001}, std::size_t{3} << 20}) {
    std::vector<SharedMemory> vectors;
    {
      VectorPool pool;  // the vectors outlive it
      for (int i = 0; i < 20; ++i) {
        vectors.push_back(pool.take(bytes));
        std::memset(vectors.back().get(), i, bytes);
        const auto address = reinterpret_cast<std::uintptr_t>(vectors.back().get());
        CHECK_EQ(address % (bytes < 65'536 ? 64 : 4096), std::uintptr_t{0});
      }
    }
    for (int i = 0; i < 20; ++i) {
      const auto* values = static_cast<const unsigned char*>(vectors[static_cast<std::size_t>(i)].get());
      for (std::size_t j = 0; j < bytes; ++j) {
        if (values[j] != i) {
          CHECK_EQ(static_cast<int>(values[j]), i);
        }
      }
    }
  }
}

TEST(vector_pool_cuts_blocks_for_middle_sizes) {
  VectorPool pool;
  const SharedMemory a = pool.take(100'000), b = pool.take(100'000);
  CHECK_EQ(static_cast<char*>(b.get()) - static_cast<char*>(a.get()), std::ptrdiff_t{25 * 4096});
  CHECK(a.use_count() >= 3);  // two vectors and the pool share one block
}
