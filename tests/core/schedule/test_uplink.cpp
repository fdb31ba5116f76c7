// A heap of slots beside std::set, and transfers beside what is left of each at every event.
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "check.hpp"
#include "schedule/uplink.hpp"

using fedbuff::Event;
using fedbuff::SlotHeap;
using fedbuff::Uplink;

namespace {

TEST(a_heap_of_slots_has_the_earliest_on_top) {
  constexpr std::uint32_t kSlots = 200;
  check::Numbers numbers(3);
  SlotHeap heap;
  heap.resize(kSlots);
  std::map<std::uint32_t, std::pair<double, std::uint64_t>> expected;  // by slot
  for (std::uint64_t turn = 0; turn < 4000; ++turn) {
    const auto slot = static_cast<std::uint32_t>(numbers.below(kSlots));
    if (expected.erase(slot) != 0) {
      heap.remove(slot);
    } else {
      const auto time = static_cast<double>(numbers.below(40));
      heap.put(Event::make(time, 0, turn, slot));
      expected[slot] = {time, turn};
    }
    CHECK_EQ(heap.empty(), expected.empty());
    std::set<std::pair<double, std::uint64_t>> order;
    for (const auto& entry : expected) {
      order.insert(entry.second);
    }
    if (!order.empty()) {
      CHECK(heap.top().time() == order.begin()->first && expected[heap.top().slot()] == *order.begin());
    }
  }
}

TEST(transfers_get_what_the_others_leave) {
  constexpr std::uint32_t kSlots = 30;
  for (const double capacity : {0.5, 1.0, 2.5, 7.0, 100.0}) {
    check::Numbers numbers(5);
    Uplink uplink(capacity, true);
    uplink.resize(kSlots);
    std::map<std::uint32_t, std::pair<double, double>> left;  // of each transfer: its work, and its deadline
    double now = 0.0;
    const auto pass = [&](double until) {
      const double speed = std::fmin(1.0, capacity / static_cast<double>(left.size()));
      for (auto& entry : left) {
        entry.second.first -= (until - now) * speed;
      }
      now = until;
    };
    for (int turn = 0; turn < 20000; ++turn) {
      const double event = now + numbers.next() + 1.0;
      while (uplink.next_time() <= event) {
        pass(uplink.next_time());
        const Uplink::Taken taken = uplink.take();
        CHECK_EQ(left.count(taken.slot), std::size_t{1});
        const auto [work, deadline] = left[taken.slot];
        CHECK(taken.complete ? std::fabs(work) < 1e-9 && now <= deadline : work > -1e-9 && now == deadline);
        left.erase(taken.slot);
        for (const auto& entry : left) {
          CHECK(entry.second.first > -1e-9 && entry.second.second >= now);
        }
      }
      pass(event);
      const auto slot = static_cast<std::uint32_t>(numbers.below(kSlots));
      if (left.count(slot) != 0) {
        if (numbers.below(4) == 0) {
          uplink.leave(slot, now);
          left.erase(slot);
        }
        continue;
      }
      const double size = static_cast<double>(numbers.below(5));
      const double deadline = now + 1.0 + static_cast<double>(numbers.below(9));
      uplink.join(slot, now, size, deadline);
      left[slot] = {size, deadline};
    }
    uplink.clear();
    CHECK_EQ(uplink.next_time(), std::numeric_limits<double>::infinity());
  }
}

}  // namespace
