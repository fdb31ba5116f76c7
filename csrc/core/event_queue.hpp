// A queue of events in the order (time, kind, number of creation): a 4-ary implicit heap of 16-byte events.
//
// The four children of an event share a cache line. An event is two integers: the bits of its time (times are >= +0, and
// such doubles order as their bits) and kind, number and slot in one word; so one 128-bit comparison decides, ties
// included, without a branch. `take` walks the hole of the earliest event down to a leaf and leaves it open: the way down
// does not depend on what comes next, so the processor overlaps it with drawing the next delay, and `put` fills it.
//
// Limits: kinds < 4, numbers < 2^36, slots < 2^26. Cost: take O(log n), put O(log n) and a few moves on average.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace fedbuff {

struct Event {
  std::uint64_t time_bits;
  std::uint64_t order;  // kind << 62 | number << 26 | slot

  static constexpr int kSlotBits = 26;
  static constexpr int kNumberBits = 36;
  static constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << kSlotBits;
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << kNumberBits;

  static Event make(double time, std::uint64_t kind, std::uint64_t number, std::uint64_t slot) {
    Event event;
    std::memcpy(&event.time_bits, &time, sizeof time);
    event.order = kind << 62 | number << kSlotBits | slot;
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

class EventQueue {
 public:
  EventQueue() { reserve(60); }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() { std::free(block_); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The earliest event; one whose time bits are all ones where the queue is empty.
  const Event& top() const { return heap_[0]; }

  // The earliest event and its four children, one of which comes next; past the end, slots of all ones.
  const Event* first_five() const { return heap_; }

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
      const std::size_t a = earlier(child[1], child[0]) ? 1 : 0;
      const std::size_t b = earlier(child[3], child[2]) ? 3 : 2;
      const std::size_t best = earlier(child[b], child[a]) ? b : a;
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

}  // namespace fedbuff
