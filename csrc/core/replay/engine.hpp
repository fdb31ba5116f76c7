// The engine of a replay: workers run rows out of order, and commit them in order.
//
// A worker takes rows whose version exists, the oldest first; their deltas wait in the window; when all rows of a step
// are done, one worker commits the step. The oldest unfinished row can always run, and always has a place in the
// window, so there is no deadlock. Additions have one order, so the bits depend neither on threads, nor on the window,
// nor on the pieces in which the replay is run. Where the work takes groups (groups.hpp), a group is run as one row is
// otherwise. Where clients have a state (client_states.hpp), a row waits for the row of its client before it too: that
// is an earlier one, so the oldest unfinished row still waits for nothing.
//
// A rule with a control variate has it beside the model: a version is (w, c), 2 dim numbers.
//
// One spin lock guards all members below it. Workers release it while they run tasks and while they commit.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "clients/client_work.hpp"
#include "memory/vector_pool.hpp"
#include "replay/client_states.hpp"
#include "replay/commit.hpp"
#include "replay/groups.hpp"
#include "replay/helper_policy.hpp"
#include "replay/helpers.hpp"
#include "replay/row_queue.hpp"
#include "replay/stats.hpp"
#include "replay/version_store.hpp"
#include "replay/window.hpp"
#include "threads/spin_wait.hpp"

namespace fedbuff {

// The functions are those of Replay.
template <class T>
class ReplayEngine final : private ModelStore {
 public:
  ReplayEngine(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
               const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure);

  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps);
  void release(const std::int64_t* versions, std::int64_t n);
  void close() { groups_.close(); }
  ReplayExit run(std::int64_t max_steps, int threads);
  void pass_over(std::int64_t version);
  std::int64_t restore(const T* w, const std::vector<std::int64_t>& live, const T* models,
                       const std::vector<fb_array>& rule_state, const T* deltas, std::int64_t n_deltas);
  std::vector<const T*> waiting_deltas() const;
  void check() const;

  Commit<T>& commit() { return commit_; }
  const Commit<T>& commit() const { return commit_; }
  const VersionStore<T>& versions() const { return versions_; }
  std::vector<fb_array> arrays() const;
  std::int64_t width() const { return width_; }
  Divergence divergence() const { return divergence_; }
  ReplayStats stats() const;

 private:
  using Lock = std::unique_lock<SpinLock>;
  struct Worker;

  void require_whole() const;
  void prepare(int threads, bool with_helpers);
  void finish(bool with_helpers, double seconds, std::int64_t first_row, std::int64_t first_version);
  void start_helpers(std::int64_t n_helpers);
  void help(int thread);
  void work(int thread);

  void commit_rows(Lock& lock);
  void wait_for_helper(Lock& lock, Worker& worker);
  void wait_for_change(Lock& lock, Worker& worker);
  void run_tasks(Lock& lock, Worker& worker, void* scratch);
  void take(Worker& worker);
  void visit_rows();
  void visit_groups();
  void make_ready(std::int64_t row);
  const T* state_before(std::int64_t row);
  void add_task(Worker& worker, std::int64_t row, T* delta_out);

  void restore_deltas(const T* deltas, std::int64_t n);
  bool can_add() const;
  void add_to_model(Lock& lock);
  void gather(std::int64_t end);
  void advance(SharedMemory next);
  bool is_helpers(std::int64_t row) const { return helpers_ && helpers_->has(row, queue_.rows()[row]); }
  void move_prefix();
  std::shared_ptr<const void> keep(std::int64_t version) override;

  template <class Body>
  void guarded(Lock& lock, Body body);

  const std::int64_t dim_, width_;  // of a model, of a version
  ClientWork<T>& work_;
  const SumConfig sums_;
  VectorPool pool_;

  SpinLock lock_;
  EventCount changed_;                      // for workers that wait
  std::vector<std::exception_ptr> errors_;  // of the workers, in the order of time
  Divergence divergence_;
  std::int64_t target_ = 0;           // the version at which a run ends
  std::int64_t n_workers_ = 1;        // without helpers
  std::int64_t at_once_ = 1;          // rows that a worker takes at most
  int n_running_ = 0;                 // workers that run tasks
  int n_idle_ = 0;                    // workers that wait
  bool adding_ = false;               // a worker commits
  const char* incomplete_ = nullptr;  // input that was taken in part

  RowQueue queue_;
  Groups groups_;
  VersionStore<T> versions_;
  Window<T> window_;
  ClientStates<T> states_;
  Commit<T> commit_;  // used by the worker that has set adding_

  bool tiny_ = false;  // whether the tasks are
  HelperPolicy policy_;
  std::unique_ptr<Helpers<T>> helpers_;  // while they run
  std::int64_t first_new_ = 0;           // no row from here on was done when helpers were started

  std::vector<SharedMemory> scratch_;  // of each thread
  ReplayStats stats_;
};

extern template class ReplayEngine<float>;
extern template class ReplayEngine<double>;

}  // namespace fedbuff
