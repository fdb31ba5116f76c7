// EventTree: what EventQueue does, for up to 256 slots.
//
// A tournament over the slots' times: sixteen rows of sixteen, and a row of their minima. An event that follows another
// in its slot is one way up (two minima) and one down (who has it), without a branch that depends on the times. Events
// that share the earliest time move to a heap, which knows the order of creation; so ties cost no more than the heap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "event_queue.hpp"
#include "simd_level.hpp"

namespace fedbuff {

struct alignas(64) TimeTree {
  static constexpr std::uint32_t kRow = 16;
  static constexpr std::uint32_t kMaxSlots = kRow * kRow;
  double time[kMaxSlots];  // infinity where there is nothing
  double least[kRow];      // of each row

  struct Earliest {
    double time;
    std::uint32_t slot;
    std::uint32_t tied;  // not zero: others have that time too
  };
  // Gives the slot another time, and finds the earliest of all.
  using Replace = Earliest (*)(TimeTree& tree, std::uint32_t slot, double time);
};

TimeTree::Replace time_tree_replace(SimdLevel level);

template <class Payload>
class EventTree {
 public:
  explicit EventTree(SimdLevel level) : replace_(time_tree_replace(level)) { clear(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Payload& payload(std::uint32_t slot) { return nodes_[slot].payload; }
  const Payload& payload(std::uint32_t slot) const { return nodes_[slot].payload; }
  std::size_t n_slots() const { return nodes_.size(); }

  void add_slots(std::size_t count) { nodes_.resize(nodes_.size() + count); }

  // The earliest event; one at infinity where there is none before. It is put together here, so that its time and slot
  // need not wait for its order.
  FB_ALWAYS_INLINE Event top() {
    if (hole_ != kNoHole) {
      close();
    }
    return top_in_heap_ ? heap_.top() : Event::at(earliest_.time, nodes_[earliest_.slot].order);
  }
  std::uint32_t top_slot() const { return top_in_heap_ ? heap_.top().slot() : earliest_.slot; }

  // Removes the earliest event; its place in the tree stays open for the next `put`.
  FB_ALWAYS_INLINE void take() {
    --size_;
    if (top_in_heap_) {
      heap_.pop();
      heap_time_ = heap_.empty() ? kInfinity : heap_.top().time();
      choose();
    } else {
      hole_ = earliest_.slot;
    }
  }

  // After `take`: nothing else has the time of the event taken.
  bool was_alone(const Event& taken) { return hole_ != kNoHole || top().time_bits > taken.time_bits; }

  // The event of a slot that has none.
  FB_ALWAYS_INLINE void put(const Event event) {
    if (hole_ != kNoHole && hole_ != event.slot()) {
      close();
    }
    hole_ = kNoHole;
    ++size_;
    nodes_[event.slot()].order = event.order;
    earliest_ = replace_(tree_, event.slot(), event.time());
    choose();
  }

  void lay_out_again() {}

  void clear() {
    std::fill(std::begin(tree_.time), std::end(tree_.time), kInfinity);
    std::fill(std::begin(tree_.least), std::end(tree_.least), kInfinity);
    heap_.clear();
    heap_time_ = kInfinity;
    size_ = 0;
    hole_ = kNoHole;
    earliest_ = {kInfinity, 0, 0};
    choose();
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr std::uint32_t kNoHole = ~std::uint32_t{0};

  struct Node {
    std::uint64_t order = 0;
    Payload payload;
  };

  __attribute__((noinline)) void close() {
    const std::uint32_t hole = hole_;
    hole_ = kNoHole;
    earliest_ = replace_(tree_, hole, kInfinity);
    choose();
  }

  FB_ALWAYS_INLINE void choose() {
    top_in_heap_ = false;
    if (__builtin_expect(earliest_.tied != 0 || !(earliest_.time < heap_time_), 0)) {
      choose_from_heap();
    }
  }

  // What shares the earliest time, in the tree or with the heap, is the heap's to order.
  __attribute__((noinline)) void choose_from_heap() {
    const double time = earliest_.time;
    if (time < kInfinity && (heap_.empty() || time <= heap_.top().time())) {
      do {
        heap_.put(Event::at(time, nodes_[earliest_.slot].order));
        earliest_ = replace_(tree_, earliest_.slot, kInfinity);
      } while (earliest_.time == time);
    }
    top_in_heap_ = !heap_.empty();
    heap_time_ = top_in_heap_ ? heap_.top().time() : kInfinity;
  }

  TimeTree::Replace replace_;
  TimeTree tree_;
  TimeTree::Earliest earliest_{};  // in the tree; with a hole open, before it
  double heap_time_ = kInfinity;   // the earliest in the heap
  bool top_in_heap_ = false;
  std::uint32_t hole_ = kNoHole;
  std::size_t size_ = 0;
  EventHeap heap_;
  std::vector<Node> nodes_{1};  // slot 0 is always there
};

}  // namespace fedbuff
