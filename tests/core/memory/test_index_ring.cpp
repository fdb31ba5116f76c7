// IndexRing against std::deque, and a view that other threads read.
#include "memory/index_ring.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <thread>

#include "check.hpp"

using fedbuff::IndexRing;

TEST(index_ring_keeps_indices_while_it_grows) {
  IndexRing<std::int64_t> ring;
  std::deque<std::int64_t> expected;
  std::int64_t first = 0, next = 0;
  check::Numbers numbers(5);
  for (int turn = 0; turn < 20'000; ++turn) {
    if (numbers.next() < 0.1 || expected.empty()) {
      ring.make_room();
      ring.push_back(7 * next);
      expected.push_back(7 * next++);
    } else {
      CHECK_EQ(ring.front(), expected.front());
      CHECK_EQ(ring.back(), expected.back());
      ring.pop_front();
      expected.pop_front();
      ++first;
    }
    CHECK_EQ(ring.begin(), first);
    CHECK_EQ(ring.end(), next);
    CHECK_EQ(ring.size(), static_cast<std::int64_t>(expected.size()));
    if (!expected.empty()) {
      const std::int64_t i = first + numbers.below(ring.size());
      CHECK_EQ(ring[i], 7 * i);
    }
  }
}

TEST(index_ring_restarts_at_any_index_and_frees_its_items) {
  IndexRing<std::shared_ptr<int>> ring;
  const auto item = std::make_shared<int>(1);
  for (int i = 0; i < 100; ++i) {
    ring.push_back(item);
  }
  CHECK_EQ(item.use_count(), 101L);
  ring.pop_front();
  CHECK_EQ(item.use_count(), 100L);
  ring.restart(1'000'003);
  CHECK_EQ(item.use_count(), 1L);
  CHECK_EQ(ring.size(), std::int64_t{0});
  ring.push_back(item);
  CHECK(ring.begin() == 1'000'003 && ring[1'000'003] == item);
}

TEST(index_ring_view_is_read_while_items_are_removed) {
  IndexRing<std::int64_t> ring;
  for (std::int64_t i = 0; i < 10'000; ++i) {
    ring.push_back(i);
  }
  const IndexRing<std::int64_t>::View view(ring);
  std::atomic<std::int64_t> wrong{0};
  std::thread reader([&] {
    for (std::int64_t i = 0; i < view.end(); ++i) {
      wrong += view[i] == i ? 0 : 1;
    }
  });
  while (ring.size() > 0) {
    ring.pop_front();
  }
  reader.join();
  CHECK_EQ(wrong.load(), std::int64_t{0});
}
