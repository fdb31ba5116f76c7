// A pass over a model in chunks, which any thread may take.
//
// Reading what another core has written is slow. So each core has a range of the chunks, the same in every pass, and
// takes chunks of other ranges only when its own is empty.
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
#include "threads/spin_wait.hpp"

namespace fedbuff {

// Numbers in a chunk: those of a few deltas fit the second-level cache.
inline constexpr std::int64_t kChunkSize = 8192;

inline std::int64_t count_chunks(std::int64_t dim) {
  return dim < 2 * kChunkSize ? 1 : (dim + kChunkSize - 1) / kChunkSize;
}

// The number of the core that this thread runs on; where the system does not tell, a number of the thread.
inline std::int64_t core_number() {
#if defined(__linux__)
  return std::max(sched_getcpu(), 0);
#else
  return static_cast<std::int64_t>(std::hash<std::thread::id>()(std::this_thread::get_id()) >> 1);
#endif
}

// One pass at a time. Every chunk is taken exactly once, however often an executor calls with the numbers that it was
// given.
class CoreChunks {
 public:
  // Opens a pass of n chunks, for which help() calls work(chunk) from now on. `work` must live until finish() returns.
  template <class Work>
  void open(std::int64_t n, Work& work) {
    call_ = [](void* target, std::int64_t chunk) { (*static_cast<Work*>(target))(chunk); };
    target_ = &work;
    n_ = n;
    done_.store(0, std::memory_order_relaxed);
    own_range();
    std::int64_t n_ranges = 0;
    while (n_ranges < kMaxRanges && ranges_[n_ranges].core.load(std::memory_order_relaxed) != kNoCore) {
      ++n_ranges;
    }
    n_ranges_.store(n_ranges, std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_ranges; ++i) {
      ranges_[i].left.store(pack(i * n / n_ranges, (i + 1) * n / n_ranges), std::memory_order_release);
    }
  }

  bool is_open() const {
    const std::int64_t n_ranges = n_ranges_.load(std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_ranges; ++i) {
      if (size(ranges_[i].left.load(std::memory_order_relaxed)) > 0) {
        return true;
      }
    }
    return false;
  }

  // Works on the open pass until no chunk is left to take.
  void help() {
    while (take_one()) {
    }
  }

  // Works until all chunks are done, with the executor where there is one. Where the executor fails, with `all` this
  // thread does the rest; without it the rest is discarded and FB_ERR_HOST returned.
  fb_status finish(const fb_executor* executor, bool all) {
    bool failed = false;
    if (executor != nullptr) {
      try {
        failed = executor->run(executor->context, n_, &CoreChunks::work, this) != 0;
      } catch (...) {
        failed = true;
      }
      failed = failed || is_open();
    }
    if (all || executor == nullptr) {
      help();
    }
    std::int64_t taken = n_;
    for (CoreRange& range : ranges_) {
      taken -= size(range.left.exchange(0, std::memory_order_acq_rel));
    }
    for (Backoff backoff; done_.load(std::memory_order_acquire) != taken;) {
      backoff.pause();
    }
    return failed && !all ? FB_ERR_HOST : FB_OK;
  }

 private:
  static constexpr std::int64_t kMaxRanges = 8, kNoCore = -1;

  // Chunks begin .. end - 1 are left: begin in the upper half of a word, end in the lower.
  static std::uint64_t pack(std::int64_t begin, std::int64_t end) {
    return static_cast<std::uint64_t>(begin) << 32 | static_cast<std::uint64_t>(end);
  }
  static std::int64_t begin(std::uint64_t left) { return static_cast<std::int64_t>(left >> 32); }
  static std::int64_t end(std::uint64_t left) { return static_cast<std::int64_t>(left & 0xffffffff); }
  static std::int64_t size(std::uint64_t left) { return end(left) - begin(left); }

  struct alignas(64) CoreRange {
    std::atomic<std::uint64_t> left{0};
    std::atomic<std::int64_t> core{kNoCore};

    // Takes the first chunk for its own core, the last one for others; -1 where none is left.
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

  static void work(void* chunks, std::int64_t) { static_cast<CoreChunks*>(chunks)->take_one(); }

  // The first kMaxRanges cores get ranges; a new range has chunks from the next pass on.
  std::int64_t own_range() {
    const std::int64_t core = core_number();
    for (std::int64_t i = 0; i < kMaxRanges; ++i) {
      std::int64_t whose = ranges_[i].core.load(std::memory_order_relaxed);
      if (whose == core || (whose == kNoCore && ranges_[i].core.compare_exchange_strong(whose, core)) ||
          whose == core) {
        return i;
      }
    }
    return core % kMaxRanges;
  }

  bool take_one() {
    const std::int64_t own = own_range(), n_ranges = n_ranges_.load(std::memory_order_relaxed);
    for (std::int64_t i = 0; i < n_ranges; ++i) {
      const std::int64_t range = (own + i) % n_ranges;
      const std::int64_t chunk = ranges_[range].take(range == own);
      if (chunk >= 0) {
        call_(target_, chunk);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void (*call_)(void*, std::int64_t) = nullptr;
  void* target_ = nullptr;
  std::int64_t n_ = 0;
  std::atomic<std::int64_t> n_ranges_{0};
  CoreRange ranges_[kMaxRanges];
  alignas(64) std::atomic<std::int64_t> done_{0};
};

}  // namespace fedbuff
