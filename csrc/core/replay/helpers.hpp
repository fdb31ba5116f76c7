// Threads that help with tiny tasks, and find their rows without being told of each.
//
// Where a task takes a fraction of a microsecond, passing it to another core costs as much as running it. But a row
// that is `lag` versions old when its step is made can be run that many steps earlier. So one thread, the leader, does
// the bookkeeping and the server steps, and runs the fresh rows. Helpers go through the same rows in order and run the
// stale ones (step - version >= lag), or a share of them, as soon as the leader is within `lag` versions of their step.
// Cores exchange only how far the leader and each helper are, the models and the deltas.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "clients/client_work.hpp"
#include "memory/index_ring.hpp"
#include "replay/helper_policy.hpp"
#include "threads/spin_wait.hpp"

namespace fedbuff {

template <class T>
class Helpers {
 public:
  // The ring of rows must not grow while helpers run. They get `share` out of HelperPolicy::kShares of the stale rows.
  // A row runs only if it is less than `window`, a power of two, after those that are added. Rows name versions
  // first_version .. first_version + n_versions - 1.
  Helpers(ClientWork<T>& work, const IndexRing<ReplayRow>& rows, std::int64_t dim, std::int64_t lag, std::int64_t share,
          std::int64_t window, std::int64_t n_helpers, std::int64_t first_version, std::int64_t n_versions)
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

  // A version's model, once, before post() of that version.
  void set_model(std::int64_t version, const T* model) { models_[index(version)] = model; }

  // The current version is this one, and the rows before `added` are committed.
  void post(std::int64_t version, std::int64_t added) {
    added_.store(added, std::memory_order_release);
    version_.store(version, std::memory_order_release);
  }

  // Whether all helper threads have started. If so, the stale rows from `first` on are theirs.
  bool begin(std::int64_t first) {
    if (n_ready_.load(std::memory_order_relaxed) < n_helpers_) {
      return false;
    }
    first_ = first;
    for (std::int64_t h = 0; h < n_helpers_; ++h) {
      helper_at(h).seen = first;
    }
    begin_.store(first, std::memory_order_release);
    return true;
  }

  bool has(std::int64_t number, const ReplayRow& row) const { return number >= first_ && is_helpers(number, row); }

  // Whether a row of the helpers is finished. Prefetches the deltas of rows that were found finished.
  bool is_done(std::int64_t number, const ReplayRow& row) {
    Helper& helper = helper_at(helper_of(row));
    if (number >= helper.seen) {
      const std::int64_t before = std::exchange(helper.seen, helper.done.load(std::memory_order_acquire));
      for (std::int64_t i = before; i < helper.seen; ++i) {
        prefetch(delta(i));
      }
    }
    return number < helper.seen;
  }

  T* delta(std::int64_t number) { return deltas_ + (number & (window_ - 1)) * stride_; }

  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  // --- a helper's side

  // Runs rows until all are done or stop() was called. Exceptions of the work come out; the caller must stop the
  // leader.
  void help(std::int64_t number, void* scratch) {
    n_ready_.fetch_add(1);
    std::int64_t row = begin_.load(std::memory_order_acquire);
    for (Backoff backoff; row < 0 && !is_stopped(); row = begin_.load(std::memory_order_acquire)) {
      backoff.pause();
    }
    Helper& helper = helper_at(number);
    ClientTask<T> tasks[kTasksAtOnce];
    std::int64_t prefetched = first_version_;
    for (Backoff backoff; row < rows_.end() && !is_stopped();) {
      const std::int64_t begin = row, version = version_.load(std::memory_order_acquire);
      const std::int64_t end = std::min(rows_.end(), added_.load(std::memory_order_acquire) + window_);
      for (; prefetched < version; ++prefetched) {
        prefetch(models_[index(prefetched + 1)]);
      }
      std::int64_t n = 0;
      for (; row < end && n < kTasksAtOnce && rows_[row].step - lag_ <= version; ++row) {
        const ReplayRow& at = rows_[row];
        if (is_helpers(row, at) && helper_of(at) == number) {
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
  static constexpr std::int64_t kTasksAtOnce = 32;
  static constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  static constexpr std::int64_t kMostPrefetched = 4 * kLine;

  struct alignas(64) Helper {
    std::atomic<std::int64_t> done{0};  // its rows before this number are finished
    alignas(64) std::int64_t seen = 0;  // the leader's last reading of `done`
  };

  // For a vector that another core has written.
  void prefetch(const T* vector) const {
    for (std::int64_t j = 0; j < std::min(stride_, kMostPrefetched); j += kLine) {
      __builtin_prefetch(vector + j);
    }
  }

  std::size_t index(std::int64_t version) const { return static_cast<std::size_t>(version - first_version_); }
  bool is_helpers(std::int64_t number, const ReplayRow& row) const {
    return row.step - row.version >= lag_ && number % HelperPolicy::kShares < share_;
  }
  Helper& helper_at(std::int64_t number) { return helpers_[static_cast<std::size_t>(number)]; }
  std::int64_t helper_of(const ReplayRow& row) const { return n_helpers_ == 1 ? 0 : row.step % n_helpers_; }
  bool is_stopped() const { return stopped_.load(std::memory_order_relaxed); }

  ClientWork<T>& work_;
  const typename IndexRing<ReplayRow>::View rows_;
  const std::int64_t lag_, share_, window_, first_version_, n_helpers_, stride_;
  std::vector<const T*> models_;
  std::vector<T> memory_;
  T* const deltas_;  // (window, stride): row i has place i modulo the window
  const std::unique_ptr<Helper[]> helpers_;
  std::int64_t first_ = INT64_MAX;  // the leader runs all rows before it

  alignas(64) std::atomic<std::int64_t> version_{0};
  std::atomic<std::int64_t> added_{0};
  alignas(64) std::atomic<std::int64_t> begin_{-1};
  std::atomic<std::int64_t> n_ready_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace fedbuff
