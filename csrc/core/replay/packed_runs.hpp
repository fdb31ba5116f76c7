// Whole runs in one call: a schedule is resolved, and each arm's run (run.hpp) goes along it to its end; only numbers
// come out. For small runs, whose set-up in Python would take as long as they do.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "compiler/export.hpp"
#include "fedbuff/fedbuff.h"
#include "clients/local_options.hpp"
#include "clients/workspace.hpp"
#include "kernels/problem.hpp"
#include "replay/run.hpp"
#include "schedule/resolver.hpp"

namespace fedbuff {

// What came of an arm: an end of its run (RunState), or one of these.
enum class PackedEnd : int {
  Ended,
  Stalled,     // the schedule
  ShortTable,  // `staleness` of the result is beyond the arm's table
  Cancelled,
  Failed,  // with `error`
};

// What an arm computes along a schedule. Problems and arrays must outlive it.
template <class T>
struct PackedArm {
  fb_rule rule = FB_RULE_INIT;
  Workspace<T>* problem = nullptr;
  Workspace<T>* held_out = nullptr;  // for the accuracy; null: the problem's own rows
  LocalOptions local;                // but for the seed, which is the plan's
  const double* s = nullptr;         // (n_s,) by staleness
  std::int64_t n_s = 0;
  const double* e = nullptr;  // (n_clients,)
  std::int64_t window_bytes = 0;
  std::int64_t eval_every = 0;  // 0: about a hundred times
  std::vector<RunMetric> metrics;
  RunLimits limits;
};

template <class T>
struct PackedResult {
  PackedEnd what = PackedEnd::Cancelled;
  RunState end = RunState::ScheduleEnd;
  std::exception_ptr error;
  std::int64_t version = 0;
  std::int64_t updates = 0;
  std::int64_t staleness = 0;
  double time = 0;
  double seconds = 0;
  std::vector<T> w;
  // As in Run.
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
