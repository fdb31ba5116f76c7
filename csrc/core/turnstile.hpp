// Arrivals from many threads, settled one turn after the other in the order of their tickets.
//
// A thread that comes when nobody is before it takes its turn at once. Otherwise it stands in line, and helps with the
// parts of the turn that is being taken. Whoever finds the line's first arrival there takes the next turn, for as many
// of those that follow without a gap as can be settled together; a thread whose arrival was settled with another's
// leaves without the lock. Small models are settled under the lock.
//
// A fork's child that was made while threads of its parent were inside, who are not there, gets Forked from every call.
//
// A turn may be shorter than waking a thread, so who waits looks first, giving the core to others, and sleeps later.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>

#include "fedbuff/fedbuff.h"
#include "parts.hpp"
#include "waiting.hpp"

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
  enum Stage { InLine, InTurn, Settled };
  std::atomic<Stage> stage{InLine};  // Settled: whoever took the turn does not look at it any more
};

// Thrown where a lock, and what it guards, stayed with another process.
struct Forked {};

class Turnstile {
 public:
  using Lock = std::unique_lock<SpinLock>;
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
  Lock lock() { return lock_without(busy_); }

  // The lock, at a time when `phase`, which is written with it, is not true. Helps while it waits.
  Lock lock_without(const bool& phase) {
    Lock lock = enter();
    if (phase) {
      const Present present(n_present_);
      do {
        const std::uint64_t seen = bell_.count();
        lock.unlock();
        wait(seen, [] { return false; });
        lock.lock();
      } while (phase);
    }
    return lock;
  }
  bool closed() const { return closed_; }  // with the lock

  // Whether it was made before a fork, and used by threads that are not in this process.
  bool is_lost() {
    const std::uint32_t now = n_forks();
    if (n_forks_.load(std::memory_order_relaxed) != now) {
      if (mutex_.is_held() || busy_ || n_present_.load(std::memory_order_relaxed) > 0) {
        return true;
      }
      n_forks_.store(now, std::memory_order_relaxed);
    }
    return false;
  }

  fb_status take_ticket(std::int64_t* ticket_out) {
    const Lock held = enter();
    if (closed_) {
      return FB_ERR_CLOSED;
    }
    line_.emplace_back();
    *ticket_out = served_ + static_cast<std::int64_t>(line_.size()) - 1;
    return FB_OK;
  }

  fb_status cancel_ticket(std::int64_t ticket) {
    const Lock held = enter();
    Place* place = find(ticket);
    if (place == nullptr) {
      return FB_ERR_TICKET;
    }
    place->cancelled = true;
    drop_cancelled();
    bell_.ring();
    return FB_OK;
  }

  // Returns when the arrival was settled, or when it will never be.
  fb_status pass(Sink& sink, Arrival& arrival) {
    const std::int64_t ticket = arrival.ticket;
    Lock lock = enter();
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
    const Present present(n_present_);
    const auto settled = [&] { return arrival.stage.load(std::memory_order_acquire) == Arrival::Settled; };
    while (!settled()) {
      if (closed_ && arrival.stage == Arrival::InLine) {
        return FB_ERR_CLOSED;  // nobody looks at the line any more
      }
      if (!busy_ && line_.front().arrival != nullptr) {
        take_turn(sink, lock);
        continue;
      }
      const std::uint64_t seen = bell_.count();
      lock.unlock();
      wait(seen, settled);
      if (settled()) {
        break;
      }
      lock.lock();
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
    const bool anyone = n_present_ > 0;
    const bool hosted = executor_.run != nullptr;
    lock.unlock();
    if (anyone) {
      bell_.ring();
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
    const Lock held = enter();
    closed_ = true;
    bell_.ring();
  }

 private:
  Lock enter() {
    if (n_forks_.load(std::memory_order_relaxed) != n_forks() && is_lost()) {
      throw Forked();
    }
    return Lock(mutex_);
  }

  struct Place {
    Arrival* arrival = nullptr;  // null: not there yet
    bool cancelled = false;
  };

  // Counts a thread that is to be told of changes. It is counted before it gives up the lock.
  class Present {
   public:
    explicit Present(std::atomic<int>& count) : count_(count) { count_.fetch_add(1, std::memory_order_relaxed); }
    ~Present() { count_.fetch_sub(1, std::memory_order_relaxed); }
    Present(const Present&) = delete;
    Present& operator=(const Present&) = delete;

   private:
    std::atomic<int>& count_;
  };

  // Until something changed, or enough() is true. Without the lock; with what there is to do.
  template <class Enough>
  void wait(std::uint64_t seen, Enough enough) {
    for (Patience patience; bell_.count() == seen && !enough();) {
      if (parts_.is_open()) {
        parts_.help();
        patience = {};
      } else if (!patience.lasts()) {
        return bell_.sleep(seen);
      }
    }
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
      if (together[i]->status == FB_ERR_SHORT_TABLE && together[i]->ticket != FB_NO_TICKET) {
        line_.front().arrival = nullptr;  // settled alone: its ticket stays good
      } else {
        line_.pop_front();
        ++served_;
      }
      together[i]->stage.store(Arrival::Settled, std::memory_order_release);
    }
    end_turn();
  }

  void end_turn() {
    drop_cancelled();
    busy_ = false;
    if (n_present_ > 0) {
      bell_.ring();
    }
  }

  std::atomic<std::uint32_t> n_forks_{n_forks()};
  SpinLock mutex_;
  Bell bell_;                      // rings when a turn ends or a pass opens, and when the line changes
  std::atomic<int> n_present_{0};  // who hears it
  Parts parts_;
  fb_executor executor_{};
  std::deque<Place> line_;   // of the tickets served_, served_ + 1, ...
  std::int64_t served_ = 0;  // tickets that are used up
  bool busy_ = false;        // a turn is being taken
  bool closed_ = false;
};

}  // namespace fedbuff
