// A pass over a model, cut into parts that any thread may take.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "fedbuff/fedbuff.h"

namespace fedbuff {

inline constexpr std::int64_t kPartSize = 8192;  // numbers in a part: a few deltas of it lie in the second-level cache

inline std::int64_t count_parts(std::int64_t dim) {
  return dim < 2 * kPartSize ? 1 : (dim + kPartSize - 1) / kPartSize;
}

// One pass at a time. Every part is taken exactly once, whatever an executor does with the numbers that it was given.
class Parts {
 public:
  // Opens a pass of n parts: help() works on it from now on. `work` must stay until finish() has returned.
  template <class Work>
  void open(std::int64_t n, Work& work) {
    call_ = [](void* target, std::int64_t part) { (*static_cast<Work*>(target))(part); };
    target_ = &work;
    n_ = n;
    done_.store(0, std::memory_order_relaxed);
    left_.store(n, std::memory_order_release);
  }

  bool is_open() const { return left_.load(std::memory_order_relaxed) > 0; }

  void help() {
    while (take_one()) {
    }
  }

  // Takes part until all is done, with the executor where there is one. Where that fails: with `all` this thread does
  // what is left, otherwise the rest is given up and FB_ERR_HOST returned.
  fb_status finish(const fb_executor* executor, bool all) {
    bool failed = false;
    if (executor != nullptr) {
      try {
        failed = executor->run(executor->context, n_, &Parts::work, this) != 0;
      } catch (...) {
        failed = true;
      }
      failed = failed || is_open();
    }
    if (all || executor == nullptr) {
      help();
    }
    const std::int64_t given_up = left_.exchange(0, std::memory_order_acq_rel);
    while (done_.load(std::memory_order_acquire) != n_ - given_up) {
      std::this_thread::yield();
    }
    return failed && !all ? FB_ERR_HOST : FB_OK;
  }

 private:
  static void work(void* parts, std::int64_t) { static_cast<Parts*>(parts)->take_one(); }

  bool take_one() {
    std::int64_t left = left_.load(std::memory_order_acquire);
    do {
      if (left <= 0) {
        return false;
      }
    } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    call_(target_, left - 1);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void (*call_)(void*, std::int64_t) = nullptr;
  void* target_ = nullptr;
  std::int64_t n_ = 0;
  std::atomic<std::int64_t> left_{0};
  std::atomic<std::int64_t> done_{0};
};

}  // namespace fedbuff
