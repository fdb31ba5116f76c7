// Waiting for other threads: first by spinning, then by giving up the core, then by sleeping in the operating system.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace fedbuff {

// How often this process is a fork's child. What had another number when it was made may have been in the hands of
// threads that stayed with the parent.
inline std::uint32_t n_forks() {
  static std::atomic<std::uint32_t> count{0};
#if !defined(_WIN32)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });
  static_cast<void>(registered);
#endif
  return count.load(std::memory_order_relaxed);
}

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A mutex for sections of a few hundred instructions, which are shorter than a call of the operating system. Locking is
// one atomic exchange, unlocking one store. A thread that has waited for long sleeps between its tries, so that a
// holder of lower priority can run.
class SpinLock {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire);) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries % kTriesBeforeYield != 0) {
          pause_core();
        } else if (tries < kTriesBeforeSleep) {
          std::this_thread::yield();  // the holder may have lost its core
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          --tries;  // sleep again until the lock is free
        }
      }
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }
  bool is_held() const { return held_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kTriesBeforeYield = 256, kTriesBeforeSleep = 100 * kTriesBeforeYield;
  std::atomic<bool> held_{false};
};

// Exponential backoff between two looks at a condition: spinning first, then yielding the core, for 100 microseconds in
// all.
class Backoff {
 public:
  // Waits for a moment. False when the 100 microseconds are over: the caller may go to sleep, or call again.
  bool pause() {
    if (pauses_ < kPausesBeforeYield) {
      const int spins = std::min(1 << pauses_++, kMaxSpins);
      for (int i = 0; i < spins; ++i) {
        pause_core();
      }
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (pauses_ == kPausesBeforeYield) {
      ++pauses_;
      end_ = now + std::chrono::microseconds(100);
    }
    std::this_thread::yield();
    return now < end_;
  }

 private:
  static constexpr int kPausesBeforeYield = 12;
  static constexpr int kMaxSpins = 16;  // frequent loads take the cache line from the core that writes it
  int pauses_ = 0;
  std::chrono::steady_clock::time_point end_;
};

// An event count: a thread waits until the count of notifications changes, spinning for some microseconds before it
// sleeps. No notification is lost:
//   waiter:   seen = event.count(); check the condition; if it does not hold, event.wait(seen)
//   notifier: make the condition hold; event.notify_all()
class EventCount {
 public:
  std::uint64_t count() const { return count_.load(); }

  void notify_all() {
    count_.fetch_add(1);
    if (n_sleeping_.load() > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
  }

  void wait(std::uint64_t seen) {
    if (!spin(seen)) {
      sleep(seen);
    }
  }

  // wait(), for at most this long. Whether there was a notification.
  bool wait_for(std::uint64_t seen, std::chrono::seconds most) {
    if (spin(seen)) {
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    n_sleeping_.fetch_add(1);
    const bool notified = wake_.wait_for(lock, most, [&] { return count() != seen; });
    n_sleeping_.fetch_sub(1);
    return notified;
  }

  // wait() without the spinning.
  void sleep(std::uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    n_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return count() != seen; });
    n_sleeping_.fetch_sub(1);
  }

 private:
  // Whether there was a notification while spinning.
  bool spin(std::uint64_t seen) const {
    for (int tries = 0; tries < kTriesBeforeSleep; ++tries) {
      if (count() != seen) {
        return true;
      }
      pause_core();
    }
    return false;
  }

  static constexpr int kTriesBeforeSleep = 1000;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<int> n_sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace fedbuff
