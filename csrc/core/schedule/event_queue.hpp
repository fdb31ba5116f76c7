// Events in the order (time, kind, number of creation).
//
// EventHeap: a 4-ary implicit heap of 16-byte events. The four children of an event share a cache line. `take` walks
// the hole of the earliest event down to a leaf and leaves it open: the way down does not depend on what comes next, so
// the processor overlaps it with drawing the next delay, and `put` fills it. O(log n).
//
// EventQueue: a calendar, for up to tens of millions of slots with one event each at most. The next few events lie
// sorted, so that taking one is a step; what follows lies unsorted in buckets of equal width, chained through the
// slots; the rest only in its slot. When the sorted ones are used up those of the next buckets are sorted; when the
// buckets are used up they are laid out anew from a sample of what is pending. New events that are due before the next
// bucket go into a heap. So an event costs a few touches of memory instead of log n, and times that no bucket can part
// (ties, clusters) still cost no more than the heap. A slot's payload shares a cache line with its event. Both are
// fetched before they are due, many at a time: a bucket's chain is as slow as the memory, but many chains are no
// slower. With kRemovable a slot's event can be removed: a bucket's chain then goes both ways, and copies among the
// sorted ones and in the heap of an event that was removed are passed over when their turn comes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

#include "schedule/event.hpp"
#include "memory/huge_pages.hpp"
#include "schedule/sort_events.hpp"

namespace fedbuff {

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

  void clear() {
    for (std::size_t i = 0; i <= size_; ++i) {
      heap_[i] = kNoEvent;
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
    heap_[hole] = kNoEvent;
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

  // Makes room for so many events, so that no `put` of one of them allocates.
  void make_room(std::size_t n) {
    if (n >= capacity_) {
      reserve(n + 1);  // with a hole open the array holds a place more
    }
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
      heap_[size_] = kNoEvent;
      rise(hole, last);
    }
  }

 private:
  static constexpr std::size_t kNoHole = ~std::size_t{0};

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
    const std::size_t places = size_ + (hole_ == kNoHole ? 0 : 1);
    for (std::size_t i = 0; i < capacity + 5; ++i) {
      heap[i] = i < places ? heap_[i] : kNoEvent;
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
template <class Payload, class Near, bool kRemovable = false>
class EventQueue {
 public:
  explicit EventQueue(const ScheduleKernels& kernels, Near near = Near()) : near_(near), rank_(kernels.rank_times) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Payload& payload(std::uint32_t slot) { return nodes_[slot].payload; }
  const Payload& payload(std::uint32_t slot) const { return nodes_[slot].payload; }
  std::size_t n_slots() const { return nodes_.size(); }
  void add_slots(std::size_t count) { nodes_.resize(nodes_.size() + count); }

  // Makes room for an event in every slot, in any layout: nothing but `add_slots` allocates then, where no event is
  // removed. May throw; a second call goes on.
  void make_room() {
    static_assert(!kRemovable, "copies of removed events take room of their own");
    front_.make_room(nodes_.size());
    const double most =
        std::max(most_buckets(nodes_.size()), most_buckets(std::min<std::size_t>(nodes_.size(), kShort - 1)));
    heads_.reserve(static_cast<std::size_t>(most) + 1);
  }

  // The earliest event; one whose time bits are all ones where the queue is empty.
  const Event& top() const {
    const Event& sorted = sorted_[first_];
    return front_.empty() || earlier(sorted, front_.top()) ? sorted : front_.top();
  }
  std::uint32_t top_slot() const { return top().slot(); }

  __attribute__((always_inline)) void take() {
    const Event& earliest = top();
    nodes_[earliest.slot()].next = kIdle;
    --size_;
    if (&earliest == &sorted_[first_]) {
      ++first_;
    } else {
      front_.take();
    }
    if constexpr (kRemovable) {
      pass_removed();
    }
    if (first_ == last_ && front_.empty() && size_ > 0) {
      refill();
    }
  }

  // Removes the event of a slot that has one.
  void remove(std::uint32_t slot) {
    static_assert(kRemovable);
    Node& node = nodes_[slot];
    const double place = (node.event.time() - origin_) * scale_;
    if (place < static_cast<double>(current_)) {
      ++n_removed_;
    } else if (place < static_cast<double>(n_buckets_)) {
      (node.previous == kNil ? head(static_cast<std::int64_t>(place)) : nodes_[node.previous].next) = node.next;
      if (node.next < kNil) {
        nodes_[node.next].previous = node.previous;
      }
    }
    node.next = kIdle;
    --size_;
    if (n_removed_ > 64 + 2 * size_) {
      lay_out_again();
      return;
    }
    pass_removed();
    if (first_ == last_ && front_.empty() && size_ > 0) {
      refill();
    }
  }

  // After `take`: nothing else has the time of the event taken.
  bool was_alone(const Event& taken) const { return top().time_bits > taken.time_bits; }

  // Slots whose events are due soon, in about the order of their times, until `visit` returns false.
  template <class Visit>
  void visit_soon(Visit visit) {
    for (std::size_t i = first_; i < last_; ++i) {
      if (!visit(sorted_[i].slot())) {
        return;
      }
    }
    int left = kSoon;
    for (std::int64_t bucket = current_; bucket < std::min(fetched_, n_buckets_); ++bucket) {
      for (std::uint32_t slot = head(bucket); slot < kNil; slot = nodes_[slot].next) {
        if (left-- == 0 || !visit(slot)) {
          return;
        }
      }
    }
  }

  // The event of a slot that has none.
  __attribute__((always_inline)) void put(const Event event) {
    if (size_++ == 0) {
      put_alone(event);
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
    Node& node = write(event);
    if (place < static_cast<double>(n_buckets_)) {
      chain(node, event.slot(), head(static_cast<std::int64_t>(place)));
    } else {
      node.next = kNil;
    }
  }

  // From now on, until `lay_out_again` or the first `take`, `top` is right about events at time 0 only: it may miss
  // others. So many can be put at the cost of a store each.
  void gather() {
    gathering_ = true;
    origin_ = 0.0;
    scale_ = std::numeric_limits<double>::max();
    current_ = n_buckets_ = 1;
    grow_size_ = std::numeric_limits<std::size_t>::max();
  }

  // Lays the buckets out anew; worth a call after many `put` in a row.
  __attribute__((noinline)) void lay_out_again() {
    front_.clear();
    clear_sorted();
    lay_out();
    if (front_.empty() && size_ > 0) {
      refill();
    }
  }

  void clear() {
    for (Node& node : nodes_) {
      node.next = kIdle;
    }
    front_.clear();
    clear_sorted();
    size_ = 0;
    n_removed_ = 0;
  }

 private:
  static constexpr std::uint32_t kNil = 0xFFFFFFF0u;   // pending: the end of a bucket, or in none
  static constexpr std::uint32_t kIdle = 0xFFFFFFF1u;  // no event
  static constexpr double kPerBucket = 4.0;
  static constexpr std::size_t kWanted = 10;  // events that are sorted at a time, at least
  static constexpr std::int64_t kAhead = 64;  // buckets that are fetched at a time
  static constexpr int kSoon = 64;            // events behind the sorted ones that are due soon
  static constexpr std::size_t kFew = 3;      // chains so few are waited for when they are due
  static constexpr std::size_t kSmall = 24;   // so few events are left to the heap
  static constexpr std::size_t kShort = 4096;
  static constexpr std::size_t kSample = 64;  // times looked at for a new layout

  struct alignas(64) Node {
    Event event;
    std::uint32_t next = kIdle;
    std::uint32_t previous = kNil;  // kRemovable: the one before it in its bucket; kNil where it is the first
    Payload payload;
  };

  std::uint32_t& head(std::int64_t bucket) { return heads_[static_cast<std::size_t>(bucket)]; }

  // Field by field, from registers: the event was not written as 16 bytes, and reading it as such would stall.
  Node& write(const Event event) {
    Node& node = nodes_[event.slot()];
    node.event.time_bits = event.time_bits;
    node.event.order = event.order;
    return node;
  }

  // Puts the node at the begin of a bucket.
  __attribute__((always_inline)) void chain(Node& node, std::uint32_t slot, std::uint32_t& first) {
    node.next = first;
    if constexpr (kRemovable) {
      node.previous = kNil;
      if (first < kNil) {
        nodes_[first].previous = slot;
      }
    }
    first = slot;
  }

  // Takes copies of removed events away, until the earliest event is one that happens.
  void pass_removed() {
    for (;;) {
      const Event& earliest = top();
      if (earliest.time_bits == kNoEvent.time_bits) {
        return;
      }
      const Node& node = nodes_[earliest.slot()];
      if (node.next != kIdle && node.event.order == earliest.order) {
        return;
      }
      n_removed_ -= n_removed_ > 0 ? 1 : 0;
      if (&earliest == &sorted_[first_]) {
        ++first_;
      } else {
        front_.pop();
      }
    }
  }

  // With no other event there are no buckets, and all that comes next is the near future.
  __attribute__((noinline)) void put_alone(const Event event) {
    if (!gathering_) {
      origin_ = 0.0;
      scale_ = 0.0;
      current_ = n_buckets_ = 1;
    }
    put_front(event);
  }

  __attribute__((noinline)) void put_front(const Event event) {
    write(event).next = kNil;
    front_.put(event);
    if (++near_puts_ > near_limit_) {
      lay_out_again();
    }
  }

  void clear_sorted() {
    first_ = last_ = 0;
    sorted_[0] = kNoEvent;
  }

  // Sorts the events of the next buckets, or leaves them to the heap where they are many.
  __attribute__((noinline)) void refill() {
    Event picked[kMostRanked];
    std::size_t n = 0;
    while (n == 0 && front_.empty()) {
      for (; n < kWanted && current_ < n_buckets_; ++current_) {
        if (current_ == fetched_) {
          fetch_ahead();
        }
        for (std::uint32_t slot = head(current_); slot < kNil;) {
          const Node& node = nodes_[slot];
          slot = node.next;
          if (n < kMostRanked) {
            picked[n++] = node.event;
          } else {
            near_(node.payload);
            front_.put(node.event);
          }
        }
        head(current_) = kNil;
      }
      if (n == 0) {
        lay_out();
      }
    }
    sort_events(rank_, n, [&picked](std::size_t i) { return picked[i]; }, sorted_);
    sorted_[n] = kNoEvent;
    first_ = 0;
    last_ = n;
  }

  // Fetches what the next buckets hold, a step along all their chains at a time.
  void fetch_ahead() {
    std::uint32_t slot[kAhead];
    std::size_t n = 0;
    for (const std::int64_t end = std::min(fetched_ + kAhead, n_buckets_); fetched_ < end; ++fetched_) {
      slot[n] = head(fetched_);
      n += slot[n] < kNil ? 1 : 0;
    }
    while (n > kFew) {
      for (std::size_t i = 0; i < n; ++i) {
        __builtin_prefetch(&nodes_[slot[i]]);
      }
      std::size_t longer = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const Node& node = nodes_[slot[i]];
        near_(node.payload);
        slot[longer] = node.next;
        longer += node.next < kNil ? 1 : 0;
      }
      n = longer;
    }
  }

  // Chooses the buckets, and puts into them what falls inside of all that is pending. Nothing may be sorted or in the
  // heap.
  void lay_out() {
    gathering_ = false;
    current_ = 0;
    n_buckets_ = 0;
    fetched_ = 0;
    origin_ = kInfinity;
    double sample[kSample];
    std::size_t n = 0;
    const std::size_t stride = std::max<std::size_t>(1, nodes_.size() / kSample);
    std::size_t due = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].next == kIdle) {
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
      const double most = most_buckets(size_);
      const double wanted = layouts_ahead(size_) * (*std::max_element(sample + quarter, sample + n) - origin_) / width;
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
      if (node.next == kIdle) {
        continue;
      }
      node.next = kNil;
      const double place = (node.event.time() - origin_) * scale_;
      if (scale_ == 0.0) {
        front_.put(node.event);
      } else if (place < static_cast<double>(n_buckets_)) {
        chain(node, static_cast<std::uint32_t>(i), head(static_cast<std::int64_t>(place)));
      }
    }
    if (scale_ == 0.0) {
      current_ = 1;
    }
    n_removed_ = 0;
    near_puts_ = 0;
    near_limit_ = 64 + nodes_.size();
    grow_size_ = 64 + 4 * size_;
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // Few buckets stay in the cache, so a short queue is laid out for longer.
  static double layouts_ahead(std::size_t size) { return size < kShort ? 4.0 : 1.0; }
  static double most_buckets(std::size_t size) {
    return layouts_ahead(size) * 4.0 * static_cast<double>(size) / kPerBucket + 16.0;
  }

  Near near_;
  RankTimes rank_;
  Event sorted_[kMostRanked + 1] = {kNoEvent};  // from first_ to last_, and kNoEvent after them
  std::size_t first_ = 0, last_ = 0;
  EventHeap front_;
  LargeVector<Node> nodes_{1};  // slot 0 is always there
  LargeVector<std::uint32_t> heads_;
  std::size_t size_ = 0;
  bool gathering_ = false;  // since `gather`: there is no layout yet
  std::int64_t n_buckets_ = 1;
  std::int64_t current_ = 1;     // the first bucket that was not emptied,
  std::int64_t fetched_ = 0;     // and the first that was not fetched
  std::size_t near_puts_ = 0;    // events put into the heap since the layout,
  std::size_t n_removed_ = 0;    // copies of removed events, at most
  std::size_t near_limit_ = 64;  // and how many may be before it is made anew
  std::size_t grow_size_ = 64;   // so too when the queue has grown beyond this
  double origin_ = 0.0;
  double scale_ = 0.0;  // buckets per unit of time
};

}  // namespace fedbuff
