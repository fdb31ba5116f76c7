// Rows of a replay that other threads work on by a rule, so that nobody needs to be told of each.
//
// Where a task is a fraction of a microsecond, handing it to another core costs as much as doing it. But a row that is
// `lag` versions old when its step is made could be begun that many steps before. So one thread, the leader, keeps all
// the books, steps, and works on the fresh rows; helpers walk through the same rows in order and work on the stale ones
// (step - version >= lag), or a share of them, as soon as the leader is within `lag` versions of their step. What
// crosses between cores is how far the leader is and how far each helper, and the models and deltas themselves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "clients/client_work.hpp"
#include "memory/index_ring.hpp"
#include "threads/spin_wait.hpp"

namespace fedbuff {

template <class T>
class StaleRows {
 public:
  static constexpr std::int64_t kShares = 16;

  // For rows that stay where they are; `share` out of kShares of the stale ones are the helpers'. window, a power of
  // two, is how far a row may be ahead of those that are added; rows name versions from first_version on, n_versions of
  // them at most.
  StaleRows(ClientWork<T>& work, const IndexRing<ReplayRow>& rows, std::int64_t dim, std::int64_t lag,
            std::int64_t share, std::int64_t window, std::int64_t n_helpers, std::int64_t first_version,
            std::int64_t n_versions)
      : work_(work),
        rows_(rows),
        lag_(lag),
        share_(share),
        window_(window),
        first_version_(first_version),
        n_helpers_(n_helpers),
        stride_((dim + kLine - 1) / kLine * kLine),
        models_(static_cast<std::size_t>(n_versions)),
        memory_(static_cast<std::size_t>(window * stride_ + kLine)),
        deltas_(memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64 / sizeof(T)),
        helpers_(new Helper[static_cast<std::size_t>(n_helpers)]) {}

  // --- the leader's side

  // A version's model, once, before it is posted.
  void know(std::int64_t version, const T* model) { models_[index(version)] = model; }

  // The leader is at this version, and the rows before `added` are over.
  void post(std::int64_t version, std::int64_t added) {
    added_.store(added, std::memory_order_release);
    version_.store(version, std::memory_order_release);
  }

  // Whether the helpers are all there: from then on the stale rows from `first` on are theirs.
  bool begin(std::int64_t first) {
    if (n_ready_.load(std::memory_order_relaxed) < n_helpers_) {
      return false;
    }
    first_ = first;
    for (std::int64_t h = 0; h < n_helpers_; ++h) {
      helpers_[h].seen = first;
    }
    begin_.store(first, std::memory_order_release);
    return true;
  }

  bool has(std::int64_t number, const ReplayRow& row) const { return number >= first_ && is_ours(number, row); }

  // Whether a row of the helpers' is finished; then its delta is asked for.
  bool is_done(std::int64_t number, const ReplayRow& row) {
    Helper& helper = helpers_[helper_of(row)];
    if (number >= helper.seen) {
      const std::int64_t before = std::exchange(helper.seen, helper.done.load(std::memory_order_acquire));
      for (std::int64_t i = before; i < helper.seen; ++i) {
        ask_for(delta(i));
      }
    }
    return number < helper.seen;
  }

  T* delta(std::int64_t number) { return deltas_ + (number & (window_ - 1)) * stride_; }

  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  // --- a helper's side

  // Works until all rows are done or it is stopped. Of an exception of the work the leader must be told.
  void help(std::int64_t number, void* scratch) {
    n_ready_.fetch_add(1);
    std::int64_t row = begin_.load(std::memory_order_acquire);
    for (Backoff backoff; row < 0 && !is_stopped(); row = begin_.load(std::memory_order_acquire)) {
      backoff.pause();
    }
    Helper& helper = helpers_[number];
    ClientTask<T> tasks[kTogether];
    std::int64_t asked = first_version_;
    for (Backoff backoff; row < rows_.end() && !is_stopped();) {
      const std::int64_t begin = row, version = version_.load(std::memory_order_acquire);
      const std::int64_t end = std::min(rows_.end(), added_.load(std::memory_order_acquire) + window_);
      for (; asked < version; ++asked) {
        ask_for(models_[index(asked + 1)]);
      }
      std::int64_t n = 0;
      for (; row < end && n < kTogether && rows_[row].step - lag_ <= version; ++row) {
        const ReplayRow& at = rows_[row];
        if (is_ours(row, at) && helper_of(at) == number) {
          tasks[n++] = {&at, models_[index(at.version)], delta(row)};
        }
      }
      if (n > 0) {
        work_.run(tasks, n, scratch);
      }
      if (row > begin) {
        helper.done.store(row, std::memory_order_release);
        backoff = Backoff();
      } else {
        backoff.pause();
      }
    }
  }

 private:
  static constexpr std::int64_t kTogether = 32;
  static constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  static constexpr std::int64_t kMostAsked = 4 * kLine;

  struct alignas(64) Helper {
    std::atomic<std::int64_t> done{0};  // its rows before this one are finished
    alignas(64) std::int64_t seen = 0;  // what the leader saw of it last
  };

  // What another core has written and this one will read.
  void ask_for(const T* vector) const {
    for (std::int64_t j = 0; j < std::min(stride_, kMostAsked); j += kLine) {
      __builtin_prefetch(vector + j);
    }
  }

  std::size_t index(std::int64_t version) const { return static_cast<std::size_t>(version - first_version_); }
  bool is_ours(std::int64_t number, const ReplayRow& row) const {
    return row.step - row.version >= lag_ && number % kShares < share_;
  }
  std::int64_t helper_of(const ReplayRow& row) const { return n_helpers_ == 1 ? 0 : row.step % n_helpers_; }
  bool is_stopped() const { return stopped_.load(std::memory_order_relaxed); }

  ClientWork<T>& work_;
  const typename IndexRing<ReplayRow>::View rows_;
  const std::int64_t lag_, share_, window_, first_version_, n_helpers_, stride_;
  std::vector<const T*> models_;
  std::vector<T> memory_;
  T* const deltas_;  // (window, stride): row i has place i modulo the window
  const std::unique_ptr<Helper[]> helpers_;
  std::int64_t first_ = INT64_MAX;  // rows before it are the leader's

  alignas(64) std::atomic<std::int64_t> version_{0};
  std::atomic<std::int64_t> added_{0};
  alignas(64) std::atomic<std::int64_t> begin_{-1};
  std::atomic<std::int64_t> n_ready_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace fedbuff
