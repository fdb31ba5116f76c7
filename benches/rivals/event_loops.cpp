// M/M/1 and PHOLD, the two workloads by which simulators compare their event lists, over one of several lists: the
// standard library's, a heap of four children by hand, and, with -DWITH_FEDBUFF, fedbuff's own. Same loop, same draws.
//
// M/M/1: customers arrive at rate 0.75 and are served at rate 1, two events each; a ring holds who waits. The answer is
// the mean time from arrival to departure. PHOLD: every event draws the next one, an exponential time later, at a process
// drawn at random, so that there are always as many events; the answer is the mean time of one.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>
#ifdef WITH_FEDBUFF
#include <fedbuff/fedbuff.h>
#endif

namespace {

struct Event {
  double time;
  std::int64_t item;
};

class Standard {
 public:
  void push(double time, std::int64_t item) { events_.push({time, item}); }
  Event pop() {
    const Event event = events_.top();
    events_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.time > b.time; }
  };
  std::priority_queue<Event, std::vector<Event>, Later> events_;
};

/// A heap in which each event has four children: half the levels, and siblings in one or two lines of the cache.
class FourAry {
 public:
  void push(double time, std::int64_t item) {
    std::size_t at = events_.size();
    events_.push_back({time, item});
    while (at > 0) {
      const std::size_t parent = (at - 1) / 4;
      if (events_[parent].time <= time) break;
      events_[at] = events_[parent];
      at = parent;
    }
    events_[at] = {time, item};
  }

  Event pop() {
    const Event first = events_[0], last = events_.back();
    events_.pop_back();
    const std::size_t n = events_.size();
    if (n == 0) return first;
    std::size_t at = 0;
    for (;;) {
      const std::size_t child = 4 * at + 1;
      if (child >= n) break;
      std::size_t least = child;
      const std::size_t end = child + 4 < n ? child + 4 : n;
      for (std::size_t i = child + 1; i < end; ++i) least = events_[i].time < events_[least].time ? i : least;
      if (events_[least].time >= last.time) break;
      events_[at] = events_[least];
      at = least;
    }
    events_[at] = last;
    return first;
  }

 private:
  std::vector<Event> events_;
};

#ifdef WITH_FEDBUFF
class Fedbuff {
 public:
  Fedbuff() { fb_queue_create(&queue_); }
  ~Fedbuff() { fb_queue_destroy(&queue_); }
  Fedbuff(const Fedbuff&) = delete;
  Fedbuff& operator=(const Fedbuff&) = delete;
  void push(double time, std::int64_t item) { fb_queue_push(queue_, time, item, 0); }
  Event pop() {
    fb_event event;
    fb_queue_pop(queue_, &event);
    return {event.time, event.item};
  }

 private:
  fb_queue* queue_ = nullptr;
};
#endif

/// SplitMix64: the cheapest generator that anybody would take.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u) {}
  double exponential() { return -std::log((static_cast<double>(next() >> 11) + 0.5) * 0x1p-53); }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(((next() >> 32) * static_cast<std::uint64_t>(n)) >> 32);
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

template <typename List>
double mm1(std::int64_t customers, std::uint64_t seed) {
  constexpr std::int64_t kArrival = 0, kDeparture = 1;
  List list;
  Draws draws(seed);
  std::vector<double> ring(1 << 12);  // of arrival times; at this load a queue of so many is never seen
  std::size_t head = 0, tail = 0;
  const std::size_t mask = ring.size() - 1;
  double total = 0;
  std::int64_t left = 0;
  list.push(draws.exponential() / 0.75, kArrival);
  while (left < customers) {
    const Event event = list.pop();
    if (event.item == kArrival) {
      ring[tail++ & mask] = event.time;
      if (tail - head == 1) list.push(event.time + draws.exponential(), kDeparture);
      list.push(event.time + draws.exponential() / 0.75, kArrival);
    } else {
      total += event.time - ring[head++ & mask];
      ++left;
      if (tail != head) list.push(event.time + draws.exponential(), kDeparture);
    }
  }
  return total / static_cast<double>(customers);
}

template <typename List>
double phold(std::int64_t in_flight, std::int64_t events, std::uint64_t seed) {
  List list;
  Draws draws(seed);
  const std::int64_t processes = 10 * in_flight;
  std::vector<std::uint32_t> seen(static_cast<std::size_t>(processes));
  for (std::int64_t i = 0; i < in_flight; ++i) list.push(draws.exponential(), draws.below(processes));
  double now = 0;
  for (std::int64_t i = 0; i < events; ++i) {
    const Event event = list.pop();
    now = event.time;
    ++seen[static_cast<std::size_t>(event.item)];
    list.push(now + draws.exponential(), draws.below(processes));
  }
  return now * static_cast<double>(in_flight) / static_cast<double>(events);
}

}  // namespace

#define FOR_LIST(name, List)                                                                                     \
  extern "C" double mm1_##name(std::int64_t customers, std::uint64_t seed) { return mm1<List>(customers, seed); } \
  extern "C" double phold_##name(std::int64_t in_flight, std::int64_t events, std::uint64_t seed) {              \
    return phold<List>(in_flight, events, seed);                                                                 \
  }

FOR_LIST(standard, Standard)
FOR_LIST(four_ary, FourAry)
#ifdef WITH_FEDBUFF
FOR_LIST(fedbuff, Fedbuff)
#endif
