// The event queue for others' event loops: any number of events, each with a number of the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/dispatch.hpp"
#include "schedule/event_queue.hpp"
#include "fedbuff/fedbuff.h"

// EventQueue holds one event per slot; here slots are given out and taken back. A cancelled event keeps its slot until
// it is the earliest, so that cancelling needs no memory; the earliest one is never a cancelled one.
struct fb_queue {
  std::int64_t size() const { return static_cast<std::int64_t>(events_.size() - n_cancelled_); }

  // Throws std::bad_alloc, and then nothing has changed. The event is taken as valid.
  fb_status push(double time, std::int64_t item, std::int32_t kind, std::int64_t* ticket_out = nullptr) {
    if (number_ == fedbuff::Event::kMaxNumber || (idle_.empty() && !grow())) {
      return FB_ERR_OVERFLOW;
    }
    const std::uint32_t slot = idle_.back();
    idle_.pop_back();
    events_.payload(slot) = {item, number_};
    if (ticket_out != nullptr) {
      *ticket_out = static_cast<std::int64_t>(number_ << fedbuff::Event::kSlotBits | slot);
    }
    // Times are compared by their bits: minus zero becomes zero.
    events_.put(fedbuff::Event::make(time + 0.0, static_cast<std::uint64_t>(kind), number_++, slot));
    return FB_OK;
  }

  fb_status peek(fb_event& event_out) const {
    if (events_.empty()) {
      return FB_ERR_EMPTY;
    }
    const fedbuff::Event& top = events_.top();
    event_out.time = top.time();
    event_out.kind = top.kind();
    event_out.item = events_.payload(top.slot()).item;
    return FB_OK;
  }

  fb_status pop(fb_event& event_out) {
    if (const fb_status status = peek(event_out); status != FB_OK) {
      return status;
    }
    take();
    pass_cancelled();
    return FB_OK;
  }

  fb_status cancel(std::int64_t ticket) {
    const auto number = static_cast<std::uint64_t>(ticket) >> fedbuff::Event::kSlotBits;
    const auto slot = static_cast<std::uint32_t>(static_cast<std::uint64_t>(ticket) & (fedbuff::Event::kMaxSlots - 1));
    if (ticket < 0 || slot >= n_slots_ || events_.payload(slot).number != number) {
      return FB_ERR_TICKET;
    }
    events_.payload(slot).number = kNone;
    ++n_cancelled_;
    pass_cancelled();
    return FB_OK;
  }

  void clear() {
    events_.clear();
    idle_.clear();
    add_idle(0);
    for (std::uint32_t slot = 0; slot < n_slots_; ++slot) {
      events_.payload(slot).number = kNone;
    }
    n_cancelled_ = 0;
    number_ = 0;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Payload {
    std::int64_t item = 0;
    std::uint64_t number = kNone;  // of the slot's event; none where that was cancelled, or there is none
  };
  struct Near {
    void operator()(const Payload&) const {}
  };

  void take() {
    const std::uint32_t slot = events_.top_slot();
    events_.payload(slot).number = kNone;
    idle_.push_back(slot);
    events_.take();
  }

  void pass_cancelled() {
    while (n_cancelled_ > 0 && events_.payload(events_.top_slot()).number == kNone) {
      take();
      --n_cancelled_;
    }
  }

  // More slots; false where there are none left.
  bool grow() {
    const std::size_t before = n_slots_;
    if (before == fedbuff::Event::kMaxSlots) {
      return false;
    }
    const std::size_t wanted = before == 0 ? 64 : 2 * before;
    idle_.reserve(wanted);
    events_.add_slots(wanted - events_.n_slots());
    events_.make_room();  // so that a push fails here or not at all, and a pop never
    n_slots_ = wanted;
    add_idle(before);
    return true;
  }

  // The slots from `first` on; the lowest is used first.
  void add_idle(std::size_t first) {
    for (std::size_t slot = n_slots_; slot > first; --slot) {
      idle_.push_back(static_cast<std::uint32_t>(slot - 1));
    }
  }

  fedbuff::EventQueue<Payload, Near> events_{fedbuff::kernels().schedule};
  std::vector<std::uint32_t> idle_;  // room for all slots, so that giving back cannot fail
  std::uint64_t number_ = 0;         // of the next event, in the order of creation
  std::size_t n_slots_ = 0;
  std::size_t n_cancelled_ = 0;  // that are still among the events
};
