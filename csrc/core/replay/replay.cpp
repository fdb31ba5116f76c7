#include "replay/replay.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "threads/thread_pool.hpp"
#include "kernels/dispatch.hpp"
#include "clients/gradient_norm.hpp"
#include "memory/huge_pages.hpp"
#include "memory/window_bitset.hpp"
#include "memory/index_ring.hpp"
#include "server/rule_state.hpp"
#include "replay/stale_rows.hpp"
#include "threads/spin_wait.hpp"

namespace fedbuff {

namespace {

constexpr double kFlopsAtOnce = 2e5;  // what a worker takes under one lock, so that small tasks do not fight for it
constexpr std::int64_t kMostAtOnceShared = 8;  // the others wait for what one has taken
constexpr std::int64_t kBriefNumbers = 4096;   // what is added without giving up the lock
constexpr std::int64_t kClockEvery = 64;       // such steps: the clock would cost more than they do
constexpr std::int64_t kAhead = 4;             // times what all workers take at once
constexpr std::int64_t kLag = 2;               // versions that a tiny row must be old to be a helper's
constexpr int kMostHelpers = 3;                // that one worker can keep busy
constexpr std::int64_t kStepsAWait = 6;        // steps between two at which it is well to wait for a helper
constexpr std::int64_t kTrialRows = 20'000;    // after which a way to work is known
constexpr std::int64_t kTrialsApart = 100;     // times as many rows before the other way is tried again

using Memory = std::shared_ptr<void>;

// Memory for vectors of some size, from as large blocks as huge pages need; a block goes with its last piece. Vectors
// that are not small begin at a page, all alike.
class Blocks {
 public:
  Memory take(std::size_t bytes) {
    if (bytes < kPiece || bytes >= kHugePage) {
      return allocate(bytes);
    }
    if (left_ < bytes) {
      block_ = allocate(kBlock);
      left_ = kBlock;
    }
    Memory piece(block_, static_cast<char*>(block_.get()) + (kBlock - left_));
    left_ -= std::min(left_, (bytes + kPage - 1) / kPage * kPage);
    return piece;
  }

 private:
  static constexpr std::size_t kPage = 4096, kPiece = 16 * kPage, kBlock = 8 * kHugePage;

  static Memory allocate(std::size_t bytes) {
    return Memory(HugePages<char>().allocate(std::max<std::size_t>(1, bytes)), [](void* memory) { std::free(memory); });
  }

  Memory block_;
  std::size_t left_ = 0;
};

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// What a way to work took.
struct Pace {
  double seconds = 0;
  std::int64_t rows = 0;

  bool is_known() const { return rows >= kTrialRows; }
  bool is_better_than(const Pace& other) const {
    return seconds * static_cast<double>(other.rows) < other.seconds * static_cast<double>(rows);
  }
};

}  // namespace

// Rows are numbered from 0 over the used arrivals. Always
//   step_begin_ <= added_ <= prefix_ <= end of the rows that are known, and added_ <= frontier_ <= added_ + window.
// Row i has place i modulo the window's size, from when added_ is near enough until it is added.
template <class T>
class Replay<T>::Engine final : private ModelStore {
 public:
  Engine(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
         const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure)
      : rule_(rule),
        dim_(dim),
        state_(rule, dim, OnFailure::Discard),
        work_(work),
        window_bytes_(window_bytes),
        sums_(sums),
        secure_(sums.modulus == 0 || secure ? std::move(secure) : make_simulated_sum<T>(sums, dim)) {
    Memory model = take_model();
    std::memcpy(model.get(), w0, bytes());
    entry(0).model = std::move(model);
    live_ = 1;
    stats_.most_versions = 1;
  }

  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps) {
    require_whole();
    incomplete_ = "rows that were refused";  // unless all of them are taken
    for (std::int64_t i = 0; i < n_rows; ++i) {
      if (rows[i].step < std::max(steps_known_, last_step_) || rows[i].version < 0 || rows[i].version > rows[i].step) {
        throw std::invalid_argument("row " + std::to_string(rows_known_) + ": version " +
                                    std::to_string(rows[i].version) + " in step " + std::to_string(rows[i].step) +
                                    " after step " + std::to_string(std::max(steps_known_, last_step_)));
      }
      if (passing_ && rows[i].step < version_) {
        drop_reference(rows[i].version);
        rows_.restart(rows_known_ + 1);
        added_ = prefix_ = rows_known_ + 1;
        ++stats_.rows;
      } else {
        hold(rows[i].version);
        rows_.push_back(rows[i]);
        last_step_ = rows[i].step;
      }
      ++rows_known_;
    }
    for (std::int64_t k = 0; k < n_steps; ++k, ++steps_known_) {
      while (scan_ < rows_known_ && step_of(scan_) <= steps_known_) {
        ++scan_;
      }
      if (steps_known_ >= version_) {
        step_end_.push_back(scan_);
      }
      // The step ends version steps_known_: nothing can start on it any more.
      Version& ended = entry(steps_known_);
      ended.references += references[k];
      ended.closed = true;
      require_covered(ended, steps_known_);
      forget_if_done(steps_known_);
    }
    incomplete_ = nullptr;
  }

  void release(const std::int64_t* versions, std::int64_t n) {
    require_whole();
    incomplete_ = "ended tasks that were refused";
    for (std::int64_t i = 0; i < n; ++i) {
      if (versions[i] < 0) {
        throw std::invalid_argument("version " + std::to_string(versions[i]) + ": no task can end on it");
      }
      drop_reference(versions[i]);
    }
    incomplete_ = nullptr;
  }

  ReplayExit run(std::int64_t max_steps, int threads) {
    if (divergence_.step >= 0) {
      return ReplayExit::Diverged;  // part of the step may be in the sum: there is no second try
    }
    require_whole();
    if (passing_) {
      throw std::logic_error("replay: it passes over rows and has no models yet");
    }
    target_ = version_ + max_steps;
    // Tiny rows have one worker. Whether helpers make it faster depends on how far the cores are from each other.
    tiny_ = work_.is_tiny();
    stale_ = nullptr;
    const bool helped = tiny_ && threads > 1 && sums_.clip == 0 && want_help();
    threads_ = tiny_ ? 1 : threads;
    threads = !tiny_ ? threads : helped ? std::min(threads, 1 + kMostHelpers) : 1;
    errors_.clear();
    errors_.reserve(static_cast<std::size_t>(4 * std::max(threads, 1)));  // a thread ends soon after its first
    const auto affordable = static_cast<std::int64_t>(kFlopsAtOnce / (work_.flops() + 1));
    at_once_ = std::clamp<std::int64_t>(affordable, 1, threads_ == 1 ? kMaxTasksPerRun : kMostAtOnceShared);
    // A step's deltas and some ahead of it, so that no worker waits; few, so that they are still in the cache when
    // added.
    // A buffer may be larger than all rows that there are.
    const auto buffer = std::min<std::int64_t>(rule_.buffer_size, std::max(rows_.end() - added_, window()));
    const std::int64_t ahead = std::max(kAhead * threads_ * at_once_, helped ? 2 * kLag * buffer : 0);
    set_window(buffer + ahead, 2 * threads_);
    if (helped) {
      post_all(threads - 1);
    }
    while (static_cast<int>(scratch_.size()) < threads) {
      scratch_.push_back(blocks_.take(work_.scratch_bytes()));
      std::memset(scratch_.back().get(), 0, work_.scratch_bytes());
    }
    Stopwatch watch;
    const std::int64_t rows_before = added_, steps_before = version_;
    run_together(threads, [this](int thread) {
      if (stale_ && thread > 0) {
        help(thread);
        return;
      }
      work(thread);
      if (stale_) {
        stale_->stop();
      }
    });
    if (tiny_) {
      Pace& pace = helped ? helped_ : alone_;
      pace.seconds += watch.lap();
      pace.rows += added_ - rows_before;
    }
    if (std::exchange(stale_, nullptr)) {
      prefix_ = added_;  // what helpers have finished and nobody has added is worked out again
      move_prefix();
      // Who waits often has given too much away.
      const bool too_much = std::exchange(waits_, 0) * kStepsAWait > version_ - steps_before;
      share_ = std::clamp<std::int64_t>(share_ + (too_much ? -1 : 1), 1, StaleRows<T>::kShares);
    }
    if (!errors_.empty()) {
      // Nothing of an error stays here: it may refer, in ways that nobody sees, to what holds this replay.
      const std::exception_ptr first = std::exchange(errors_, {}).front();
      std::rethrow_exception(first);
    }
    if (divergence_.step >= 0) {
      return ReplayExit::Diverged;
    }
    return version_ == target_ ? ReplayExit::Steps : ReplayExit::NeedRows;
  }

  void pass_over(std::int64_t version) {
    if (rows_known_ > 0 || steps_known_ > 0 || version_ > 0 || version < 0) {
      throw std::logic_error("replay: only a new one can pass over steps");
    }
    passing_ = true;
    version_ = version;
    spare_.push_back(std::move(entry(0).model));
    live_ = 0;
  }

  std::int64_t restore(const T* w, const std::vector<std::int64_t>& live, const T* models, const T* first,
                       const T* second) {
    require_whole();
    if (!passing_ || steps_known_ < version_) {
      throw std::logic_error("replay: it has not passed over the steps that are done");
    }
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (live[i] < (i == 0 ? 0 : live[i - 1] + 1) || live[i] >= version_) {
        throw std::invalid_argument("live: version " + std::to_string(live[i]) + " at place " + std::to_string(i) +
                                    ", expected ascending ones below " + std::to_string(version_));
      }
    }
    const auto put = [this](std::int64_t v, const T* from) {
      Memory model = take_model();
      std::memcpy(model.get(), from, bytes());
      entry(v).model = std::move(model);
      ++live_;
    };
    std::int64_t n_needed = 0;
    for (std::size_t i = 0; i < live.size(); ++i) {
      const bool known = live[i] >= versions_.begin() && live[i] < versions_.end();
      if (known && versions_[live[i]].references != 0) {
        put(live[i], models + i * size());
        ++n_needed;
      }
    }
    put(version_, w);
    for (std::int64_t v = versions_.begin(); v < version_; ++v) {
      if (versions_[v].pending > 0 && !versions_[v].model) {
        throw std::invalid_argument("live: the model of version " + std::to_string(v) +
                                    " is not there, and a later row needs it");
      }
    }
    state_.restore({}, nullptr, first, second);
    passing_ = false;
    stats_.most_versions = live_;
    return n_needed;
  }

  void check() const {
    const auto require = [](bool holds, const char* what) {
      if (!holds) {
        throw std::logic_error(std::string("replay: ") + what);
      }
    };
    require(rows_.begin() <= added_ && added_ <= prefix_ && prefix_ <= rows_.end(), "row order");
    require(rows_.end() == rows_known_, "rows kept");
    std::int64_t deltas = 0;
    for (std::int64_t i = added_; i < std::min(rows_.end(), added_ + window()); ++i) {
      const Place& at = place(i);
      deltas += at.state == State::Waiting ? 0 : 1;
      require(at.state != State::Running, "nobody is at work");
      require(at.state == State::Waiting || at.delta, "a finished row has its delta");
      require(i >= prefix_ || at.state == State::Done, "rows before the prefix are finished");
    }
    require(deltas == deltas_out_, "deltas in the window");
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(versions_.size()));
    for (std::int64_t i = rows_.begin(); i < rows_.end(); ++i) {
      const std::int64_t v = rows_[i].version;
      require(v > version_ || (v >= versions_.begin() && versions_[v].model), "a needed version is there");
      if (v < versions_.end()) {
        ++wanted[static_cast<std::size_t>(v - versions_.begin())];
      }
    }
    std::int64_t live = 0;
    for (std::int64_t v = versions_.begin(); v < versions_.end(); ++v) {
      live += versions_[v].model ? 1 : 0;
      require(versions_[v].pending == wanted[static_cast<std::size_t>(v - versions_.begin())], "rows of a version");
      require(!versions_[v].closed || versions_[v].references >= versions_[v].pending, "references cover the rows");
    }
    require(live == live_, "live versions");
    require(versions_[version_].model != nullptr, "the current model is there");
  }

  void record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset) {
    if (every < 1 || offset < 0 || offset >= every) {
      throw std::invalid_argument("every " + std::to_string(every) + ", offset " + std::to_string(offset) +
                                  ": expected 0 <= offset < every");
    }
    record_.reset(new GradientRecord{GradientNorm<T>(problem), every, offset, {}});
  }
  const std::vector<double>& gradients() const {
    static const std::vector<double> none;
    return record_ ? record_->values : none;
  }

  std::int64_t version() const { return version_; }
  const T* model(std::int64_t version) const {
    const bool known = version >= versions_.begin() && version < versions_.end();
    return known ? values(versions_[version].model) : nullptr;
  }
  std::vector<std::int64_t> live_versions() const {
    std::vector<std::int64_t> live;
    for (std::int64_t v = versions_.begin(); v < versions_.end(); ++v) {
      if (versions_[v].model) {
        live.push_back(v);
      }
    }
    return live;
  }
  const T* first() const { return state_.first_moment(); }
  const T* second() const { return state_.second_moment(); }
  Divergence divergence() const { return divergence_; }
  ReplayStats stats() const {
    ReplayStats stats = stats_;
    stats.live_versions = live_;
    stats.window = deltas_out_;
    return stats;
  }

 private:
  static constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;

  enum class State : std::uint8_t { Waiting, Running, Done };

  // Of a row in the window. The delta's memory stays with the place.
  struct Place {
    Memory delta;
    std::int64_t next_blocked = -1;  // the next row that waits for the same version
    State state = State::Waiting;
    double factor = 1;  // what clips its delta
  };

  struct GradientRecord {
    GradientNorm<T> norm;
    std::int64_t every, offset;
    std::vector<double> values;
  };

  struct Version {
    Memory model;
    std::int64_t references = 0;  // tasks that ended or will end on it and are not committed; below zero while open
    std::int64_t pending = 0;     // of them, rows that are kept; at most `references` once it is closed
    std::int64_t first_blocked = -1, last_blocked = -1;  // rows that wait for it
    bool closed = false;                                 // no task can start on it any more
    bool kept = false;                                   // somebody else has its model too
  };

  std::size_t size() const { return static_cast<std::size_t>(dim_); }
  std::size_t bytes() const { return size() * sizeof(T); }
  static T* values(const Memory& memory) { return static_cast<T*>(memory.get()); }

  std::int64_t window() const { return static_cast<std::int64_t>(places_.size()); }
  Place& place(std::int64_t row) { return places_[static_cast<std::size_t>(row) & (places_.size() - 1)]; }
  const Place& place(std::int64_t row) const { return places_[static_cast<std::size_t>(row) & (places_.size() - 1)]; }
  std::int64_t step_of(std::int64_t row) const { return row < rows_.begin() ? -1 : rows_[row].step; }

  // Rows or releases that were taken in part, or a sum that was, cannot be gone on with.
  void require_whole() const {
    if (incomplete_ != nullptr) {
      throw std::logic_error(std::string("replay: it holds a part of ") + incomplete_ + "; make it anew");
    }
  }

  // A row on this version is kept until it is committed, and its model with it.
  void hold(std::int64_t version) {
    Version& wanted = entry(version);
    if (version <= version_ && !wanted.model && !passing_) {
      refuse_gone(version);
    }
    ++wanted.pending;
    require_covered(wanted, version);
  }

  void require_covered(const Version& version, std::int64_t number) const {
    if (version.closed && version.pending > version.references) {
      refuse_gone(number);
    }
  }

  [[noreturn]] void refuse_gone(std::int64_t version) const {
    throw std::invalid_argument("row " + std::to_string(rows_known_) + ": the model of version " +
                                std::to_string(version) + " is gone: more tasks end on it than were started");
  }

  Version& entry(std::int64_t version) {
    if (version < versions_.begin()) {
      refuse_gone(version);
    }
    while (version >= versions_.end()) {
      versions_.push_back({});
    }
    return versions_[version];
  }

  Memory take_model() {
    if (spare_.empty()) {
      return blocks_.take(bytes());
    }
    Memory memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }

  void drop_reference(std::int64_t version) {
    Version& old = entry(version);
    --old.references;
    require_covered(old, version);
    if (old.references == 0 && old.closed) {
      forget_if_done(version);
    }
  }

  void forget_if_done(std::int64_t version) {
    if (version < versions_.begin() || version >= version_) {
      return;
    }
    Version& old = versions_[version];
    if (old.closed && old.references == 0 && old.model) {
      if (old.kept) {
        old.model = nullptr;
      } else {
        spare_.push_back(std::move(old.model));
      }
      --live_;
    }
    while (versions_.begin() < version_ && versions_[versions_.begin()].closed &&
           versions_[versions_.begin()].references == 0 && !versions_[versions_.begin()].model) {
      versions_.pop_front();
    }
  }

  // A power of two of places for at least `wanted` deltas where they fit, for `least` in any case. What was worked out
  // before stays if there is room. Then all rows in the window are looked at anew.
  void set_window(std::int64_t wanted, std::int64_t least) {
    const std::int64_t fit = window_bytes_ / static_cast<std::int64_t>(std::max<std::size_t>(1, bytes()));
    std::int64_t n = 1;
    while (n < least || (n < wanted && 2 * n <= fit)) {
      n *= 2;
    }
    if (n != window()) {
      std::vector<Place> before(static_cast<std::size_t>(n));
      before.swap(places_);
      const auto old = static_cast<std::int64_t>(before.size());
      for (std::int64_t i = added_; i < std::min(rows_.end(), added_ + old); ++i) {
        Place& from = before[static_cast<std::size_t>(i) & (before.size() - 1)];
        if (i < added_ + n) {
          place(i) = std::move(from);
        } else if (from.state == State::Done) {
          --deltas_out_;
        }
      }
      prefix_ = std::min(prefix_, added_ + n);
    }
    frontier_ = added_;
    runnable_.reset(window(), added_);
    for (std::int64_t v = versions_.begin(); v < versions_.end(); ++v) {
      versions_[v].first_blocked = versions_[v].last_blocked = -1;
    }
  }

  // Both ways are tried, and the faster one is taken until it is time to try the other again.
  bool want_help() {
    if (!helped_.is_known() || !alone_.is_known()) {
      return !helped_.is_known();
    }
    const bool wanted = helped_.is_better_than(alone_);
    if ((wanted ? helped_ : alone_).rows > kTrialsApart * kTrialRows) {
      helped_ = alone_ = {};
    }
    return wanted;
  }

  void post_all(int n_helpers) {
    const std::int64_t end = std::max(versions_.end(), steps_known_ + 1) + 1;
    stale_ = std::make_unique<StaleRows<T>>(work_, rows_, dim_, kLag, share_, window(), n_helpers, versions_.begin(),
                                            end - versions_.begin());
    for (std::int64_t v = versions_.begin(); v <= version_; ++v) {
      stale_->know(v, values(versions_[v].model));
    }
    stale_->post(version_, added_);
    first_new_ = added_;
    for (std::int64_t i = added_; i < std::min(rows_.end(), added_ + window()); ++i) {
      first_new_ = place(i).state == State::Done ? i + 1 : first_new_;
    }
  }

  void help(int thread) {
    try {
      stale_->help(thread - 1, scratch_[static_cast<std::size_t>(thread)].get());
    } catch (...) {
      const std::lock_guard<SpinLock> lock(lock_);
      errors_.push_back(std::current_exception());
    }
  }

  std::shared_ptr<const void> keep(std::int64_t version) override {
    const std::lock_guard<SpinLock> lock(lock_);
    versions_[version].kept = true;
    return versions_[version].model;
  }

  bool is_helpers(std::int64_t row) const { return stale_ && stale_->has(row, rows_[row]); }

  bool is_finished(std::int64_t row) {
    return is_helpers(row) ? stale_->is_done(row, rows_[row]) : place(row).state == State::Done;
  }

  void move_prefix() {
    for (const std::int64_t end = std::min(rows_.end(), added_ + window()); prefix_ < end && is_finished(prefix_);) {
      ++prefix_;
    }
  }

  // One worker, until there is nothing left to do for it.
  void work(int thread) {
    std::vector<std::int64_t> mine;
    std::vector<ClientTask<T>> tasks;
    Stopwatch watch;
    double worked = 0;
    double waited = 0;
    std::int64_t n_rows = 0, n_timed = 0;  // that it worked on, and those of them that `worked` is of
    std::unique_lock<SpinLock> lock(lock_);
    guarded(lock, [&] {
      mine.reserve(static_cast<std::size_t>(at_once_));
      tasks.reserve(static_cast<std::size_t>(at_once_));
    });
    bool alone = stale_ != nullptr;  // until the helpers have come
    Backoff backoff;
    for (std::int64_t turn = 0; version_ < target_ && errors_.empty() && divergence_.step < 0;) {
      alone = alone && !stale_->begin(std::max(frontier_, first_new_));
      if (can_add()) {
        adding_ = true;
        guarded(lock, [&] { add_to_model(lock); });
        adding_ = false;
        if (stale_) {
          stale_->post(version_, added_);
          move_prefix();
        }
        if (n_idle_ > 0) {
          changed_.notify_all();
        }
        continue;
      }
      guarded(lock, [&] { take(mine, tasks); });
      if (mine.empty() && stale_ && !step_end_.empty()) {
        if (std::exchange(waited_at_, version_) != version_) {
          ++waits_;
          backoff = Backoff();
        }
        lock.unlock();
        backoff.pause();  // for a helper, which has a row of this step and may have lost its core
        lock.lock();
        move_prefix();
        continue;
      }
      if (mine.empty()) {
        if (running_ == 0 && !adding_) {
          break;  // nothing that anybody could do
        }
        const std::uint64_t seen = changed_.count();
        ++n_idle_;
        lock.unlock();
        watch.lap();
        changed_.wait(seen);
        waited += watch.lap();
        lock.lock();
        --n_idle_;
        continue;
      }
      ++running_;
      const bool timed = !tiny_ || turn++ % kClockEvery == 0;
      guarded(lock, [&] {
        lock.unlock();
        if (timed) {
          watch.lap();
        }
        work_.run(tasks.data(), static_cast<std::int64_t>(tasks.size()),
                  scratch_[static_cast<std::size_t>(thread)].get());
        for (std::size_t i = 0; sums_.clip > 0 && i < mine.size(); ++i) {
          place(mine[i]).factor = clip_factor(sums_, dim_, tasks[i].delta_out);
        }
        n_rows += static_cast<std::int64_t>(mine.size());
        if (timed) {
          worked += watch.lap();
          n_timed += static_cast<std::int64_t>(mine.size());
        }
      });
      if (!lock.owns_lock()) {
        lock.lock();
      }
      --running_;
      for (const std::int64_t row : mine) {
        place(row).state = errors_.empty() ? State::Done : State::Waiting;
      }
      deltas_out_ -= errors_.empty() ? 0 : static_cast<std::int64_t>(mine.size());
      move_prefix();
    }
    stats_.work_seconds += n_timed == 0 ? 0 : worked * static_cast<double>(n_rows) / static_cast<double>(n_timed);
    stats_.wait_seconds += waited;
    changed_.notify_all();
  }

  // Calls body; an exception is kept for run to throw, and comes back with the lock held. None is destroyed before all
  // threads are done: one of Python's needs the GIL for that, whose holder may want the lock.
  template <class Body>
  void guarded(std::unique_lock<SpinLock>& lock, Body body) {
    try {
      body();
    } catch (...) {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      errors_.push_back(std::current_exception());
    }
  }

  // The next rows for this worker: of those that can run, its share of the first ones, so that the others find some
  // too.
  void take(std::vector<std::int64_t>& mine, std::vector<ClientTask<T>>& tasks) {
    mine.clear();
    tasks.clear();
    for (const std::int64_t end = std::min(rows_.end(), added_ + window()); frontier_ < end; ++frontier_) {
      if (place(frontier_).state == State::Done || is_helpers(frontier_)) {
        continue;  // since before run returned the last time, or not ours
      }
      if (rows_[frontier_].version > version_) {
        block(frontier_);
      } else {
        runnable_.insert(frontier_);
      }
    }
    const std::int64_t share = (runnable_.size() + threads_ - 1) / threads_;
    for (std::int64_t n = std::min(share, at_once_); n > 0; --n) {
      const std::int64_t row = runnable_.pop_first(added_);
      Place& at = place(row);
      if (!at.delta) {
        at.delta = blocks_.take(bytes());
      }
      at.state = State::Running;
      ++deltas_out_;
      mine.push_back(row);
      tasks.push_back({&rows_[row], values(versions_[rows_[row].version].model), values(at.delta), this});
    }
    stats_.most_window = std::max(stats_.most_window, deltas_out_);
  }

  void block(std::int64_t row) {
    Version& wanted = entry(rows_[row].version);
    place(row).next_blocked = -1;
    (wanted.last_blocked < 0 ? wanted.first_blocked : place(wanted.last_blocked).next_blocked) = row;
    wanted.last_blocked = row;
  }

  // Whether the finished rows can move the model, or must make room in the window: those of a step that does not fit.
  bool can_add() const {
    if (adding_) {
      return false;
    }
    const bool complete = !step_end_.empty() && prefix_ >= step_end_.front();
    return complete || (prefix_ == added_ + window() && step_of(added_) == version_);
  }

  // Adds finished rows of the present step in their order, all at once and straight into the next model where the rule
  // allows that; steps when they are all there. The lock is given up for the arithmetic, unless that is brief.
  void add_to_model(std::unique_lock<SpinLock>& lock) {
    const bool complete = !step_end_.empty() && prefix_ >= step_end_.front();
    std::int64_t end = complete ? step_end_.front() : prefix_;
    while (!complete && step_of(end - 1) != version_) {
      --end;
    }
    const T* w = values(versions_[version_].model);
    Memory next = complete ? take_model() : nullptr;
    gather(end);
    const bool brief = static_cast<std::int64_t>(terms_.size() + 2) * dim_ < kBriefNumbers && !secure_ && !record_;
    const std::int64_t counts_for = !brief ? 1 : version_ % kClockEvery == 0 ? kClockEvery : 0;
    const Divergence failed = [&] {
      if (counts_for == 0) {
        return add_rows(complete, w, values(next));
      }
      if (!brief) {
        lock.unlock();
      }
      Stopwatch watch;
      const Divergence result = add_rows(complete, w, values(next));
      if (record_ && complete && result.step < 0 && version_ % record_->every == record_->offset) {
        record_->values.push_back(record_->norm.squared(w));
      }
      if (!brief) {
        lock.lock();
      }
      stats_.commit_seconds += static_cast<double>(counts_for) * watch.lap();
      return result;
    }();
    if (failed.step >= 0) {
      divergence_ = failed;
      spare_.push_back(std::move(next));
      return;
    }
    for (; added_ < end; ++added_) {
      deltas_out_ -= is_helpers(added_) ? 0 : 1;
      place(added_).state = State::Waiting;
    }
    frontier_ = std::max(frontier_, added_);
    if (complete) {
      advance(std::move(next));
    }
  }

  // What add_rows needs of rows added_ .. end, so that it needs no lock.
  void gather(std::int64_t end) {
    terms_.clear();
    weights_ = state_.weights();
    for (std::int64_t i = added_; i < end; ++i) {
      const ReplayRow& row = rows_[i];
      const T* delta = is_helpers(i) ? stale_->delta(i) : values(place(i).delta);
      const T* start = is_rebased(rule_, row.version, version_) ? values(versions_[row.version].model) : nullptr;
      double weight = 0;
      state_.weigh(row.s, row.e, weights_, weight);
      terms_.push_back({delta, kDtype, weight * place(i).factor, start});
    }
  }

  // The arithmetic of add_to_model: the gathered rows into the sum, or all the way into next.
  Divergence add_rows(bool complete, const T* w, T* next) {
    const double norm = norm_of(rule_, weights_);
    if (complete && weights_.arrivals > 0 && norm == 0) {
      throw std::invalid_argument("step " + std::to_string(version_) + ": the weights of its arrivals sum to zero");
    }
    if (secure_) {
      const std::int64_t bad = add_secure(complete);
      if (bad >= 0) {
        return {version_, added_ + bad};
      }
    }
    const bool fused = complete && !secure_ && sums_.deviation == 0 && state_.fuses(terms_);
    if (!fused && !secure_) {
      state_.add(terms_, w);
    }
    state_.set_weights(weights_);
    if (!complete) {
      return {};
    }
    state_.commit_step();
    if (weights_.arrivals == 0) {
      std::memcpy(next, w, bytes());
      return {};
    }
    if (sums_.deviation > 0) {
      add_noise(sums_, dim_, version_, state_.values_out());
    }
    const StepConfig config = step_config(rule_, norm, version_);
    if (fused ? state_.step_fused(terms_, config, w, next) : state_.step(config, w, next)) {
      return {};
    }
    const auto bad = std::find_if(terms_.begin(), terms_.end(), [&](const auto& term) {
      return !kernels().of<T>().all_finite(dim_, static_cast<const T*>(term.delta));
    });
    return {version_, bad == terms_.end() ? -1 : added_ + (bad - terms_.begin())};
  }

  // The gathered rows into the secure sum, and from there into the rule's when the step is complete. Returns the first
  // row whose delta is not finite, or -1; then the step's sum is lost, and cannot be gone on with.
  std::int64_t add_secure(bool complete) {
    Stopwatch watch;
    incomplete_ = "a secure sum that was interrupted";
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const std::int64_t number = added_ + static_cast<std::int64_t>(i);
      const ReplayRow& row = rows_[number];
      const auto* delta = static_cast<const T*>(terms_[i].delta);
      const auto weight = static_cast<std::uint64_t>(std::llround(row.s * row.e * sums_.weight_unit));
      const std::int64_t cut = secure_->add(row, delta, weight, place(number).factor);
      if (cut > 0 && !kernels().of<T>().all_finite(dim_, delta)) {
        return static_cast<std::int64_t>(i);
      }
      step_cut_ += cut;
    }
    if (complete && weights_.arrivals > 0) {
      secure_->finish(version_, state_.values_out());
    }
    stats_.secure_seconds += watch.lap();
    incomplete_ = nullptr;
    return -1;
  }

  // The next version is there: the rows of the step are over, and with them what only they needed; those that waited
  // for it can go.
  void advance(Memory next) {
    step_end_.pop_front();
    stats_.cut += std::exchange(step_cut_, 0);
    Version& made = entry(version_ + 1);
    made.model = std::move(next);
    if (stale_) {
      stale_->know(version_ + 1, values(made.model));
    }
    for (std::int64_t row = made.first_blocked; row >= 0; row = place(row).next_blocked) {
      runnable_.insert(row);
    }
    ++live_;
    stats_.most_versions = std::max(stats_.most_versions, live_);
    const std::int64_t old = version_++;
    for (; rows_.begin() < added_; rows_.pop_front()) {
      --entry(rows_[rows_.begin()].version).pending;
      drop_reference(rows_[rows_.begin()].version);
      ++stats_.rows;
    }
    forget_if_done(old);
  }

  const fb_rule rule_;
  const std::int64_t dim_;
  RuleState<T> state_;
  ClientWork<T>& work_;
  const std::int64_t window_bytes_;
  const SumConfig sums_;
  const std::unique_ptr<SecureSum<T>> secure_;

  SpinLock lock_;
  EventCount changed_;
  std::vector<std::exception_ptr> errors_;  // of the threads, in the order of time
  Divergence divergence_;
  std::int64_t target_ = 0;
  std::int64_t threads_ = 1;
  std::int64_t at_once_ = 1;  // rows that a worker takes at most
  int running_ = 0;           // workers with rows
  int n_idle_ = 0;            // workers that wait for something to do
  bool adding_ = false;       // a worker adds to the model

  IndexRing<ReplayRow> rows_;  // from the first row of the present step on
  std::int64_t added_ = 0;     // rows before it are in the sum
  std::int64_t prefix_ = 0;    // ... are finished
  std::int64_t frontier_ = 0;  // ... were looked at since run began
  std::int64_t rows_known_ = 0;
  bool passing_ = false;              // over rows of steps that were done before a restore
  const char* incomplete_ = nullptr;  // what was taken in part
  std::int64_t scan_ = 0;             // rows before it belong to complete steps
  std::int64_t steps_known_ = 0;
  std::int64_t last_step_ = 0;         // of the last row
  std::deque<std::int64_t> step_end_;  // for each complete step from version_ on: the row after its last

  bool tiny_ = false;                           // whether its tasks are
  Pace helped_, alone_;                         // of tiny rows
  std::unique_ptr<StaleRows<T>> stale_;         // while there are helpers
  std::int64_t first_new_ = 0;                  // no row from here on was finished when they were called
  std::int64_t share_ = StaleRows<T>::kShares;  // of the stale rows that helpers have
  std::int64_t waits_ = 0, waited_at_ = -1;     // steps of a run that waited for a helper, and the last one

  std::vector<Place> places_;    // the window
  WindowBitset runnable_;        // rows of the window that nobody has taken and whose version is there
  std::int64_t deltas_out_ = 0;  // places in use

  IndexRing<Version> versions_;
  std::int64_t version_ = 0;
  std::int64_t live_ = 0;
  Blocks blocks_;
  std::vector<Memory> spare_;  // models to use again
  std::vector<Memory> scratch_;

  std::vector<typename RuleState<T>::Term> terms_;  // of the rows that are being added
  WeightSums weights_;                              // ... and with those that were added before
  std::int64_t step_cut_ = 0;                       // numbers of the step's rows that were out of range
  std::unique_ptr<GradientRecord> record_;          // written by whoever adds to the model
  ReplayStats stats_;
};

template <class T>
Replay<T>::Replay(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
                  const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure)
    : engine_(std::make_unique<Engine>(rule, dim, w0, work, window_bytes, sums, std::move(secure))) {}
template <class T>
Replay<T>::~Replay() = default;
template <class T>
void Replay<T>::add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps) {
  engine_->add(rows, n_rows, references, n_steps);
}
template <class T>
void Replay<T>::release(const std::int64_t* versions, std::int64_t n) {
  engine_->release(versions, n);
}
template <class T>
ReplayExit Replay<T>::run(std::int64_t max_steps, int threads) {
  return engine_->run(max_steps, threads);
}
template <class T>
void Replay<T>::record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset) {
  engine_->record_gradients(problem, every, offset);
}
template <class T>
const std::vector<double>& Replay<T>::gradients() const {
  return engine_->gradients();
}
template <class T>
std::int64_t Replay<T>::version() const {
  return engine_->version();
}
template <class T>
const T* Replay<T>::w() const {
  return engine_->model(engine_->version());
}
template <class T>
const T* Replay<T>::first_moment() const {
  return engine_->first();
}
template <class T>
const T* Replay<T>::second_moment() const {
  return engine_->second();
}
template <class T>
Divergence Replay<T>::divergence() const {
  return engine_->divergence();
}
template <class T>
ReplayStats Replay<T>::stats() const {
  return engine_->stats();
}
template <class T>
void Replay<T>::check() const {
  engine_->check();
}
template <class T>
std::vector<std::int64_t> Replay<T>::live_versions() const {
  return engine_->live_versions();
}
template <class T>
const T* Replay<T>::model(std::int64_t version) const {
  return engine_->model(version);
}
template <class T>
void Replay<T>::pass_over(std::int64_t version) {
  engine_->pass_over(version);
}
template <class T>
std::int64_t Replay<T>::restore(const T* w, const std::vector<std::int64_t>& live, const T* models,
                                const T* first_moment, const T* second_moment) {
  return engine_->restore(w, live, models, first_moment, second_moment);
}

template class Replay<float>;
template class Replay<double>;
}  // namespace fedbuff
