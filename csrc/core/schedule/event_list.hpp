// EventList: what EventQueue does, for some hundred slots.
//
// The next few events lie sorted, the others as a bare row of times by slot. Taking an event is a step along the sorted
// ones: what comes next is known long before it is taken, so the processor works on several events at once. Most new
// events go into the row and cost a store; those that are due before the last sorted one are inserted. When the sorted
// ones are used up, all events before the next bound are picked out of the row and sorted by counting, both without
// a branch that depends on the times. The bound moves so that a dozen are found each time; nothing else depends on it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/kernels.hpp"
#include "schedule/event.hpp"
#include "schedule/sort_events.hpp"

namespace fedbuff {

template <class Payload>
class EventList {
 public:
  // More slots than kernels.most_listed_slots are better off in buckets: picking looks at all of them.
  explicit EventList(const ScheduleKernels& kernels) : pick_(kernels.pick_early), rank_(kernels.rank_times) {
    add_slots(1);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Payload& payload(std::uint32_t slot) { return payloads_[slot]; }
  const Payload& payload(std::uint32_t slot) const { return payloads_[slot]; }
  std::size_t n_slots() const { return payloads_.size(); }

  void add_slots(std::size_t count) {
    payloads_.resize(payloads_.size() + count);
    const std::size_t padded = (payloads_.size() + 7) / 8 * 8;
    time_.resize(padded, kInfinity);
    order_.resize(padded);
    picked_.resize(padded + 8);
    sorted_.resize(padded + 1);
  }

  // The earliest event; one at infinity where there is none.
  FB_ALWAYS_INLINE const Event& top() {
    if (__builtin_expect(head_ == tail_, 0)) {
      refill();
    }
    return sorted_[head_];
  }
  FB_ALWAYS_INLINE std::uint32_t top_slot() { return top().slot(); }

  // After `top`: removes that event.
  FB_ALWAYS_INLINE void take() {
    ++head_;
    --size_;
  }

  // After `take`: nothing else has the time of the event taken.
  FB_ALWAYS_INLINE bool was_alone(const Event& taken) { return top().time_bits > taken.time_bits; }

  // Slots whose events are due soon, in the order of their times, until `visit` returns false.
  template <class Visit>
  void visit_soon(Visit visit) const {
    for (std::size_t i = head_; i < tail_ && visit(sorted_[i].slot()); ++i) {
    }
  }

  // The event of a slot that has none.
  FB_ALWAYS_INLINE void put(const Event event) {
    ++size_;
    const double time = event.time();
    if (__builtin_expect(time < bound_, 0)) {
      insert(event);
      return;
    }
    time_[event.slot()] = time;
    order_[event.slot()] = event.order;
  }

  // Removes the event of a slot that has one.
  void remove(std::uint32_t slot) {
    --size_;
    if (time_[slot] < kInfinity) {
      time_[slot] = kInfinity;
      return;
    }
    for (std::size_t i = head_; i < tail_; ++i) {  // an event at infinity is nowhere
      if (sorted_[i].slot() == slot) {
        std::copy_backward(sorted_.begin() + static_cast<std::ptrdiff_t>(head_),
                           sorted_.begin() + static_cast<std::ptrdiff_t>(i),
                           sorted_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        ++head_;
        return;
      }
    }
  }

  void gather() {}
  void lay_out_again() {}

  void clear() {
    std::fill(time_.begin(), time_.end(), kInfinity);
    head_ = tail_ = 0;
    size_ = 0;
    bound_ = 0.0;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kWanted = 14.0;  // events that are sorted at a time

  __attribute__((noinline)) void insert(const Event event) {
    if (head_ > 0) {
      // The gap that was taken from is nearer than the end.
      std::size_t i = --head_;
      for (; i + 1 < tail_ && earlier(sorted_[i + 1], event); ++i) {
        sorted_[i] = sorted_[i + 1];
      }
      sorted_[i] = event;
      return;
    }
    std::size_t i = tail_++;
    for (; i > 0 && earlier(event, sorted_[i - 1]); --i) {
      sorted_[i] = sorted_[i - 1];
    }
    sorted_[i] = event;
  }

  // The events before the next bound, out of the row and into their order.
  __attribute__((noinline)) void refill() {
    head_ = tail_ = 0;
    sorted_[0] = Event::at(kInfinity, ~std::uint64_t{0});
    if (size_ == 0) {
      return;
    }
    double bound = bound_ + width_;
    std::size_t n = pick_(time_.data(), time_.size(), bound, picked_.data());
    if (n == 0) {
      const double first = *std::min_element(time_.begin(), time_.end());
      if (first == kInfinity) {
        return;
      }
      width_ = std::max(2.0 * width_, first - bound_);
      bound = std::max(first + width_ / 2, std::nextafter(first, kInfinity));
      n = pick_(time_.data(), time_.size(), bound, picked_.data());
    }
    bound_ = bound;
    width_ *= std::min(2.0, std::max(0.5, kWanted / static_cast<double>(n)));
    const auto picked = [this](std::size_t i) { return Event::at(time_[picked_[i]], order_[picked_[i]]); };
    sort_events(rank_, n, picked, sorted_.data());
    for (std::size_t i = 0; i < n; ++i) {
      time_[picked_[i]] = kInfinity;
    }
    tail_ = n;
  }

  decltype(ScheduleKernels::pick_early) pick_;
  RankTimes rank_;
  std::vector<Payload> payloads_;
  std::vector<double> time_;  // by slot; infinity where it has no event, or a sorted one
  std::vector<std::uint64_t> order_;
  std::vector<std::uint32_t> picked_;
  std::vector<Event> sorted_;  // from head_ to tail_: all events before bound_
  std::size_t head_ = 0, tail_ = 0;
  std::size_t size_ = 0;
  double bound_ = 0.0;
  double width_ = 0.0;
};

}  // namespace fedbuff
