// Arrivals from many threads, settled one batch after the other in the order of their tickets.
//
// A thread that submits to an empty queue settles its arrival at once. Otherwise the arrival is queued, and the thread
// works on the chunks of the batch that is being settled. A thread that finds no batch running, and the first arrival
// of the queue present, settles the next batch: that arrival and those that follow without a gap, as many as can be
// settled at once. A thread whose arrival was settled in the batch of another thread returns without taking the lock.
// Models of one chunk are settled under the lock.
//
// In the child of a fork that happened while threads of the parent were inside, every call throws Forked: those threads
// are not in the child.
//
// A batch may take less time than waking a thread, so threads spin and yield before they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>

#include "compiler/always_inline.hpp"
#include "fedbuff/fedbuff.h"
#include "threads/core_chunks.hpp"
#include "threads/spin_wait.hpp"

namespace fedbuff {

// A delta that was submitted, or a step, and the result.
struct Arrival {
  const void* delta = nullptr;  // null: it is made from `model`; or a step with what is there
  fb_dtype dtype;
  std::int64_t version;
  double e;
  std::int64_t ticket = FB_NO_TICKET;
  std::int64_t client = -1;
  const fb_model_upload* model = nullptr;
  const void* change = nullptr;  // of the client's state, where the rule has a control variate
  bool is_step() const { return delta == nullptr && model == nullptr; }
  fb_status status = FB_OK;
  std::int32_t outcome = FB_ADDED;
  enum Stage { Queued, InBatch, Settled };
  std::atomic<Stage> stage{Queued};  // Settled: the thread that ran the batch does not access it any more
};

// Thrown where the lock, and what it guards, stayed with another process.
struct Forked {};

class TicketQueue {
 public:
  using Lock = std::unique_lock<SpinLock>;
  static constexpr std::size_t kMaxBatch = 16;

  // What settles arrivals. Called with the lock, which run() releases while chunks are worked on.
  class Sink {
   public:
    // Settles the first of n arrivals, and as many of those after it as go with it; returns how many. May throw
    // std::bad_alloc before anything has changed.
    virtual std::size_t settle(Lock& lock, Arrival* const* arrival, std::size_t n) = 0;

   protected:
    ~Sink() = default;
  };

  // The lock, while no batch is running.
  Lock lock() { return lock_without(busy_); }

  // The lock, while `phase`, which is written under the lock, is false. Works on chunks while it waits.
  Lock lock_without(const bool& phase) {
    Lock lock = enter();
    if (phase) {
      const WaiterCount waiter(n_waiting_);
      do {
        const std::uint64_t seen = changed_.count();
        lock.unlock();
        wait(seen, [] { return false; });
        lock.lock();
      } while (phase);
    }
    return lock;
  }
  bool closed() const { return closed_; }  // call it with the lock

  // Whether it was made before a fork, and used by threads that are not in this process.
  bool is_lost() {
    const std::uint32_t now = n_forks();
    if (n_forks_.load(std::memory_order_relaxed) != now) {
      if (mutex_.is_held() || busy_ || n_waiting_.load(std::memory_order_relaxed) > 0) {
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
    entries_.emplace_back();
    *ticket_out = served_ + static_cast<std::int64_t>(entries_.size()) - 1;
    return FB_OK;
  }

  fb_status cancel_ticket(std::int64_t ticket) {
    const Lock held = enter();
    Entry* entry = find(ticket);
    if (entry == nullptr) {
      return FB_ERR_TICKET;
    }
    entry->cancelled = true;
    drop_cancelled();
    changed_.notify_all();
    return FB_OK;
  }

  // Returns when the arrival was settled, or when it cannot be any more. Errors: that of the arrival, FB_ERR_CLOSED, or
  // FB_ERR_TICKET for a ticket that was not given out or is used.
  fb_status submit(Sink& sink, Arrival& arrival) {
    const std::int64_t ticket = arrival.ticket;
    Lock lock = enter();
    if (closed_) {
      return FB_ERR_CLOSED;
    }
    if (ticket == FB_NO_TICKET && entries_.empty() && !busy_) {
      Arrival* const alone = &arrival;
      busy_ = true;
      ++served_;
      settle(sink, lock, &alone, 1);
      end_batch();
      return arrival.status;
    }
    if (ticket == FB_NO_TICKET) {
      entries_.push_back({&arrival, false});
    } else {
      Entry* entry = find(ticket);
      if (entry == nullptr) {
        return FB_ERR_TICKET;
      }
      entry->arrival = &arrival;
    }
    settle_up_to(sink, lock, arrival);
    return arrival.status;
  }

  // Arrivals without tickets, one after the other with none of others between them. Each has its status then. Throws
  // std::bad_alloc before anything has changed.
  void submit_all(Sink& sink, std::deque<Arrival>& arrivals) {
    Lock lock = enter();
    std::size_t n = 0;
    try {
      for (Arrival& arrival : arrivals) {
        entries_.push_back({&arrival, false});
        ++n;
      }
    } catch (const std::bad_alloc&) {
      entries_.resize(entries_.size() - n);
      throw;
    }
    if (closed_) {
      entries_.resize(entries_.size() - n);
    }
    for (Arrival& arrival : arrivals) {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      if (closed_ && arrival.stage == Arrival::Queued) {
        arrival.status = FB_ERR_CLOSED;
      } else {
        settle_up_to(sink, lock, arrival);
      }
    }
  }

  // For Sink::settle: work(0) .. work(n - 1), by this thread, the waiting threads and the executor. `all` as in
  // CoreChunks::finish.
  template <class Work>
  fb_status run(Lock& lock, std::int64_t n, bool all, Work work) {
    if (n == 1) {
      work(0);
      return FB_OK;
    }
    chunks_.open(n, work);
    const bool has_waiting = n_waiting_ > 0;
    const bool has_executor = executor_.run != nullptr;
    lock.unlock();
    if (has_waiting) {
      changed_.notify_all();
    }
    const fb_status status = chunks_.finish(has_executor ? &executor_ : nullptr, all);
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
    changed_.notify_all();
  }

 private:
  FB_ALWAYS_INLINE Lock enter() {
    if (n_forks_.load(std::memory_order_relaxed) != n_forks() && is_lost()) {
      throw Forked();
    }
    return Lock(mutex_);
  }

  struct Entry {
    Arrival* arrival = nullptr;  // null: not submitted yet
    bool cancelled = false;
  };

  // Settles batches, or waits for other threads that do, until this queued arrival is settled, or can be no more.
  void settle_up_to(Sink& sink, Lock& lock, Arrival& arrival) {
    const WaiterCount waiter(n_waiting_);
    const auto settled = [&] { return arrival.stage.load(std::memory_order_acquire) == Arrival::Settled; };
    while (!settled()) {
      if (closed_ && arrival.stage == Arrival::Queued) {
        arrival.status = FB_ERR_CLOSED;  // no thread settles queued arrivals any more
        return;
      }
      if (!busy_ && entries_.front().arrival != nullptr) {
        run_batch(sink, lock);
        continue;
      }
      const std::uint64_t seen = changed_.count();
      lock.unlock();
      wait(seen, settled);
      if (settled()) {
        return;
      }
      lock.lock();
    }
  }

  // Counts a thread that waits for notifications. It is counted before it releases the lock.
  class WaiterCount {
   public:
    explicit WaiterCount(std::atomic<int>& count) : count_(count) { count_.fetch_add(1, std::memory_order_relaxed); }
    ~WaiterCount() { count_.fetch_sub(1, std::memory_order_relaxed); }
    WaiterCount(const WaiterCount&) = delete;
    WaiterCount& operator=(const WaiterCount&) = delete;

   private:
    std::atomic<int>& count_;
  };

  // Waits without the lock until there is a notification or enough() is true, and works on chunks meanwhile.
  template <class Enough>
  void wait(std::uint64_t seen, Enough enough) {
    for (Backoff backoff; changed_.count() == seen && !enough();) {
      if (chunks_.is_open()) {
        chunks_.help();
        backoff = {};
      } else if (!backoff.pause()) {
        return changed_.sleep(seen);
      }
    }
  }

  // The entry of a ticket that was given out and not used; null where there is none.
  Entry* find(std::int64_t ticket) {
    if (ticket < served_ || ticket - served_ >= static_cast<std::int64_t>(entries_.size())) {
      return nullptr;
    }
    Entry& entry = entries_[static_cast<std::size_t>(ticket - served_)];
    return entry.arrival == nullptr && !entry.cancelled ? &entry : nullptr;
  }

  void drop_cancelled() {
    while (!entries_.empty() && entries_.front().cancelled) {
      entries_.pop_front();
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

  void run_batch(Sink& sink, Lock& lock) {
    busy_ = true;
    Arrival* batch[kMaxBatch];
    std::size_t n = 0;
    while (n < kMaxBatch && n < entries_.size() && entries_[n].arrival != nullptr) {
      batch[n] = entries_[n].arrival;
      batch[n++]->stage = Arrival::InBatch;
    }
    const std::size_t settled = settle(sink, lock, batch, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i >= settled) {
        batch[i]->stage = Arrival::Queued;
        continue;
      }
      if (batch[i]->status == FB_ERR_SHORT_TABLE && batch[i]->ticket != FB_NO_TICKET) {
        entries_.front().arrival = nullptr;  // settled alone: its ticket stays valid
      } else {
        entries_.pop_front();
        ++served_;
      }
      batch[i]->stage.store(Arrival::Settled, std::memory_order_release);
    }
    end_batch();
  }

  void end_batch() {
    drop_cancelled();
    busy_ = false;
    if (n_waiting_ > 0) {
      changed_.notify_all();
    }
  }

  std::atomic<std::uint32_t> n_forks_{n_forks()};
  SpinLock mutex_;
  EventCount changed_;             // notified when a batch ends, a pass opens or an entry changes
  std::atomic<int> n_waiting_{0};  // threads that wait for it
  CoreChunks chunks_;
  fb_executor executor_{};
  std::deque<Entry> entries_;  // of the tickets served_, served_ + 1, ...
  std::int64_t served_ = 0;    // tickets that are used up
  bool busy_ = false;          // a batch is running
  bool closed_ = false;
};

}  // namespace fedbuff
