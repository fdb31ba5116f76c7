// Uplink: uploads that share a link; each of m transfers runs at min(1, capacity / m) of its speed alone.
//
// Processor sharing by virtual time: `work_` is what a transfer has got that has been there since the link was last
// idle, so each transfer ends at a value of it that is known when it begins. The expressions are those of
// fedbuff/backends/python/uplink.py. Cost of an event: O(log transfers). Memory: 72 bytes per slot where transfers may
// be given up, else 36.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "memory/huge_pages.hpp"
#include "schedule/event.hpp"

namespace fedbuff {

// Events of slots, at most one of each; the earliest is on top, and any can be removed. A binary heap.
class SlotHeap {
 public:
  void resize(std::size_t n_slots) { place_.resize(n_slots); }
  bool empty() const { return heap_.empty(); }
  const Event& top() const { return heap_.front(); }

  void put(const Event& event) {
    heap_.push_back(event);
    rise(heap_.size() - 1, event);
  }
  void remove(std::uint32_t slot) {
    const std::size_t at = place_[slot];
    const Event last = heap_.back();
    heap_.pop_back();
    if (at < heap_.size()) {
      rise(sink(at, last), last);
    }
  }
  void clear() { heap_.clear(); }

 private:
  void set(std::size_t at, const Event& event) {
    heap_[at] = event;
    place_[event.slot()] = static_cast<std::uint32_t>(at);
  }
  void rise(std::size_t at, const Event& event) {
    for (; at > 0 && earlier(event, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      set(at, heap_[(at - 1) / 2]);
    }
    set(at, event);
  }
  // Where the event may stand, from `at` downwards.
  std::size_t sink(std::size_t at, const Event& event) {
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      child += child + 1 < heap_.size() && earlier(heap_[child + 1], heap_[child]) ? 1 : 0;
      if (!earlier(heap_[child], event)) {
        break;
      }
      set(at, heap_[child]);
      at = child;
    }
    return at;
  }

  LargeVector<std::uint32_t> place_;  // in heap_, by slot
  std::vector<Event> heap_;
};

class Uplink {
 public:
  // `with_deadlines`: transfers may be given up. Without a capacity, infinite, no transfer joins.
  Uplink(double capacity, bool with_deadlines) : capacity_(capacity), with_deadlines_(with_deadlines) {}

  bool is_shared() const { return capacity_ < kInfinity; }
  void resize(std::size_t n_slots) {
    if (!is_shared()) {
      return;
    }
    ends_.resize(n_slots);
    if (with_deadlines_) {
      deadlines_.resize(n_slots);
    }
  }

  // A transfer that takes `size` alone begins, and is given up at the deadline.
  void join(std::uint32_t slot, double now, double size, double deadline) {
    if (active_ == 0) {
      work_ = 0.0;
      now_ = now;
    } else {
      advance(now);
    }
    ends_.put(Event::make(work_ + size, 0, joined_, slot));
    if (with_deadlines_) {
      deadlines_.put(Event::make(deadline, 0, joined_, slot));
    }
    ++joined_;
    ++active_;
    plan_next();
  }
  // The transfer of the slot ends, whatever it has got.
  void leave(std::uint32_t slot, double now) {
    remove(slot, now);
    plan_next();
  }

  // When the next transfer is complete or given up; infinite where there is none.
  double next_time() const { return std::min(next_end_, next_deadline_); }

  struct Taken {
    std::uint32_t slot;
    bool complete;
  };
  // The transfer that ends next leaves.
  Taken take() {
    const bool complete = next_end_ <= next_deadline_;
    const Event event = complete ? ends_.top() : deadlines_.top();
    remove(event.slot(), next_time());
    if (complete) {
      work_ = event.time();  // to the bit: those that end with it do so at this time
    }
    plan_next();
    return {event.slot(), complete};
  }

  void clear() {
    active_ = 0;
    ends_.clear();
    deadlines_.clear();
    plan_next();
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double speed() const {
    const auto m = static_cast<double>(active_);
    return m <= capacity_ ? 1.0 : capacity_ / m;
  }
  void advance(double now) {
    work_ += (now - now_) * speed();
    now_ = now;
  }
  void remove(std::uint32_t slot, double now) {
    advance(now);
    ends_.remove(slot);
    if (with_deadlines_) {
      deadlines_.remove(slot);
    }
    --active_;
  }
  void plan_next() {
    next_end_ = ends_.empty() ? kInfinity : now_ + std::max(ends_.top().time() - work_, 0.0) / speed();
    next_deadline_ = deadlines_.empty() ? kInfinity : deadlines_.top().time();
  }

  double capacity_;
  bool with_deadlines_;
  std::int64_t active_ = 0;
  double work_ = 0.0;
  double now_ = 0.0;          // when work_ was last brought up to date
  std::uint64_t joined_ = 0;  // transfers so far
  SlotHeap ends_;             // by the work at which they end
  SlotHeap deadlines_;        // by the time at which they are given up
  double next_end_ = kInfinity;
  double next_deadline_ = kInfinity;
};

}  // namespace fedbuff
