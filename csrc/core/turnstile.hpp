// Arrivals from many threads, settled one turn after the other in the order of their tickets.
//
// A thread that comes when nobody is before it takes its turn at once. Otherwise it stands in line, and helps with the
// parts of the turn that is being taken. Whoever finds the line's first arrival there takes the next turn, for as many
// of those that follow without a gap as can be settled together. Small models are settled under the lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>

#include "fedbuff/fedbuff.h"
#include "parts.hpp"

namespace fedbuff {

// One delta on its way in, and what became of it.
struct Arrival {
  const void* delta;
  fb_dtype dtype;
  std::int64_t version;
  double e;
  std::int64_t ticket = FB_NO_TICKET;
  fb_status status = FB_OK;
  std::int32_t outcome = FB_ADDED;
  enum { InLine, InTurn, Settled } stage = InLine;
};

class Turnstile {
 public:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::size_t kMostTogether = 16;

  // What settles arrivals. Called with the lock, which run() gives up for the time of a pass.
  class Sink {
   public:
    // Settles the first of n arrivals, and those after it that go with it; how many. May throw std::bad_alloc before
    // anything has changed.
    virtual std::size_t settle(Lock& lock, Arrival* const* arrival, std::size_t n) = 0;

   protected:
    ~Sink() = default;
  };

  // The lock, between two turns.
  Lock lock() const {
    Lock lock(mutex_);
    while (busy_) {
      wait(lock);
    }
    return lock;
  }
  bool closed() const { return closed_; }  // with the lock

  fb_status take_ticket(std::int64_t* ticket_out) {
    const Lock held(mutex_);
    if (closed_) {
      return FB_ERR_CLOSED;
    }
    line_.emplace_back();
    *ticket_out = served_ + static_cast<std::int64_t>(line_.size()) - 1;
    return FB_OK;
  }

  fb_status cancel_ticket(std::int64_t ticket) {
    const Lock held(mutex_);
    Place* place = find(ticket);
    if (place == nullptr) {
      return FB_ERR_TICKET;
    }
    place->cancelled = true;
    drop_cancelled();
    changed_.notify_all();
    return FB_OK;
  }

  // Returns when the arrival was settled, or when it will never be.
  fb_status pass(Sink& sink, Arrival& arrival) {
    const std::int64_t ticket = arrival.ticket;
    Lock lock(mutex_);
    if (closed_) {
      return FB_ERR_CLOSED;
    }
    if (ticket == FB_NO_TICKET && line_.empty() && !busy_) {
      Arrival* const alone = &arrival;
      busy_ = true;
      ++served_;
      settle(sink, lock, &alone, 1);
      end_turn();
      return arrival.status;
    }
    if (ticket == FB_NO_TICKET) {
      line_.push_back({&arrival, false});
    } else {
      Place* place = find(ticket);
      if (place == nullptr) {
        return FB_ERR_TICKET;
      }
      place->arrival = &arrival;
    }
    while (arrival.stage != Arrival::Settled) {
      if (closed_ && arrival.stage == Arrival::InLine) {
        return FB_ERR_CLOSED;  // nobody looks at the line any more
      }
      if (!busy_ && line_.front().arrival != nullptr) {
        take_turn(sink, lock);
      } else if (busy_ && parts_.is_open()) {
        lock.unlock();
        parts_.help();
        lock.lock();
      } else {
        wait(lock);
      }
    }
    return arrival.status;
  }

  // From inside a turn: work(0) .. work(n - 1), by whoever waits and by the executor. `all` as in Parts::finish.
  template <class Work>
  fb_status run(Lock& lock, std::int64_t n, bool all, Work work) {
    if (n == 1) {
      work(0);
      return FB_OK;
    }
    parts_.open(n, work);
    const bool anyone = n_waiting_ > 0;
    const bool hosted = executor_.run != nullptr;
    lock.unlock();
    if (anyone) {
      changed_.notify_all();
    }
    const fb_status status = parts_.finish(hosted ? &executor_ : nullptr, all);
    lock.lock();
    return status;
  }

  void set_executor(const fb_executor* executor) {
    const Lock held = lock();
    executor_ = executor == nullptr ? fb_executor{} : *executor;
  }

  void close() {
    const Lock held(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  struct Place {
    Arrival* arrival = nullptr;  // null: not there yet
    bool cancelled = false;
  };

  void wait(Lock& lock) const {
    ++n_waiting_;
    changed_.wait(lock);
    --n_waiting_;
  }

  // The place of a ticket that was given out and not used.
  Place* find(std::int64_t ticket) {
    if (ticket < served_ || ticket - served_ >= static_cast<std::int64_t>(line_.size())) {
      return nullptr;
    }
    Place& place = line_[static_cast<std::size_t>(ticket - served_)];
    return place.arrival == nullptr && !place.cancelled ? &place : nullptr;
  }

  void drop_cancelled() {
    while (!line_.empty() && line_.front().cancelled) {
      line_.pop_front();
      ++served_;
    }
  }

  std::size_t settle(Sink& sink, Lock& lock, Arrival* const* arrival, std::size_t n) {
    try {
      return sink.settle(lock, arrival, n);
    } catch (const std::bad_alloc&) {
      arrival[0]->status = FB_ERR_MEMORY;
      return 1;
    }
  }

  void take_turn(Sink& sink, Lock& lock) {
    busy_ = true;
    Arrival* together[kMostTogether];
    std::size_t n = 0;
    while (n < kMostTogether && n < line_.size() && line_[n].arrival != nullptr) {
      together[n] = line_[n].arrival;
      together[n++]->stage = Arrival::InTurn;
    }
    const std::size_t settled = settle(sink, lock, together, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i >= settled) {
        together[i]->stage = Arrival::InLine;
        continue;
      }
      together[i]->stage = Arrival::Settled;
      if (together[i]->status == FB_ERR_SHORT_TABLE && together[i]->ticket != FB_NO_TICKET) {
        line_.front().arrival = nullptr;  // settled alone: its ticket stays good
      } else {
        line_.pop_front();
        ++served_;
      }
    }
    end_turn();
  }

  void end_turn() {
    drop_cancelled();
    busy_ = false;
    if (n_waiting_ > 0) {
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Parts parts_;
  fb_executor executor_{};
  std::deque<Place> line_;   // of the tickets served_, served_ + 1, ...
  std::int64_t served_ = 0;  // tickets that are used up
  mutable std::int64_t n_waiting_ = 0;
  bool busy_ = false;  // a turn is being taken
  bool closed_ = false;
};

}  // namespace fedbuff
