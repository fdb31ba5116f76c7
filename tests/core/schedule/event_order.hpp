// Queues of events beside std::set: the same earliest event after every change.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "check.hpp"
#include "schedule/event.hpp"

namespace event_order {

using fedbuff::Event;

struct Payload {
  std::uint32_t slot = 0;
};
struct Before {
  bool operator()(const Event& a, const Event& b) const { return fedbuff::earlier(a, b); }
};

inline double spread(check::Numbers& numbers) { return (numbers.next() + 1.0) * (numbers.next() + 1.0); }
inline double tied(check::Numbers& numbers) { return static_cast<double>(numbers.below(3)); }
inline double clustered(check::Numbers& numbers) {
  return static_cast<double>(numbers.below(4)) + (numbers.next() + 1.0) * 1e-9;
}
inline double none(check::Numbers&) { return 0.0; }

// Every slot has an event; the earliest is taken and its slot has a later one, or none for a while.
template <class Queue>
void compare(Queue& queue, std::uint32_t n_slots, bool gathered, double (*delay)(check::Numbers&)) {
  check::Numbers numbers(n_slots);
  std::set<Event, Before> expected;
  std::set<std::uint32_t> idle;
  std::uint64_t created = 0;
  const auto put = [&](double time, std::uint32_t slot) {
    const Event event = Event::make(time, static_cast<std::uint64_t>(numbers.below(3)), created++, slot);
    queue.payload(slot).slot = slot;
    queue.put(event);
    expected.insert(event);
  };
  queue.add_slots(n_slots - queue.n_slots());
  if (gathered) {
    queue.gather();
  }
  for (std::uint32_t slot = 0; slot < n_slots; ++slot) {
    put(delay(numbers), slot);
    if (gathered && expected.begin()->time_bits == 0) {
      CHECK_EQ(queue.top().order, expected.begin()->order);
    }
  }
  queue.lay_out_again();
  for (std::uint32_t turn = 0; turn < 3 * n_slots + 1000; ++turn) {
    const Event top = queue.top();
    CHECK_EQ(queue.size(), expected.size());
    CHECK(top.time_bits == expected.begin()->time_bits && top.order == expected.begin()->order);
    CHECK_EQ(queue.payload(top.slot()).slot, top.slot());
    expected.erase(expected.begin());
    queue.take();
    const bool alone = expected.empty() || expected.begin()->time_bits > top.time_bits;
    CHECK_EQ(queue.was_alone(top), alone);
    idle.insert(top.slot());
    while (!idle.empty() && (expected.empty() || numbers.below(4) != 0)) {
      put(top.time() + delay(numbers), *idle.begin());
      idle.erase(idle.begin());
    }
  }
  queue.clear();
  CHECK(queue.empty() && !(queue.top().time() < std::numeric_limits<double>::infinity()));
  queue.put(Event::make(1.0, 0, created, 0));
  CHECK_EQ(queue.top().time(), 1.0);
}

inline constexpr double (*kDelays[])(check::Numbers&) = {&spread, &tied, &clustered, &none};

// Events of slots are removed in between, sometimes all but a few, and put again.
template <class Queue>
void compare_removals(Queue& queue, std::uint32_t n_slots, double (*delay)(check::Numbers&)) {
  check::Numbers numbers(n_slots + 7);
  std::set<Event, Before> expected;
  std::vector<Event> event_of(n_slots, fedbuff::kNoEvent);
  std::uint64_t created = 0;
  double now = 0.0;
  queue.add_slots(n_slots - queue.n_slots());
  const auto put = [&](std::uint32_t slot) {
    event_of[slot] = Event::make(now + delay(numbers), static_cast<std::uint64_t>(numbers.below(3)), created++, slot);
    queue.put(event_of[slot]);
    expected.insert(event_of[slot]);
  };
  const auto remove = [&](std::uint32_t slot) {
    queue.remove(slot);
    expected.erase(event_of[slot]);
    event_of[slot] = fedbuff::kNoEvent;
  };
  for (std::uint32_t turn = 0; turn < 4 * n_slots + 2000; ++turn) {
    const auto slot = static_cast<std::uint32_t>(numbers.below(n_slots));
    const bool has = event_of[slot].time_bits != fedbuff::kNoEvent.time_bits;
    const std::int64_t what = numbers.below(8);
    if (!has) {
      put(slot);
    } else if (what < 3) {
      remove(slot);
    } else if (!expected.empty()) {
      const Event top = queue.top();
      CHECK_EQ(top.order, expected.begin()->order);
      now = top.time();
      queue.take();
      expected.erase(top);
      event_of[top.slot()] = fedbuff::kNoEvent;
    }
    if (turn % 977 == 976) {
      for (std::uint32_t other = 2; other < n_slots; ++other) {
        if (event_of[other].time_bits != fedbuff::kNoEvent.time_bits) {
          remove(other);
        }
      }
      for (std::uint32_t other = 2; other < n_slots; ++other) {
        put(other);
      }
    }
    CHECK_EQ(queue.size(), expected.size());
    if (!expected.empty()) {
      const Event top = queue.top();
      CHECK(top.time_bits == expected.begin()->time_bits && top.order == expected.begin()->order);
    }
  }
}

}  // namespace event_order
