// Waiting between threads that have very little to do in between: first on the core, then in the operating system.
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

// A mutex for a few hundred instructions at a time: asking the operating system would cost more than they do. It is one
// atomic exchange, and a store to let go. Whoever finds it held for long sleeps in between, so that a holder of lower
// priority comes to run.
class SpinLock {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire);) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries % kTriesBeforeYield != 0) {
          pause_core();
        } else if (tries < kTriesBeforeSleep) {
          std::this_thread::yield();  // its holder may have lost its core
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          --tries;  // and again, until it is free
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

// How long to look before going to sleep: first on the core, then giving it to others, a tenth of a millisecond in all.
class Patience {
 public:
  // After a moment: whether to look once more.
  bool lasts() {
    if (looks_ < kLooksBeforeYield) {
      const int pauses = std::min(1 << looks_++, kMostPauses);
      for (int i = 0; i < pauses; ++i) {
        pause_core();
      }
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (looks_ == kLooksBeforeYield) {
      ++looks_;
      end_ = now + std::chrono::microseconds(100);
    }
    std::this_thread::yield();
    return now < end_;
  }

 private:
  static constexpr int kLooksBeforeYield = 12;
  static constexpr int kMostPauses = 16;  // to look is to take a line from whoever writes it
  int looks_ = 0;
  std::chrono::steady_clock::time_point end_;
};

// Somebody waits until it rings: spinning for some microseconds, asleep after that.
//   waiter: seen = bell.count(); look whether there is something to do; if not, bell.wait(seen)
//   ringer: make something to do; bell.ring()
class Bell {
 public:
  std::uint64_t count() const { return count_.load(); }

  void ring() {
    count_.fetch_add(1);
    if (asleep_.load() > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
  }

  void wait(std::uint64_t seen) {
    if (!look(seen)) {
      sleep(seen);
    }
  }

  // wait(), but not longer than that: whether it rang.
  bool wait_for(std::uint64_t seen, std::chrono::seconds most) {
    if (look(seen)) {
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    const bool rang = wake_.wait_for(lock, most, [&] { return count() != seen; });
    asleep_.fetch_sub(1);
    return rang;
  }

  // wait(), without the spinning.
  void sleep(std::uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return count() != seen; });
    asleep_.fetch_sub(1);
  }

 private:
  // Whether it rang while spinning.
  bool look(std::uint64_t seen) const {
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
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace fedbuff
