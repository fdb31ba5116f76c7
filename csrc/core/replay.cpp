#include "replay.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#include "dispatch.hpp"
#include "gradient_norm.hpp"
#include "rule.hpp"

namespace fedbuff {

namespace {

constexpr double kFlopsAtOnce = 2e5;  // what a worker takes under one lock, so that small tasks do not fight for it
constexpr std::int64_t kMostAtOnce = 64;
constexpr std::int64_t kAhead = 4;  // times what all workers take at once

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate(std::size_t bytes) {
  Memory memory(std::aligned_alloc(64, std::max<std::size_t>(64, (bytes + 63) / 64 * 64)));
  if (!memory) {
    throw std::bad_alloc();
  }
  return memory;
}

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

template <class T>
class LocalSgdWork final : public ClientWork<T> {
 public:
  LocalSgdWork(const Problem<T>& problem, const LocalConfig& config, std::uint64_t seed,
               std::vector<std::int64_t> batch)
      : problem_(problem), config_(config), seed_(seed), batch_(std::move(batch)) {}

  std::size_t scratch_bytes() const override { return kernels().of<T>().scratch_bytes(problem_); }

  void run(const ReplayRow& row, const T* w, void* scratch, T* delta_out) override {
    const Task task{seed_, row.client, row.task, batch_[static_cast<std::size_t>(row.client)], nullptr};
    kernels().of<T>().local_sgd(problem_, config_, task, w, scratch, delta_out);
  }

  double flops() const override {
    const std::int64_t rows = problem_.family == Family::Quadratic ? 1 : batch_[0] > 0 ? batch_[0] : problem_.max_rows;
    return 4.0 * static_cast<double>(config_.steps * rows) * static_cast<double>(problem_.dim);
  }

 private:
  const Problem<T> problem_;
  const LocalConfig config_;
  const std::uint64_t seed_;
  const std::vector<std::int64_t> batch_;
};

}  // namespace

template <class T>
std::unique_ptr<ClientWork<T>> make_local_sgd(const Problem<T>& problem, const LocalConfig& config, std::uint64_t seed,
                                              std::vector<std::int64_t> batch) {
  return std::make_unique<LocalSgdWork<T>>(problem, config, seed, std::move(batch));
}

// Rows are numbered from 0 over the used arrivals. Always
//   step_begin_ <= added_ <= prefix_ <= next_ <= end of the rows that are known.
template <class T>
class Replay<T>::Engine {
 public:
  Engine(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes)
      : rule_(rule), dim_(dim), work_(work), window_bytes_(window_bytes) {
    first_.resize(has_first_moment(rule) ? size() : 0);
    second_.resize(has_second_moment(rule) ? size() : 0);
    versions_.emplace_back();
    versions_.back().model = take_model();
    std::memcpy(versions_.back().model.get(), w0, bytes());
    ++live_;
    stats_.most_versions = 1;
  }

  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps) {
    for (std::int64_t i = 0; i < n_rows; ++i) {
      const std::int64_t last = pending_.empty() ? steps_known_ : std::max(steps_known_, pending_.back().row.step);
      if (rows[i].step < last || rows[i].version < 0 || rows[i].version > rows[i].step) {
        throw std::invalid_argument("row " + std::to_string(rows_known_) + ": version " +
                                    std::to_string(rows[i].version) + " in step " + std::to_string(rows[i].step) +
                                    " after step " + std::to_string(last));
      }
      if (rows_known_ < skip_rows_) {
        drop_reference(rows[i].version);
      } else {
        pending_.push_back({rows[i], nullptr, State::Waiting, nullptr});
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
      forget_if_done(steps_known_);
    }
  }

  void release(const std::int64_t* versions, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      drop_reference(versions[i]);
    }
  }

  ReplayExit run(std::int64_t max_steps, int threads) {
    target_ = version_ + max_steps;
    divergence_ = {};
    error_ = nullptr;
    next_ = prefix_;
    at_once_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(kFlopsAtOnce / (work_.flops() + 1)), 1, kMostAtOnce);
    // A step's deltas and some ahead of it, so that no worker waits; few, so that they are still in the cache when
    // added.
    const std::int64_t wanted = rule_.buffer_size + kAhead * threads * at_once_;
    const std::int64_t fit = window_bytes_ / static_cast<std::int64_t>(bytes());
    most_pending_ = std::max<std::int64_t>(2 * threads, std::min(wanted, fit));
    while (static_cast<int>(scratch_.size()) < threads) {
      scratch_.push_back(allocate(work_.scratch_bytes()));
      std::memset(scratch_.back().get(), 0, work_.scratch_bytes());
    }
    std::vector<std::thread> pool;
    for (int t = 1; t < threads; ++t) {
      pool.emplace_back([this, t] { work(t); });
    }
    work(0);
    for (std::thread& thread : pool) {
      thread.join();
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
    if (divergence_.step >= 0) {
      return ReplayExit::Diverged;
    }
    return version_ == target_ ? ReplayExit::Steps : ReplayExit::NeedRows;
  }

  void restore(std::int64_t version, const T* w, const std::vector<std::int64_t>& live, const T* models, const T* first,
               const T* second, std::int64_t rows_done) {
    versions_.clear();
    base_ = live.empty() ? version : std::min(version, live.front());
    live_ = 0;
    for (std::int64_t v = base_; v <= version; ++v) {
      versions_.emplace_back();
    }
    const auto put = [this](std::int64_t v, const T* from) {
      entry(v).model = take_model();
      std::memcpy(entry(v).model.get(), from, bytes());
      ++live_;
    };
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (live[i] != version) {
        put(live[i], models + i * size());
      }
    }
    put(version, w);
    if (first != nullptr) {
      std::memcpy(first_.data(), first, first_.size() * sizeof(T));
    }
    if (second != nullptr) {
      std::memcpy(second_.data(), second, second_.size() * sizeof(T));
    }
    version_ = version;
    skip_rows_ = rows_done;
    step_begin_ = added_ = prefix_ = next_ = rows_done;
    stats_.rows = rows_done;
    stats_.most_versions = live_;
  }

  void check() const {
    const auto require = [](bool holds, const char* what) {
      if (!holds) {
        throw std::logic_error(std::string("replay: ") + what);
      }
    };
    require(step_begin_ <= added_ && added_ <= prefix_ && prefix_ <= next_ && next_ <= rows_known_, "row order");
    require(std::max(rows_known_, step_begin_) - step_begin_ == static_cast<std::int64_t>(pending_.size()),
            "rows kept");
    std::int64_t deltas = 0;
    std::vector<std::int64_t> wanted(versions_.size());
    for (std::int64_t i = step_begin_; i < rows_known_; ++i) {
      const Pending& p = pending(i);
      deltas += p.delta ? 1 : 0;
      require(i < added_ ? !p.delta : p.state != State::Done || p.delta, "a finished row has its delta");
      require(i >= prefix_ || p.state == State::Done, "rows before the prefix are finished");
      if (p.row.version <= version_) {
        require(entry(p.row.version).model != nullptr, "a needed version is there");
      }
      if (p.row.version - base_ < static_cast<std::int64_t>(wanted.size())) {
        ++wanted[static_cast<std::size_t>(p.row.version - base_)];
      }
    }
    require(deltas == deltas_out_, "deltas in the window");
    std::int64_t live = 0;
    for (std::size_t v = 0; v < versions_.size(); ++v) {
      live += versions_[v].model ? 1 : 0;
      require(!versions_[v].closed || versions_[v].references >= wanted[v], "references cover the rows");
    }
    require(live == live_, "live versions");
    require(entry(version_).model != nullptr, "the current model is there");
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
    const bool known = version >= base_ && version - base_ < static_cast<std::int64_t>(versions_.size());
    return known ? static_cast<const T*>(entry(version).model.get()) : nullptr;
  }
  std::vector<std::int64_t> live_versions() const {
    std::vector<std::int64_t> live;
    for (std::size_t v = 0; v < versions_.size(); ++v) {
      if (versions_[v].model) {
        live.push_back(base_ + static_cast<std::int64_t>(v));
      }
    }
    return live;
  }
  const T* first() const { return first_.empty() ? nullptr : first_.data(); }
  const T* second() const { return second_.empty() ? nullptr : second_.data(); }
  Divergence divergence() const { return divergence_; }
  ReplayStats stats() const {
    ReplayStats stats = stats_;
    stats.live_versions = live_;
    stats.window = deltas_out_;
    return stats;
  }

 private:
  enum class State : std::uint8_t { Waiting, Running, Done };

  struct Pending {
    ReplayRow row;
    Memory delta;
    State state;
    const T* start = nullptr;  // the model it downloaded, from when it is taken
  };

  struct GradientRecord {
    GradientNorm<T> norm;
    std::int64_t every, offset;
    std::vector<double> values;
  };

  struct Version {
    Memory model;
    std::int64_t references = 0;  // tasks that ended or will end on it and are not committed; below zero while open
    bool closed = false;          // no task can start on it any more
  };

  std::size_t size() const { return static_cast<std::size_t>(dim_); }
  std::size_t bytes() const { return size() * sizeof(T); }
  static T* values(const Memory& memory) { return static_cast<T*>(memory.get()); }

  Pending& pending(std::int64_t row) { return pending_[static_cast<std::size_t>(row - step_begin_)]; }
  const Pending& pending(std::int64_t row) const { return pending_[static_cast<std::size_t>(row - step_begin_)]; }
  std::int64_t step_of(std::int64_t row) const { return row < step_begin_ ? -1 : pending(row).row.step; }

  Version& entry(std::int64_t version) {
    while (version - base_ >= static_cast<std::int64_t>(versions_.size())) {
      versions_.emplace_back();
    }
    if (version < base_) {
      forgotten_.references = 0;  // of a version that a restored replay is past
      return forgotten_;
    }
    return versions_[static_cast<std::size_t>(version - base_)];
  }
  const Version& entry(std::int64_t version) const { return versions_[static_cast<std::size_t>(version - base_)]; }

  Memory take_model() {
    if (spare_.empty()) {
      return allocate(bytes());
    }
    Memory memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }

  void drop_reference(std::int64_t version) {
    --entry(version).references;
    forget_if_done(version);
  }

  void forget_if_done(std::int64_t version) {
    if (version < base_ || version == version_) {
      return;
    }
    Version& old = entry(version);
    if (old.closed && old.references == 0 && old.model && version < version_) {
      spare_.push_back(std::move(old.model));
      --live_;
    }
    while (versions_.size() > 1 && base_ < version_ && versions_.front().closed && versions_.front().references == 0 &&
           !versions_.front().model) {
      versions_.pop_front();
      ++base_;
    }
  }

  // One worker, until there is nothing left to do for it.
  void work(int thread) {
    std::vector<Pending*> mine;
    mine.reserve(kMostAtOnce);
    Stopwatch watch;
    double worked = 0;
    double waited = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (version_ < target_ && !error_ && divergence_.step < 0) {
      if (can_add()) {
        adding_ = true;
        guarded(lock, [&] { add_to_model(lock); });
        adding_ = false;
        wake_.notify_all();
        continue;
      }
      guarded(lock, [&] { take(mine); });
      if (mine.empty()) {
        if (running_ == 0 && !adding_) {
          break;  // nothing that anybody could do
        }
        watch.lap();
        wake_.wait(lock);
        waited += watch.lap();
        continue;
      }
      ++running_;
      guarded(lock, [&] {
        lock.unlock();
        watch.lap();
        for (Pending* p : mine) {
          work_.run(p->row, p->start, scratch_[static_cast<std::size_t>(thread)].get(), values(p->delta));
        }
        worked += watch.lap();
      });
      if (!lock.owns_lock()) {
        lock.lock();
      }
      --running_;
      for (Pending* p : mine) {
        if (error_) {
          p->state = State::Waiting;
          spare_.push_back(std::move(p->delta));
          --deltas_out_;
        } else {
          p->state = State::Done;
        }
      }
      while (prefix_ < next_ && pending(prefix_).state == State::Done) {
        ++prefix_;
      }
    }
    stats_.work_seconds += worked;
    stats_.wait_seconds += waited;
    wake_.notify_all();
  }

  // Calls body; an exception is kept for run to throw, and comes back with the lock held.
  template <class Body>
  void guarded(std::unique_lock<std::mutex>& lock, Body body) {
    try {
      body();
    } catch (...) {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      error_ = std::current_exception();
    }
  }

  // The next rows for this worker: their versions exist, and the window has room for their deltas.
  void take(std::vector<Pending*>& mine) {
    mine.clear();
    while (next_ < rows_known_ && static_cast<std::int64_t>(mine.size()) < at_once_) {
      Pending& p = pending(next_);
      if (p.state == State::Waiting) {
        if (p.row.version > version_ || deltas_out_ >= most_pending_) {
          break;
        }
        p.delta = take_model();
        p.start = values(entry(p.row.version).model);
        p.state = State::Running;
        stats_.most_window = std::max(stats_.most_window, ++deltas_out_);
        mine.push_back(&p);
      }
      ++next_;  // else it was worked out before run returned the last time
    }
  }

  // Whether the finished rows can move the model, or must make room in the window.
  bool can_add() const {
    if (adding_) {
      return false;
    }
    const bool complete = !step_end_.empty() && prefix_ >= step_end_.front();
    const bool full = deltas_out_ >= most_pending_ && prefix_ > added_ && running_ == 0;
    return complete || full;
  }

  // Adds finished rows of the present step in their order, all at once and straight into the next model where the rule
  // allows that; steps when they are all there. The lock is given up for the arithmetic.
  void add_to_model(std::unique_lock<std::mutex>& lock) {
    const bool complete = !step_end_.empty() && prefix_ >= step_end_.front();
    const std::int64_t end = complete ? step_end_.front() : prefix_;
    std::vector<Pending*> rows;
    for (std::int64_t i = added_; i < end && step_of(i) == version_; ++i) {
      rows.push_back(&pending(i));
    }
    const T* w = values(entry(version_).model);
    Memory next = complete ? take_model() : nullptr;
    const Divergence failed = [&] {
      lock.unlock();
      Stopwatch watch;
      const Divergence result = add_rows(rows, complete, w, values(next));
      if (record_ && complete && result.step < 0 && version_ % record_->every == record_->offset) {
        record_->values.push_back(record_->norm.squared(w));
      }
      lock.lock();
      stats_.commit_seconds += watch.lap();
      return result;
    }();
    if (failed.step >= 0) {
      divergence_ = failed;
      spare_.push_back(std::move(next));
      return;
    }
    for (Pending* row : rows) {
      spare_.push_back(std::move(row->delta));
      --deltas_out_;
    }
    added_ += static_cast<std::int64_t>(rows.size());
    if (complete) {
      advance(std::move(next));
    }
  }

  // The arithmetic of add_to_model: rows into sum_, or all the way into next.
  Divergence add_rows(const std::vector<Pending*>& rows, bool complete, const T* w, T* next) {
    const Kernels<T>& k = kernels().of<T>();
    for (const Pending* p : rows) {
      sum_weights_ += p->row.e;
      sum_scaled_weights_ += p->row.s * p->row.e;
    }
    const bool one_pass = complete && in_sum_ == 0 && rule_.optimizer == FB_SGD && rule_.momentum == 0 &&
                          std::all_of(rows.begin(), rows.end(), [this](const Pending* p) { return from_start(*p); });
    if (!one_pass) {
      sum_.resize(size());
      for (const Pending* p : rows) {
        const T* start = from_start(*p) ? nullptr : p->start;
        k.accumulate(dim_, in_sum_ == 0 ? nullptr : sum_.data(), values(p->delta), weight(*p), w, start, sum_.data());
        ++in_sum_;
      }
    }
    if (!complete) {
      return {};
    }
    const std::int64_t arrivals = one_pass ? static_cast<std::int64_t>(rows.size()) : in_sum_;
    const double norm = norm_of(rule_, arrivals, sum_weights_, sum_scaled_weights_);
    sum_weights_ = 0;
    sum_scaled_weights_ = 0;
    in_sum_ = 0;
    if (arrivals == 0) {
      std::memcpy(next, w, bytes());
      return {};
    }
    if (norm == 0) {
      throw std::invalid_argument("step " + std::to_string(version_) + ": the weights of its arrivals sum to zero");
    }
    if (one_pass) {
      std::vector<const T*> deltas;
      std::vector<T> weights;
      for (const Pending* p : rows) {
        deltas.push_back(values(p->delta));
        weights.push_back(weight(*p));
      }
      k.aggregate(dim_, w, arrivals, deltas.data(), weights.data(), static_cast<T>(rule_.lr / norm), next);
    } else {
      step_model(k, rule_, step_config(rule_, norm, version_), dim_, w, sum_.data(), first_.data(), second_.data(),
                 next);
    }
    if (k.all_finite(dim_, next)) {
      return {};
    }
    const auto bad =
        std::find_if(rows.begin(), rows.end(), [&](const Pending* p) { return !k.all_finite(dim_, values(p->delta)); });
    return {version_, bad == rows.end() ? -1 : added_ + (bad - rows.begin())};
  }

  // Whether a row's delta counts as it is: against the model it started from, or that one is the present one.
  bool from_start(const Pending& p) const { return rule_.base == FB_BASE_START || p.row.version == version_; }
  static T weight(const Pending& p) { return static_cast<T>(p.row.s * p.row.e); }

  // The next version is there: the rows of the step are over, and with them what only they needed.
  void advance(Memory next) {
    step_end_.pop_front();
    entry(version_ + 1).model = std::move(next);
    ++live_;
    stats_.most_versions = std::max(stats_.most_versions, live_);
    const std::int64_t old = version_++;
    for (; step_begin_ < added_; ++step_begin_) {
      drop_reference(pending_.front().row.version);
      pending_.pop_front();
      ++stats_.rows;
    }
    forget_if_done(old);
  }

  const fb_rule rule_;
  const std::int64_t dim_;
  ClientWork<T>& work_;
  const std::int64_t window_bytes_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::exception_ptr error_;
  Divergence divergence_;
  std::int64_t target_ = 0;
  std::int64_t most_pending_ = 0;  // deltas in the window, at the most
  std::int64_t at_once_ = 1;       // rows that a worker takes
  int running_ = 0;                // workers with rows
  bool adding_ = false;            // a worker adds to the model

  std::deque<Pending> pending_;  // rows step_begin_ .. rows_known_
  std::int64_t step_begin_ = 0;  // the first row of the present step
  std::int64_t added_ = 0;       // rows before it are in the sum
  std::int64_t prefix_ = 0;      // ... are finished
  std::int64_t next_ = 0;        // ... were taken
  std::int64_t rows_known_ = 0;
  std::int64_t skip_rows_ = 0;  // done before a restore
  std::int64_t scan_ = 0;       // rows before it belong to complete steps
  std::int64_t steps_known_ = 0;
  std::deque<std::int64_t> step_end_;  // for each complete step from version_ on: the row after its last

  std::deque<Version> versions_;  // from base_
  Version forgotten_;
  std::int64_t base_ = 0;
  std::int64_t version_ = 0;
  std::int64_t live_ = 0;
  std::vector<Memory> spare_;  // models and deltas to use again
  std::vector<Memory> scratch_;
  std::int64_t deltas_out_ = 0;

  std::vector<T> sum_, first_, second_;
  std::int64_t in_sum_ = 0;
  double sum_weights_ = 0;
  double sum_scaled_weights_ = 0;
  std::unique_ptr<GradientRecord> record_;  // written by whoever adds to the model
  ReplayStats stats_;
};

template <class T>
Replay<T>::Replay(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes)
    : engine_(std::make_unique<Engine>(rule, dim, w0, work, window_bytes)) {}
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
void Replay<T>::restore(std::int64_t version, const T* w, const std::vector<std::int64_t>& live, const T* models,
                        const T* first_moment, const T* second_moment, std::int64_t rows_done) {
  engine_->restore(version, w, live, models, first_moment, second_moment, rows_done);
}

template class Replay<float>;
template class Replay<double>;
template std::unique_ptr<ClientWork<float>> make_local_sgd(const Problem<float>&, const LocalConfig&, std::uint64_t,
                                                           std::vector<std::int64_t>);
template std::unique_ptr<ClientWork<double>> make_local_sgd(const Problem<double>&, const LocalConfig&, std::uint64_t,
                                                            std::vector<std::int64_t>);

}  // namespace fedbuff
