// Events in the order (time, kind, number of creation).
//
// EventHeap: a 4-ary implicit heap of 16-byte events. The four children of an event share a cache line. An event is two
// integers: the bits of its time (times are >= +0, and such doubles order as their bits) and kind, number and slot in
// one word; so one 128-bit comparison decides, ties included, without a branch. `take` walks the hole of the earliest
// event down to a leaf and leaves it open: the way down does not depend on what comes next, so the processor overlaps
// it with drawing the next delay, and `put` fills it. O(log n).
//
// EventQueue: a calendar over it, for up to tens of millions of slots with one event each at most. The near future is a
// heap of a few events; what follows lies unsorted in buckets of equal width; the rest only in its slot. When the
// buckets are used up they are laid out anew from a sample of what is pending. So an event costs a few touches of
// memory instead of log n, and times that no bucket can part (ties, clusters) still cost no more than the heap. A
// slot's payload shares a cache line with its event, and is fetched before it is due.
//
// Limits: kinds < 4, numbers < 2^36, slots < 2^26.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "huge_pages.hpp"

namespace fedbuff {

struct Event {
  std::uint64_t time_bits;
  std::uint64_t order;  // kind << 62 | number << 26 | slot

  static constexpr int kSlotBits = 26;
  static constexpr int kNumberBits = 36;
  static constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << kSlotBits;
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << kNumberBits;

  static Event make(double time, std::uint64_t kind, std::uint64_t number, std::uint64_t slot) {
    return at(time, kind << 62 | number << kSlotBits | slot);
  }
  static Event at(double time, std::uint64_t order) {
    Event event;
    std::memcpy(&event.time_bits, &time, sizeof time);
    event.order = order;
    return event;
  }
  double time() const {
    double value;
    std::memcpy(&value, &time_bits, sizeof value);
    return value;
  }
  int kind() const { return static_cast<int>(order >> 62); }
  std::uint32_t slot() const { return static_cast<std::uint32_t>(order & (kMaxSlots - 1)); }
};

inline bool earlier(const Event& a, const Event& b) {
  __extension__ typedef unsigned __int128 Wide;
  return (Wide{a.time_bits} << 64 | a.order) < (Wide{b.time_bits} << 64 | b.order);
}

class EventHeap {
 public:
  EventHeap() { reserve(60); }
  EventHeap(const EventHeap&) = delete;
  EventHeap& operator=(const EventHeap&) = delete;
  ~EventHeap() { std::free(block_); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The earliest event; one whose time bits are all ones where the queue is empty.
  const Event& top() const { return heap_[0]; }

  // All events, in no order; no hole may be open.
  const Event* events() const { return heap_; }

  void clear() {
    for (std::size_t i = 0; i <= size_; ++i) {
      heap_[i] = kNone;
    }
    size_ = 0;
    hole_ = kNoHole;
  }

  // Removes the earliest event.
  void pop() {
    take();
    close();
  }

  // Removes the earliest event and leaves the hole for the next `put`.
  void take() {
    close();
    std::size_t hole = 0;
    for (;;) {
      const std::size_t first = 4 * hole + 1;
      if (first >= size_) {
        break;
      }
      // Past the end lie events later than every other, so that four children can always be compared.
      const Event* child = heap_ + first;
      const std::size_t a = static_cast<std::size_t>(earlier(child[1], child[0]));
      const std::size_t b = 2 + static_cast<std::size_t>(earlier(child[3], child[2]));
      const std::size_t best = a ^ ((a ^ b) & (0 - static_cast<std::size_t>(earlier(child[b], child[a]))));
      heap_[hole] = child[best];
      hole = first + best;
    }
    heap_[hole] = kNone;
    hole_ = hole;
    --size_;
  }

  void put(const Event& event) {
    std::size_t i = hole_;
    if (i == kNoHole) {
      if (size_ == capacity_) {
        reserve(2 * capacity_);
      }
      i = size_;
    }
    hole_ = kNoHole;
    ++size_;
    rise(i, event);
  }

  // Gives the open hole, if there is one, to the last event.
  void close() {
    if (hole_ == kNoHole) {
      return;
    }
    // With a hole open the array holds size_ + 1 places.
    const std::size_t hole = hole_;
    hole_ = kNoHole;
    if (hole != size_) {
      const Event last = heap_[size_];
      heap_[size_] = kNone;
      rise(hole, last);
    }
  }

 private:
  static constexpr std::size_t kNoHole = ~std::size_t{0};
  static constexpr Event kNone{~std::uint64_t{0}, ~std::uint64_t{0}};

  void rise(std::size_t i, const Event& event) {
    while (i > 0) {
      const std::size_t parent = (i - 1) >> 2;
      if (!earlier(event, heap_[parent])) {
        break;
      }
      heap_[i] = heap_[parent];
      i = parent;
    }
    heap_[i] = event;
  }

  void reserve(std::size_t capacity) {
    // heap_[1] begins a cache line; four places after the end stay later than everything.
    void* raw = std::aligned_alloc(64, ((capacity + 8) * sizeof(Event) + 63) / 64 * 64);
    if (raw == nullptr) {
      throw std::bad_alloc();
    }
    Event* heap = static_cast<Event*>(raw) + 3;
    for (std::size_t i = 0; i < capacity + 5; ++i) {
      heap[i] = i < size_ ? heap_[i] : kNone;
    }
    std::free(block_);
    block_ = raw;
    heap_ = heap;
    capacity_ = capacity;
  }

  void* block_ = nullptr;
  Event* heap_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::size_t hole_ = kNoHole;
};

// `Near` is called with the payload of an event that will soon be due, to fetch what it will touch.
template <class Payload, class Near>
class EventQueue {
 public:
  explicit EventQueue(Near near = Near()) : near_(near) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Payload& payload(std::uint32_t slot) { return nodes_[slot].payload; }
  const Payload& payload(std::uint32_t slot) const { return nodes_[slot].payload; }
  std::size_t n_slots() const { return nodes_.size(); }
  void add_slots(std::size_t count) { nodes_.resize(nodes_.size() + count); }

  // The earliest event; one whose time bits are all ones where the queue is empty.
  const Event& top() const { return front_.top(); }
  std::uint32_t top_slot() const { return top().slot(); }

  __attribute__((always_inline)) void take() {
    nodes_[front_.top().slot()].next = kIdle;
    front_.take();
    --size_;
    if (front_.empty() && size_ > 0) {
      refill();
    } else if (ahead_ < kNil) {
      ahead_ = nodes_[ahead_].next;
      if (ahead_ < kNil) {
        __builtin_prefetch(&nodes_[ahead_]);
      }
    }
  }

  // After `take`: nothing else has the time of the event taken.
  bool was_alone(const Event& taken) const { return top().time_bits > taken.time_bits; }

  // The event of a slot that has none.
  __attribute__((always_inline)) void put(const Event event) {
    if (size_++ == 0) {
      // Alone: it is the near future, and there are no buckets.
      origin_ = 0.0;
      scale_ = 0.0;
      current_ = n_buckets_ = 1;
      put_front(event);
      return;
    }
    if (size_ > grow_size_) {
      lay_out_again();
    }
    const double place = (event.time() - origin_) * scale_;
    if (place < static_cast<double>(current_)) {
      put_front(event);
      return;
    }
    // Field by field, from registers: the event was not written as 16 bytes, and reading it as such would stall.
    Node& node = nodes_[event.slot()];
    node.event.time_bits = event.time_bits;
    node.event.order = event.order;
    if (place < static_cast<double>(n_buckets_)) {
      std::uint32_t& first = head(static_cast<std::int64_t>(place));
      node.next = first;
      first = event.slot();
    } else {
      node.next = kFar;
    }
  }

  // Lays the buckets out anew; worth a call after many `put` in a row.
  __attribute__((noinline)) void lay_out_again() {
    front_.close();
    for (std::size_t i = 0; i < front_.size(); ++i) {
      Node& node = nodes_[front_.events()[i].slot()];
      node.event = front_.events()[i];
      node.next = kFar;
    }
    front_.clear();
    for (std::int64_t b = current_; b < n_buckets_ && scale_ > 0.0; ++b) {
      for (std::uint32_t slot = head(b); slot < kNil;) {
        const std::uint32_t after = nodes_[slot].next;
        nodes_[slot].next = kFar;
        slot = after;
      }
    }
    lay_out();
    if (front_.empty()) {
      refill();
    }
  }

  void clear() {
    for (Node& node : nodes_) {
      node.next = kIdle;
    }
    front_.clear();
    size_ = 0;
    ahead_ = kNil;
  }

 private:
  static constexpr std::uint32_t kNil = 0xFFFFFFF0u;   // the end of a bucket
  static constexpr std::uint32_t kFar = 0xFFFFFFF1u;   // pending, beyond the buckets
  static constexpr std::uint32_t kNear = 0xFFFFFFF2u;  // pending, in the heap
  static constexpr std::uint32_t kIdle = 0xFFFFFFF3u;  // no event
  static constexpr double kPerBucket = 3.0;
  static constexpr std::size_t kSmall = 24;  // so few events are left to the heap
  static constexpr std::size_t kShort = 4096;
  static constexpr std::size_t kSample = 64;  // times looked at for a new layout

  struct alignas(64) Node {
    Event event;
    std::uint32_t next = kIdle;
    Payload payload;
  };

  std::uint32_t& head(std::int64_t bucket) { return heads_[static_cast<std::size_t>(bucket)]; }

  __attribute__((noinline)) void put_front(const Event event) {
    nodes_[event.slot()].next = kNear;
    front_.put(event);
    if (++near_puts_ > near_limit_) {
      lay_out_again();
    }
  }

  // Fills the heap from the next bucket that is not empty.
  __attribute__((noinline)) void refill() {
    for (;;) {
      while (current_ < n_buckets_ && head(current_) == kNil) {
        ++current_;
      }
      if (current_ < n_buckets_) {
        break;
      }
      lay_out();
      if (!front_.empty()) {
        return;
      }
    }
    for (std::uint32_t slot = head(current_); slot < kNil;) {
      Node& node = nodes_[slot];
      slot = node.next;
      node.next = kNear;
      front_.put(node.event);
      near_(node.payload);
    }
    head(current_) = kNil;
    ++current_;
    ahead_ = current_ < n_buckets_ ? head(current_) : kNil;
    if (ahead_ < kNil) {
      __builtin_prefetch(&nodes_[ahead_]);
    }
    if (current_ + 1 < n_buckets_ && head(current_ + 1) < kNil) {
      __builtin_prefetch(&nodes_[head(current_ + 1)]);
    }
  }

  // Everything pending is far: chooses the buckets, and puts into them what falls inside.
  void lay_out() {
    current_ = 0;
    n_buckets_ = 0;
    ahead_ = kNil;
    origin_ = kInfinity;
    double sample[kSample];
    std::size_t n = 0;
    const std::size_t stride = std::max<std::size_t>(1, nodes_.size() / kSample);
    std::size_t due = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].next != kFar) {
        continue;
      }
      const double time = nodes_[i].event.time();
      origin_ = std::min(origin_, time);
      if (i >= due && n < kSample && time < kInfinity) {
        sample[n++] = time;
        due = i + stride;
      }
    }
    double width = 0.0;
    if (n > 8 && size_ > kSmall) {
      const std::size_t quarter = n / 4;
      std::nth_element(sample, sample + quarter, sample + n);
      const double density = static_cast<double>(quarter) / static_cast<double>(n) * static_cast<double>(size_);
      width = (sample[quarter] - origin_) * kPerBucket / density;
      // Few buckets stay in the cache, so a short queue is laid out for longer.
      const double longer = size_ < kShort ? 4.0 : 1.0;
      const double most = longer * 4.0 * static_cast<double>(size_) / kPerBucket + 16.0;
      const double wanted = longer * (*std::max_element(sample + quarter, sample + n) - origin_) / width;
      scale_ = 1.0 / width;
      if (scale_ < kInfinity && wanted >= 2.0) {
        n_buckets_ = static_cast<std::int64_t>(std::min(wanted, most)) + 1;
      }
    }
    if (n_buckets_ == 0) {  // few events, or times that buckets would not part: the heap takes them all
      origin_ = 0.0;
      scale_ = 0.0;
      n_buckets_ = 1;
    }
    if (heads_.size() < static_cast<std::size_t>(n_buckets_)) {
      heads_.resize(static_cast<std::size_t>(n_buckets_));
    }
    std::fill(heads_.begin(), heads_.begin() + n_buckets_, kNil);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.next != kFar) {
        continue;
      }
      const double place = (node.event.time() - origin_) * scale_;
      if (scale_ == 0.0) {
        node.next = kNear;
        front_.put(node.event);
      } else if (place < static_cast<double>(n_buckets_)) {
        std::uint32_t& first = head(static_cast<std::int64_t>(place));
        node.next = first;
        first = static_cast<std::uint32_t>(i);
      }
    }
    if (scale_ == 0.0) {
      current_ = 1;
    }
    near_puts_ = 0;
    near_limit_ = 64 + nodes_.size();
    grow_size_ = 64 + 4 * size_;
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  Near near_;
  EventHeap front_;
  LargeVector<Node> nodes_{1};  // slot 0 is always there
  LargeVector<std::uint32_t> heads_;
  std::size_t size_ = 0;
  std::int64_t n_buckets_ = 1;
  std::int64_t current_ = 1;     // the first bucket that is not yet in the heap
  std::size_t near_puts_ = 0;    // events put into the heap since the layout,
  std::size_t near_limit_ = 64;  // and how many may be before it is made anew
  std::size_t grow_size_ = 64;   // so too when the queue has grown beyond this
  double origin_ = 0.0;
  double scale_ = 0.0;  // buckets per unit of time
  std::uint32_t ahead_ = kNil;
};

}  // namespace fedbuff
