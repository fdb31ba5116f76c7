// The calendar of events and the heap, beside std::set.
#include "schedule/event_queue.hpp"

#include <algorithm>
#include <cstdint>
#include <set>

#include "check.hpp"
#include "event_order.hpp"
#include "kernels/dispatch.hpp"

namespace {

using event_order::Before;
using event_order::Payload;
using fedbuff::Event;

struct Near {
  void operator()(const Payload&) const {}
};
using Queue = fedbuff::EventQueue<Payload, Near>;

/// What is due soon: slots that have an event, each once; the earliest is the first where it is among the sorted ones.
template <class AnyQueue>
void look_ahead(AnyQueue& queue) {
  constexpr std::uint32_t kSlots = 200;
  queue.add_slots(kSlots);
  for (std::uint32_t slot = 1; slot <= kSlots; ++slot) {
    queue.put(Event::make(static_cast<double>((slot * 37) % kSlots + 1), 0, slot, slot));
  }
  for (std::uint32_t taken = 0; taken < kSlots; ++taken) {
    std::set<std::uint32_t> seen;
    queue.visit_soon([&](std::uint32_t slot) { return seen.insert(slot).second; });
    CHECK(seen.size() <= queue.size());
    std::size_t n = 0;
    queue.visit_soon([&](std::uint32_t) { return ++n < 3; });
    CHECK(n == std::min<std::size_t>(3, seen.size()));
    for (const std::uint32_t slot : seen) {
      CHECK((slot * 37) % kSlots + 1 >= static_cast<std::uint32_t>(queue.top().time()));
    }
    queue.take();
  }
}

TEST(event_queue_knows_what_is_due_soon) {
  Queue queue(fedbuff::kernels().schedule);
  look_ahead(queue);
}

TEST(event_queue_gives_the_earliest_first) {
  for (const std::uint32_t n_slots : {1u, 10u, 60u, 700u, 20000u}) {
    for (const bool gathered : {false, true}) {
      for (const auto delay : event_order::kDelays) {
        Queue queue(fedbuff::kernels().schedule);
        event_order::compare(queue, n_slots, gathered, delay);
      }
    }
  }
}

TEST(event_queue_without_removed_events) {
  using Removable = fedbuff::EventQueue<Payload, Near, true>;
  for (const std::uint32_t n_slots : {2u, 9u, 60u, 700u, 5000u}) {
    for (const auto delay : event_order::kDelays) {
      Removable queue(fedbuff::kernels().schedule);
      event_order::compare_removals(queue, n_slots, delay);
    }
  }
}

TEST(event_queue_without_events_stays_usable) {
  Queue queue(fedbuff::kernels().schedule);
  queue.gather();
  queue.lay_out_again();
  queue.add_slots(2);
  queue.put(Event::make(2.0, 0, 0, 1));
  queue.put(Event::make(1.0, 0, 1, 2));
  CHECK_EQ(queue.top_slot(), 2u);
}

TEST(heap_with_an_open_hole_keeps_all_when_it_makes_room) {
  for (std::uint64_t n = 2; n <= 60; ++n) {
    fedbuff::EventHeap heap;
    for (std::uint64_t i = 0; i < n; ++i) {
      heap.put(Event::make(static_cast<double>(n - i), 0, i, i));
    }
    heap.take();
    heap.make_room(500);
    for (std::uint64_t i = 1; i < n; ++i) {
      CHECK_EQ(heap.top().time(), static_cast<double>(i + 1));
      heap.take();
    }
    CHECK(heap.empty());
  }
}

// Heap and set grow to n events and shrink again, by pop, or by take with the hole filled or left open.
void compare_heap(std::uint64_t n, double (*delay)(check::Numbers&)) {
  check::Numbers numbers(n);
  fedbuff::EventHeap heap;
  std::set<Event, Before> expected;
  std::uint64_t created = 0;
  const auto put = [&](double time) {
    const Event event = Event::make(time, static_cast<std::uint64_t>(numbers.below(3)), created, created);
    ++created;
    heap.put(event);
    expected.insert(event);
  };
  for (bool grows = true; grows || !expected.empty();) {
    grows = grows && expected.size() < n;
    const double now = expected.empty() ? 0.0 : heap.top().time();
    const std::int64_t what = expected.empty() ? 0 : numbers.below(grows ? 4 : 8);
    if (what < 2) {
      put(now + delay(numbers));
    } else {
      expected.erase(expected.begin());
      what % 2 == 0 ? heap.pop() : heap.take();
      if (what == 3) {
        put(now + delay(numbers));
      }
    }
    CHECK_EQ(heap.size(), expected.size());
    CHECK_EQ(heap.empty(), expected.empty());
    const Event want = expected.empty() ? fedbuff::kNoEvent : *expected.begin();
    CHECK(heap.top().time_bits == want.time_bits && heap.top().order == want.order);
  }
  put(3.0);
  heap.clear();
  CHECK(heap.empty() && heap.top().time_bits == fedbuff::kNoEvent.time_bits);
  heap.put(Event::make(1.0, 0, 0, 9));
  CHECK_EQ(heap.top().slot(), 9u);
}

TEST(event_heap_gives_the_earliest_first) {
  for (const std::uint64_t n : {1U, 2U, 5U, 61U, 400U, 3000U}) {
    for (const auto delay : event_order::kDelays) {
      compare_heap(n, delay);
    }
  }
}

}  // namespace
