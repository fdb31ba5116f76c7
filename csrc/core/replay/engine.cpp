#include "replay/engine.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "replay/stopwatch.hpp"
#include "threads/thread_pool.hpp"

namespace fedbuff {

namespace {

constexpr double kFlopsAtOnce = 2e5;  // of the rows that a worker takes under one lock: fewer locks for small tasks
constexpr std::int64_t kMostAtOnceShared = 8;  // where other workers may wait for the rows that one has taken
constexpr std::int64_t kClockEvery = 64;       // brief steps or turns: reading the clock takes longer than they do
constexpr std::int64_t kAhead = 4;             // the window is this many times what all workers take at once
constexpr std::int64_t kLag = 2;               // versions that a tiny row must be old to be run by a helper
constexpr int kMostHelpers = 3;                // that one leader can supply

// (w, c) of a rule with a control variate, else w. A null c is zero.
template <class T>
std::vector<T> version_of(const fb_rule& rule, std::int64_t dim, const T* w, const T* control) {
  std::vector<T> version(w, w + dim);
  if (has_control(rule)) {
    version.resize(2 * version.size());
    if (control != nullptr) {
      std::copy_n(control, dim, version.begin() + dim);
    }
  }
  return version;
}

}  // namespace

// The state of one worker thread.
template <class T>
struct ReplayEngine<T>::Worker {
  std::vector<std::int64_t> rows;  // that it has taken
  std::vector<ClientTask<T>> tasks;
  Stopwatch watch;
  Backoff backoff;
  std::int64_t turn = 0;
  double worked = 0, waited = 0;         // seconds
  std::int64_t n_rows = 0, n_timed = 0;  // rows that it ran, and those that `worked` is of
};

template <class T>
ReplayEngine<T>::ReplayEngine(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work,
                              std::int64_t window_bytes, const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure)
    : dim_(dim),
      width_(has_control(rule) ? 2 * dim : dim),
      work_(work),
      sums_(sums),
      groups_(work.most_in_group()),
      versions_(width_, version_of<T>(rule, dim, w0, nullptr).data(), pool_),
      window_(dim, window_bytes, pool_, work.keeps_state()),
      states_(dim, work.keeps_state(), pool_),
      commit_(rule, dim, sums, std::move(secure)) {
  commit_.state().start_from(w0);
}

// ---- input

template <class T>
void ReplayEngine<T>::add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references,
                          std::int64_t n_steps) {
  require_whole();
  incomplete_ = "rows that were refused";  // if one of them throws
  for (std::int64_t i = 0; i < n_rows; ++i) {
    queue_.require_order(rows[i]);
    if (versions_.is_passing() && rows[i].step < versions_.current()) {
      versions_.release(rows[i].version, queue_.n_rows());
      if (states_.is_on()) {
        states_.skip(queue_.n_rows(), rows[i].client);
      }
      queue_.skip();
      window_.skip();
      ++stats_.rows;
    } else {
      versions_.hold(rows[i].version, queue_.n_rows());
      groups_.add(queue_.n_rows(), rows[i]);
      if (states_.is_on()) {
        states_.add(queue_.n_rows(), rows[i].client);
      }
      queue_.push(rows[i]);
    }
  }
  for (std::int64_t k = 0; k < n_steps; ++k) {
    const std::int64_t step = queue_.n_steps();
    queue_.close_step(versions_.current());
    versions_.close(step, references[k], queue_.n_rows());
  }
  incomplete_ = nullptr;
}

template <class T>
void ReplayEngine<T>::release(const std::int64_t* versions, std::int64_t n) {
  require_whole();
  incomplete_ = "ended tasks that were refused";
  for (std::int64_t i = 0; i < n; ++i) {
    if (versions[i] < 0) {
      throw std::invalid_argument("version " + std::to_string(versions[i]) + ": no task can end on it");
    }
    versions_.release(versions[i], queue_.n_rows());
  }
  incomplete_ = nullptr;
}

template <class T>
void ReplayEngine<T>::pass_over(std::int64_t version) {
  if (queue_.n_rows() > 0 || queue_.n_steps() > 0 || versions_.current() > 0 || version < 0) {
    throw std::logic_error("replay: only a new one can pass over steps");
  }
  versions_.pass_over(version);
}

template <class T>
std::int64_t ReplayEngine<T>::restore(const T* w, const std::vector<std::int64_t>& live, const T* models,
                                      const std::vector<fb_array>& rule_state, const T* deltas, std::int64_t n_deltas) {
  require_whole();
  if (!versions_.is_passing() || queue_.n_steps() < versions_.current()) {
    throw std::logic_error("replay: it has not passed over the steps that are done");
  }
  const T* control = nullptr;
  for (const fb_array& array : rule_state) {
    if (has_control(commit_.rule()) && std::strcmp(array.name, "control") == 0) {
      control = static_cast<const T*>(array.data);
    } else if (states_.is_on() && std::strcmp(array.name, "state") == 0) {
      states_.restore(static_cast<std::int32_t>(array.key), array.data);
    } else if (commit_.restore(array) != FB_OK) {
      throw std::invalid_argument(std::string(array.name) + ": the rule keeps no such array");
    }
  }
  const std::int64_t n_needed = versions_.restore(version_of<T>(commit_.rule(), dim_, w, control).data(), live, models);
  restore_deltas(deltas, n_deltas);
  return n_needed;
}

// What is saved beside models: the rule's arrays, the control variate (dim), and "state" (dim) of clients by their
// number.
template <class T>
std::vector<fb_array> ReplayEngine<T>::arrays() const {
  constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;
  std::vector<fb_array> found = commit_.arrays();
  if (has_control(commit_.rule())) {
    found.push_back({"control", -1, dim_, kDtype, versions_.model(versions_.current()) + dim_});
  }
  states_.visit_saved(
      [&](std::int64_t client, const T* state) { found.push_back({"state", client, dim_, kDtype, state}); });
  return found;
}

// The first rows are done, with these deltas; the next group begins after them.
template <class T>
void ReplayEngine<T>::restore_deltas(const T* deltas, std::int64_t n) {
  const std::int64_t first = window_.added();
  if (n < 0 || (n > 0 && n >= groups_.most())) {
    throw std::invalid_argument("deltas: there are " + std::to_string(n) + ", and a group has at most " +
                                std::to_string(groups_.most()) + " rows");
  }
  window_.resize(n, n);
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(window_.put(first + i), deltas + i * dim_, static_cast<std::size_t>(dim_) * sizeof(T));
    if (sums_.clip > 0) {
      window_.set_factor(first + i, clip_factor(sums_, dim_, window_.delta(first + i)));
    }
  }
  groups_.restart(first, n);
  for (std::int64_t row = first; row < queue_.rows().end(); ++row) {
    groups_.add(row, queue_.rows()[row]);
  }
  if (groups_.is_closed()) {
    groups_.close();
  }
}

// Rows of the present step and later ones, from the first on, that are in a group with a row that is committed: it
// cannot be run again.
template <class T>
std::vector<const T*> ReplayEngine<T>::waiting_deltas() const {
  std::vector<const T*> deltas;
  const std::int64_t first = queue_.rows().begin();
  const RowGroup* group = groups_.find(first);
  if (window_.added() != first && group != nullptr && group->begin < first) {
    throw std::logic_error("replay: a part of a step is in its sum, and belongs to a group of an earlier one");
  }
  for (std::int64_t row = first; group != nullptr && group->begin < first && row < group->end; ++row) {
    deltas.push_back(window_.delta(row));
  }
  return deltas;
}

// Input that was taken in part, or a part of a secure sum, cannot be continued.
template <class T>
void ReplayEngine<T>::require_whole() const {
  const char* part = commit_.is_interrupted() ? "a secure sum that was interrupted" : incomplete_;
  if (part != nullptr) {
    throw std::logic_error(std::string("replay: it holds a part of ") + part + "; make it anew");
  }
}

// ---- a run

template <class T>
ReplayExit ReplayEngine<T>::run(std::int64_t max_steps, int threads) {
  if (divergence_.step >= 0) {
    return ReplayExit::Diverged;  // a part of the step may be in the sum, so it cannot be repeated
  }
  require_whole();
  if (versions_.is_passing()) {
    throw std::logic_error("replay: it passes over rows and has no models yet");
  }
  target_ = versions_.current() + max_steps;
  tiny_ = work_.is_tiny() && !states_.is_on();
  const bool with_helpers = tiny_ && threads > 1 && sums_.clip == 0 && policy_.wants_helpers();
  n_workers_ = tiny_ ? 1 : threads;
  threads = !tiny_ ? threads : with_helpers ? std::min(threads, 1 + kMostHelpers) : 1;
  prepare(threads, with_helpers);
  Stopwatch watch;
  const std::int64_t first_row = window_.added(), first_version = versions_.current();
  run_together(threads, [this](int thread) {
    if (helpers_ && thread > 0) {
      help(thread);
      return;
    }
    work(thread);
    if (helpers_) {
      helpers_->stop();
    }
  });
  finish(with_helpers, watch.lap(), first_row, first_version);
  if (!errors_.empty()) {
    // No error is kept here: one of Python's may refer to the object that owns this replay.
    const std::exception_ptr first = std::exchange(errors_, {}).front();
    std::rethrow_exception(first);
  }
  if (divergence_.step >= 0) {
    return ReplayExit::Diverged;
  }
  return versions_.current() == target_ ? ReplayExit::Steps : ReplayExit::NeedRows;
}

// Memory for a run: places of the window, scratch of the threads.
template <class T>
void ReplayEngine<T>::prepare(int threads, bool with_helpers) {
  helpers_ = nullptr;
  errors_.clear();
  errors_.reserve(static_cast<std::size_t>(4 * std::max(threads, 1)));  // a thread stops soon after its first
  const auto affordable = static_cast<std::int64_t>(kFlopsAtOnce / (work_.flops() + 1));
  at_once_ = std::clamp<std::int64_t>(affordable, 1, n_workers_ == 1 ? kMaxTasksPerRun : kMostAtOnceShared);
  at_once_ = groups_.is_on() ? 1 : at_once_;
  // The deltas of a step, which cannot be more than the rows that there are, and some ahead, so that no worker waits;
  // but few, so that they are in the cache when they are added. A group is in the window with the step before it.
  const std::int64_t rows_end = queue_.rows().end();
  const auto buffer =
      std::min<std::int64_t>(commit_.rule().buffer_size, std::max(rows_end - window_.added(), window_.size()));
  const std::int64_t ahead = std::max(kAhead * n_workers_ * at_once_, with_helpers ? 2 * kLag * buffer : 0);
  const std::int64_t group = groups_.most();
  window_.resize(buffer + std::max(ahead, 2 * n_workers_ * group), group > 0 ? buffer + group : 2 * n_workers_);
  move_prefix();
  groups_.forget_before(window_.added());
  groups_.revisit();
  versions_.clear_waiting();
  if (with_helpers) {
    start_helpers(threads - 1);
  }
  while (static_cast<int>(scratch_.size()) < threads) {
    scratch_.push_back(pool_.take(work_.scratch_bytes()));
    std::memset(scratch_.back().get(), 0, work_.scratch_bytes());
  }
}

// What a run of tiny tasks took, and the end of its helpers.
template <class T>
void ReplayEngine<T>::finish(bool with_helpers, double seconds, std::int64_t first_row, std::int64_t first_version) {
  if (tiny_) {
    policy_.note_run(with_helpers, seconds, window_.added() - first_row);
  }
  if (std::exchange(helpers_, nullptr)) {
    window_.restart_prefix();  // rows that helpers have run and nobody has added are run again
    move_prefix();
    policy_.adapt_share(versions_.current() - first_version);
  }
}

template <class T>
void ReplayEngine<T>::start_helpers(std::int64_t n_helpers) {
  const IndexRing<ReplayRow>& rows = queue_.rows();
  const std::int64_t current = versions_.current(), end = std::max(versions_.end(), queue_.n_steps() + 1) + 1;
  helpers_ = std::make_unique<Helpers<T>>(work_, rows, dim_, kLag, policy_.share(), window_.size(), n_helpers,
                                          versions_.begin(), end - versions_.begin());
  for (std::int64_t v = versions_.begin(); v <= current; ++v) {
    helpers_->set_model(v, versions_.model(v));
  }
  helpers_->post(current, window_.added());
  first_new_ = window_.added();
  for (std::int64_t i = window_.added(); i < window_.end(rows.end()); ++i) {
    first_new_ = window_.is_done(i) ? i + 1 : first_new_;
  }
}

template <class T>
void ReplayEngine<T>::help(int thread) {
  try {
    helpers_->help(thread - 1, scratch_[static_cast<std::size_t>(thread)].get());
  } catch (...) {
    const std::lock_guard<SpinLock> lock(lock_);
    errors_.push_back(std::current_exception());
  }
}

template <class T>
std::shared_ptr<const void> ReplayEngine<T>::keep(std::int64_t version) {
  const std::lock_guard<SpinLock> lock(lock_);
  return versions_.keep(version);
}

// ---- a worker

// Until the run has reached its end, or nothing is left that this worker could do.
template <class T>
void ReplayEngine<T>::work(int thread) {
  Worker worker;
  void* scratch = scratch_[static_cast<std::size_t>(thread)].get();
  Lock lock(lock_);
  guarded(lock, [&] {
    worker.rows.reserve(static_cast<std::size_t>(at_once_));
    worker.tasks.reserve(static_cast<std::size_t>(at_once_));
  });
  bool alone = helpers_ != nullptr;  // until the helpers have started
  while (versions_.current() < target_ && errors_.empty() && divergence_.step < 0) {
    alone = alone && !helpers_->begin(std::max(window_.frontier(), first_new_));
    if (can_add()) {
      commit_rows(lock);
      continue;
    }
    guarded(lock, [&] { take(worker); });
    if (!worker.rows.empty()) {
      run_tasks(lock, worker, scratch);
    } else if (helpers_ && queue_.has_complete_step()) {
      wait_for_helper(lock, worker);
    } else if (n_running_ > 0 || adding_) {
      wait_for_change(lock, worker);
    } else {
      break;
    }
  }
  stats_.work_seconds += worker.n_timed == 0
                             ? 0
                             : worker.worked * static_cast<double>(worker.n_rows) / static_cast<double>(worker.n_timed);
  stats_.wait_seconds += worker.waited;
  changed_.notify_all();
}

// Calls body. An exception is kept for run to throw; the lock is held after it. None is destroyed before all threads
// are done: destroying one of Python's needs the GIL, and the thread that holds the GIL may wait for the lock.
template <class T>
template <class Body>
void ReplayEngine<T>::guarded(Lock& lock, Body body) {
  try {
    body();
  } catch (...) {
    if (!lock.owns_lock()) {
      lock.lock();
    }
    errors_.push_back(std::current_exception());
  }
}

template <class T>
void ReplayEngine<T>::commit_rows(Lock& lock) {
  adding_ = true;
  guarded(lock, [&] { add_to_model(lock); });
  adding_ = false;
  if (helpers_) {
    helpers_->post(versions_.current(), window_.added());
    move_prefix();
  }
  if (n_idle_ > 0) {
    changed_.notify_all();
  }
}

// A helper has a row of this step. It may have lost its core, so this thread yields after a while.
template <class T>
void ReplayEngine<T>::wait_for_helper(Lock& lock, Worker& worker) {
  if (policy_.note_wait(versions_.current())) {
    worker.backoff = Backoff();
  }
  lock.unlock();
  worker.backoff.pause();
  lock.lock();
  move_prefix();
}

template <class T>
void ReplayEngine<T>::wait_for_change(Lock& lock, Worker& worker) {
  const std::uint64_t seen = changed_.count();
  ++n_idle_;
  lock.unlock();
  worker.watch.lap();
  changed_.wait(seen);
  worker.waited += worker.watch.lap();
  lock.lock();
  --n_idle_;
}

// Runs the rows that the worker has taken, without the lock.
template <class T>
void ReplayEngine<T>::run_tasks(Lock& lock, Worker& worker, void* scratch) {
  const auto n = static_cast<std::int64_t>(worker.rows.size());
  const bool timed = !tiny_ || worker.turn++ % kClockEvery == 0;
  ++n_running_;
  guarded(lock, [&] {
    lock.unlock();
    if (timed) {
      worker.watch.lap();
    }
    work_.run(worker.tasks.data(), n, scratch);
    for (std::size_t i = 0; sums_.clip > 0 && i < worker.rows.size(); ++i) {
      window_.set_factor(worker.rows[i], clip_factor(sums_, dim_, worker.tasks[i].delta_out));
    }
    worker.n_rows += n;
    if (timed) {
      worker.worked += worker.watch.lap();
      worker.n_timed += n;
    }
  });
  if (!lock.owns_lock()) {
    lock.lock();
  }
  --n_running_;
  for (const std::int64_t row : worker.rows) {
    errors_.empty() ? window_.finish(row) : window_.cancel(row);
  }
  move_prefix();
}

// Takes rows for this worker: its share of those that can run, so that the other workers find some too.
template <class T>
void ReplayEngine<T>::take(Worker& worker) {
  worker.rows.clear();
  worker.tasks.clear();
  groups_.is_on() ? visit_groups() : visit_rows();
  const std::int64_t share = (window_.n_runnable() + n_workers_ - 1) / n_workers_;
  for (std::int64_t n = std::min(share, at_once_); n > 0; --n) {  // rows, or one group
    const std::int64_t row = window_.pop_runnable();
    const std::int64_t end = groups_.is_on() ? groups_.find(row)->end : row + 1;
    for (std::int64_t i = row; i < end; ++i) {
      add_task(worker, i, window_.start(i));
    }
  }
}

template <class T>
void ReplayEngine<T>::add_task(Worker& worker, std::int64_t row, T* delta_out) {
  worker.rows.push_back(row);
  ClientTask<T>& task = worker.tasks.emplace_back();  // field by field: a copy has to wait for its stores
  task.row = &queue_.rows()[row];
  task.w = versions_.model(task.row->version);
  task.delta_out = delta_out;
  task.store = this;
  if (has_control(commit_.rule())) {
    task.control = task.w + dim_;
  }
  if (states_.is_on()) {
    SharedMemory& after = window_.client_state(row);
    if (!after) {
      after = states_.take();
    }
    task.state = state_before(row);
    task.state_out = static_cast<T*>(after.get());
  }
}

// What the client's row before this one, which is done, left.
template <class T>
const T* ReplayEngine<T>::state_before(std::int64_t row) {
  const std::int64_t before = states_.previous(row);
  return before >= window_.added() ? static_cast<const T*>(window_.client_state(before).get())
                                   : states_.state(queue_.rows()[row].client);
}

// Rows that have come into the window can run, or wait for their version.
template <class T>
void ReplayEngine<T>::visit_rows() {
  const IndexRing<ReplayRow>& rows = queue_.rows();
  window_.visit_new(rows.end(), [&](std::int64_t row) {
    if (window_.is_done(row) || is_helpers(row)) {
      return;  // done in an earlier run, or not for this worker
    }
    if (rows[row].version > versions_.current()) {
      window_.make_wait(row, versions_.waiting(rows[row].version));
    } else {
      make_ready(row);
    }
  });
}

// A row whose version exists can run when the row of its client before it is done.
template <class T>
void ReplayEngine<T>::make_ready(std::int64_t row) {
  const std::int64_t before = states_.is_on() ? states_.previous(row) : -1;
  if (before >= window_.added() && !window_.is_done(before)) {
    window_.make_follow(row, before);
  } else {
    window_.make_runnable(row);
  }
}

// The same of groups; each stands in the lists by its first row.
template <class T>
void ReplayEngine<T>::visit_groups() {
  groups_.visit_new(window_.end(queue_.rows().end()), [&](const RowGroup& group) {
    if (group.begin < window_.added() || window_.is_done(group.begin)) {
      return;  // run before, all of it
    }
    if (group.version > versions_.current()) {
      window_.make_wait(group.begin, versions_.waiting(group.version));
    } else {
      window_.make_runnable(group.begin);
    }
  });
}

template <class T>
void ReplayEngine<T>::move_prefix() {
  const IndexRing<ReplayRow>& rows = queue_.rows();
  window_.move_prefix(rows.end(), [&](std::int64_t row) {
    return is_helpers(row) ? helpers_->is_done(row, rows[row]) : window_.is_done(row);
  });
}

// ---- commits

// Whether the done rows complete a step, or fill the window, so that a step which does not fit makes room.
template <class T>
bool ReplayEngine<T>::can_add() const {
  if (adding_) {
    return false;
  }
  const std::int64_t prefix = window_.prefix(), window_end = window_.added() + window_.size();
  if (queue_.has_complete_step() && prefix >= queue_.step_end()) {
    return true;
  }
  const RowGroup* next = groups_.is_on() ? groups_.find(prefix) : nullptr;
  const bool full = prefix == window_end || (next != nullptr && next->end > window_end);
  return full && prefix > window_.added() && queue_.step_of(window_.added()) == versions_.current();
}

// Adds done rows of the present step in their order, and makes the step when it is complete. Releases the lock for the
// arithmetic, unless that is brief.
template <class T>
void ReplayEngine<T>::add_to_model(Lock& lock) {
  const std::int64_t version = versions_.current(), first_row = window_.added();
  const bool complete = queue_.has_complete_step() && window_.prefix() >= queue_.step_end();
  std::int64_t end = complete ? queue_.step_end() : window_.prefix();
  while (!complete && queue_.step_of(end - 1) != version) {
    --end;
  }
  const T* w = versions_.model(version);
  SharedMemory next = complete ? versions_.take() : nullptr;
  T* next_out = static_cast<T*>(next.get());
  gather(end);
  const bool brief = commit_.is_brief();
  Divergence failed;
  if (brief && version % kClockEvery != 0) {
    failed = commit_.run(version, first_row, complete, w, next_out);
  } else {
    if (!brief) {
      lock.unlock();
    }
    Stopwatch watch;
    failed = commit_.run(version, first_row, complete, w, next_out);
    if (!brief) {
      lock.lock();
    }
    stats_.commit_seconds += static_cast<double>(brief ? kClockEvery : 1) * watch.lap();
  }
  if (failed.step >= 0) {
    divergence_ = failed;
    versions_.give_back(std::move(next));
    return;
  }
  while (window_.added() < end) {
    if (states_.is_on()) {
      states_.commit(queue_.rows()[window_.added()].client, window_.client_state(window_.added()));
    }
    window_.pop(!is_helpers(window_.added()));
  }
  if (complete) {
    advance(std::move(next));
  }
}

template <class T>
void ReplayEngine<T>::gather(std::int64_t end) {
  commit_.begin();
  for (std::int64_t i = window_.added(); i < end; ++i) {
    const ReplayRow& row = queue_.rows()[i];
    const T* delta = is_helpers(i) ? helpers_->delta(i) : window_.delta(i);
    if (!row.is_used()) {
      commit_.skip(delta);
      continue;
    }
    const bool old = needs_start(commit_.rule()) && row.version != versions_.current();
    commit_.add(row, delta, window_.factor(i), old ? versions_.model(row.version) : nullptr);
    if (has_control(commit_.rule())) {
      commit_.add_change(static_cast<const T*>(window_.client_state(i).get()), state_before(i));
    }
  }
}

// Makes the next version current: removes the rows of the step, frees models that only they needed, and makes the rows
// runnable that waited for the new version.
template <class T>
void ReplayEngine<T>::advance(SharedMemory next) {
  const std::int64_t old = versions_.current();
  const IndexRing<ReplayRow>& rows = queue_.rows();
  queue_.pop_step();
  versions_.push(std::move(next));
  if (helpers_) {
    helpers_->set_model(old + 1, versions_.model(old + 1));
  }
  window_.visit_waiting(versions_.waiting(old + 1), [this](std::int64_t row) { make_ready(row); });
  states_.end_step();
  while (rows.begin() < window_.added()) {
    versions_.commit_row(rows[rows.begin()].version, queue_.n_rows());
    queue_.pop_row();
    if (states_.is_on()) {
      states_.pop_row();
    }
    ++stats_.rows;
  }
  versions_.free_if_unused(old);
}

// ---- reports

template <class T>
void ReplayEngine<T>::check() const {
  const IndexRing<ReplayRow>& rows = queue_.rows();
  if (rows.begin() > window_.added() || rows.end() != queue_.n_rows()) {
    throw std::logic_error("replay: rows kept");
  }
  window_.check(rows.end());
  versions_.check(rows);
}

template <class T>
ReplayStats ReplayEngine<T>::stats() const {
  ReplayStats stats = stats_;
  stats.live_versions = versions_.n_live();
  stats.most_versions = versions_.most_live();
  stats.window = window_.n_deltas();
  stats.most_window = window_.most_deltas();
  stats.secure_seconds = commit_.secure_seconds();
  stats.cut = commit_.cut();
  return stats;
}

template class ReplayEngine<float>;
template class ReplayEngine<double>;

}  // namespace fedbuff
