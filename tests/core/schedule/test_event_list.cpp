// The list of events for few slots, beside std::set and on every level.
#include "schedule/event_list.hpp"

#include "check.hpp"
#include "kernels/dispatch.hpp"
#include "event_order.hpp"

namespace {

using event_order::Payload;
using fedbuff::Event;
using fedbuff::EventList;
using fedbuff::kernels;

TEST(event_list_gives_the_earliest_first) {
  check::on_every_level([] {
    for (const std::uint32_t n_slots : {1u, 7u, 8u, 9u, 60u, 640u}) {
      for (const auto delay : event_order::kDelays) {
        EventList<Payload> list(kernels().schedule);
        event_order::compare(list, n_slots, false, delay);
      }
    }
  });
}

TEST(event_list_without_removed_events) {
  check::on_every_level([] {
    for (const std::uint32_t n_slots : {2u, 9u, 60u, 256u}) {
      for (const auto delay : event_order::kDelays) {
        EventList<Payload> list(kernels().schedule);
        event_order::compare_removals(list, n_slots, delay);
      }
    }
  });
}

TEST(event_list_without_events_stays_usable) {
  EventList<Payload> list(kernels().schedule);
  CHECK(list.empty() && list.n_slots() == 1);
  CHECK_EQ(list.top().time(), std::numeric_limits<double>::infinity());
  list.add_slots(9);
  CHECK_EQ(list.n_slots(), std::size_t{10});
  list.put(Event::make(1e300, 0, 0, 9));  // far beyond the first bound
  list.put(Event::make(5e-324, 0, 1, 3));
  list.put(Event::make(0.0, 0, 2, 4));
  for (const std::uint32_t slot : {4u, 3u, 9u}) {
    CHECK_EQ(list.top_slot(), slot);
    const Event top = list.top();
    list.take();
    CHECK(list.was_alone(top));
  }
  CHECK(list.empty());
}

TEST(event_list_picks_the_slots_before_a_bound) {
  check::on_every_level([] {
    check::Numbers numbers(4);
    const auto pick = kernels().schedule.pick_early;
    for (const std::size_t n : {8u, 64u, 640u}) {
      std::vector<double> time = numbers.vector<double>(static_cast<std::int64_t>(n));
      time[n / 2] = 0.25;  // at the bound: not before it
      std::vector<std::uint32_t> found(n + 8), expected;
      for (std::size_t i = 0; i < n; ++i) {
        if (time[i] < 0.25) {
          expected.push_back(static_cast<std::uint32_t>(i));
        }
      }
      found.resize(pick(time.data(), n, 0.25, found.data()));
      CHECK(found == expected);
    }
  });
}

}  // namespace
