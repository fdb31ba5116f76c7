// A pass over a model, cut into parts that any thread may take.
//
// What another core has written is slow to read. So each core has a lane, a stretch of the parts that is the same in
// every pass, and takes parts of the others' lanes only when its own is empty.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#if defined(__linux__)
#include <sched.h>
#else
#include <functional>
#include <thread>
#endif

#include "fedbuff/fedbuff.h"
#include "waiting.hpp"

namespace fedbuff {

inline constexpr std::int64_t kPartSize = 8192;  // numbers in a part: a few deltas of it lie in the second-level cache

inline std::int64_t count_parts(std::int64_t dim) {
  return dim < 2 * kPartSize ? 1 : (dim + kPartSize - 1) / kPartSize;
}

// A number of the core that this thread runs on, or, where that cannot be asked for, of the thread.
inline std::int64_t core_number() {
#if defined(__linux__)
  return std::max(sched_getcpu(), 0);
#else
  return static_cast<std::int64_t>(std::hash<std::thread::id>()(std::this_thread::get_id()) >> 1);
#endif
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
    own_lane();
    std::int64_t n_lanes = 0;
    while (n_lanes < kMostLanes && lanes_[n_lanes].core.load(std::memory_order_relaxed) != kNobody) {
      ++n_lanes;
    }
    n_lanes_.store(n_lanes, std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_lanes; ++i) {
      lanes_[i].left.store(pack(i * n / n_lanes, (i + 1) * n / n_lanes), std::memory_order_release);
    }
  }

  bool is_open() const {
    const std::int64_t n_lanes = n_lanes_.load(std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_lanes; ++i) {
      if (size(lanes_[i].left.load(std::memory_order_relaxed)) > 0) {
        return true;
      }
    }
    return false;
  }

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
    std::int64_t taken = n_;
    for (Lane& lane : lanes_) {
      taken -= size(lane.left.exchange(0, std::memory_order_acq_rel));
    }
    for (Patience patience; done_.load(std::memory_order_acquire) != taken;) {
      patience.lasts();
    }
    return failed && !all ? FB_ERR_HOST : FB_OK;
  }

 private:
  static constexpr std::int64_t kMostLanes = 8, kNobody = -1;

  // Parts begin .. end - 1 are left: begin in the upper half of a word, end in the lower.
  static std::uint64_t pack(std::int64_t begin, std::int64_t end) {
    return static_cast<std::uint64_t>(begin) << 32 | static_cast<std::uint64_t>(end);
  }
  static std::int64_t begin(std::uint64_t left) { return static_cast<std::int64_t>(left >> 32); }
  static std::int64_t end(std::uint64_t left) { return static_cast<std::int64_t>(left & 0xffffffff); }
  static std::int64_t size(std::uint64_t left) { return end(left) - begin(left); }

  struct alignas(64) Lane {
    std::atomic<std::uint64_t> left{0};
    std::atomic<std::int64_t> core{kNobody};

    // The first part for its own core, the last one for others.
    std::int64_t take(bool own) {
      std::uint64_t now = left.load(std::memory_order_acquire);
      std::uint64_t less;
      do {
        if (size(now) <= 0) {
          return -1;
        }
        less = own ? pack(begin(now) + 1, end(now)) : pack(begin(now), end(now) - 1);
      } while (!left.compare_exchange_weak(now, less, std::memory_order_acq_rel, std::memory_order_acquire));
      return own ? begin(now) : end(less);
    }
  };

  static void work(void* parts, std::int64_t) { static_cast<Parts*>(parts)->take_one(); }

  // Lanes are for the first cores that came; a lane that is new takes part from the next pass on.
  std::int64_t own_lane() {
    const std::int64_t core = core_number();
    for (std::int64_t i = 0; i < kMostLanes; ++i) {
      std::int64_t whose = lanes_[i].core.load(std::memory_order_relaxed);
      if (whose == core || (whose == kNobody && lanes_[i].core.compare_exchange_strong(whose, core)) || whose == core) {
        return i;
      }
    }
    return core % kMostLanes;
  }

  bool take_one() {
    const std::int64_t own = own_lane(), n_lanes = n_lanes_.load(std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_lanes; ++i) {
      const std::int64_t lane = (own + i) % n_lanes;
      const std::int64_t part = lanes_[lane].take(lane == own);
      if (part >= 0) {
        call_(target_, part);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void (*call_)(void*, std::int64_t) = nullptr;
  void* target_ = nullptr;
  std::int64_t n_ = 0;
  std::atomic<std::int64_t> n_lanes_{0};
  Lane lanes_[kMostLanes];
  alignas(64) std::atomic<std::int64_t> done_{0};
};

}  // namespace fedbuff
