// Whole runs in one call: a schedule is resolved, replayed by one arm after the other and evaluated on the way; only
// numbers come out. For small runs, whose set-up in Python would take as long as they do.
//
// A run makes the server steps, the evaluations and the stop that fedbuff/_replay/loop.py makes, with the same bits.
// What is not an ordinary end (RunEnd::Stalled and after it) has no result: the caller takes the long way, which says
// why.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "export.hpp"
#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"
#include "schedule/resolver.hpp"
#include "clients/workspace.hpp"

namespace fedbuff {

enum class RunMetric : int { Loss, GradNormSq, Accuracy };

enum class RunEnd : int {
  ScheduleEnd,
  ServerSteps,
  Time,
  Updates,
  Loss,
  GradNormSq,
  Accuracy,
  Diverged,
  Stalled,     // of the schedule
  ShortTable,  // `staleness` of the result is beyond the arm's table
  Cancelled,
  Failed,  // an exception, which the long way meets again
};

struct RunLimits {
  std::int64_t server_steps = -1;
  double time = std::numeric_limits<double>::infinity();
  std::int64_t updates = -1;
  double loss = -std::numeric_limits<double>::infinity();
  double grad_norm_sq = -1;
  double accuracy = std::numeric_limits<double>::infinity();
};

// What an arm computes along a schedule. Problems and arrays must outlive it.
template <class T>
struct PackedArm {
  fb_rule rule = FB_RULE_INIT;
  Workspace<T>* problem = nullptr;
  Workspace<T>* held_out = nullptr;  // for the accuracy; null: the problem's own rows
  LocalConfig local{};
  const std::int64_t* batch = nullptr;  // (n_clients,), 0 for all rows
  const double* s = nullptr;            // (n_s,) by staleness
  std::int64_t n_s = 0;
  const double* e = nullptr;  // (n_clients,)
  std::int64_t window_bytes = 0;
  std::int64_t eval_every = 0;  // 0: about a hundred times
  std::vector<RunMetric> metrics;
  RunLimits limits;
};

template <class T>
struct PackedResult {
  RunEnd end = RunEnd::Cancelled;
  std::int64_t version = 0;
  std::int64_t updates = 0;
  std::int64_t staleness = 0;
  double time = 0;
  double seconds = 0;
  std::vector<T> w;
  // A row per evaluation: step, time, updates, mean and largest staleness since the one before, the metrics, and, where
  // the squared gradient norm is one, its mean so far.
  std::vector<double> history;
  std::int64_t n_columns = 0;
};

class ResolvedSchedule;

// Keeps the memory of one run for the next. A byte at `cancel` that is not 0 ends a replay within about a tenth
// of a second; a schedule that is being resolved, and an evaluation, come to their end first.
class FB_CORE_API PackedRuns {
 public:
  PackedRuns(int threads, const std::uint8_t* cancel);
  ~PackedRuns();
  PackedRuns(const PackedRuns&) = delete;
  PackedRuns& operator=(const PackedRuns&) = delete;

  // Resolves the plan, whose seed is also that of the replays, and gives each arm's result. `expected_rows` is a guess.
  template <class T>
  std::vector<PackedResult<T>> run(const SchedulePlan& plan, std::int64_t expected_rows, const T* w0,
                                   const std::vector<const PackedArm<T>*>& arms);

 private:
  int threads_;
  const std::uint8_t* cancel_;
  std::unique_ptr<ResolvedSchedule> schedule_;
};

}  // namespace fedbuff
