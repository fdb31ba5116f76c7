// A run: rows are fed to a replay engine, the model is evaluated on the way, and limits stop it.
//
// `advance` goes on to the next point where the host is asked, and says why it came back; the host answers and calls it
// again. A host that needs nothing in between (packed_runs.hpp) feeds the run and waits for its end. All that is known
// of the run's position changes inside a call only: a host may be interrupted between any two. Its specification is
// fedbuff/backends/python/run.py.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "clients/workspace.hpp"
#include "compiler/export.hpp"
#include "replay/replay.hpp"

namespace fedbuff {

enum class RunMetric : int { Loss, GradNormSq, Accuracy, Distance, StepNorm };

// Why `advance` came back: an end of the run, or a question to the host.
enum class RunState : int {
  ScheduleEnd,
  ServerSteps,
  Time,
  Updates,
  Loss,
  GradNormSq,
  Accuracy,
  Diverged,    // the next model would not be finite; the engine says where
  NeedRows,    // `add` more rows, or `close`
  Evaluate,    // the host evaluates the model: `note` its values
  Evaluated,   // the history has a new row
  Checkpoint,  // this version is to be saved
  Announce,    // the steps up to `announced` are made next: `allow` them
  Slice,       // the steps that were asked for are made, or the time is up
};

inline constexpr int kRunEnds = static_cast<int>(RunState::NeedRows);

// server_steps, time and updates are exact; the others are compared with what an evaluation that was due gave.
struct RunLimits {
  std::int64_t server_steps = -1;
  double time = std::numeric_limits<double>::infinity();
  std::int64_t updates = -1;
  // NaN: none
  double loss = std::numeric_limits<double>::quiet_NaN();
  double grad_norm_sq = std::numeric_limits<double>::quiet_NaN();
  double accuracy = std::numeric_limits<double>::quiet_NaN();
};

// Workspaces must outlive the run.
template <class T>
struct RunConfig {
  std::int64_t eval_every = 0;  // server steps; also at the start and the end. 0: at neither
  std::vector<RunMetric> metrics;
  Workspace<T>* problem = nullptr;   // null: the host evaluates loss, gradient and accuracy
  Workspace<T>* held_out = nullptr;  // for the accuracy; null: the problem's own rows
  RunLimits limits;
  bool show_rows = false;             // come back with Evaluated
  bool secure = false;                // the history says what secure sums cut and how long they took
  bool announce = false;              // come back with Announce before steps are made
  std::int64_t checkpoint_every = 0;  // 0: never come back with Checkpoint
  std::int64_t stretch = 1;           // server steps before the first look at the clock
  void (*after_part)() = nullptr;     // called now and then while the model is evaluated; may throw
};

// What an earlier run left, of which this one is the rest.
template <class T>
struct RunResume {
  std::int64_t n_rows = 0;       // of the history
  std::vector<double> values;    // metrics of the newest row
  double mean = 0;               // of the squared gradient norms in the history
  const T* evaluated = nullptr;  // (dim) the model of the newest row; null where it is not needed
  std::int64_t cut = 0;
  double secure_seconds = 0;
};

template <class T>
class FB_CORE_API Run {
 public:
  // The engine is new, has no rows yet, and outlives the run.
  Run(Replay<T>& engine, std::int64_t dim, RunConfig<T> config);

  // More rows, as `Replay::add` takes them, with the time of every step that is complete with them and, unless null, a
  // number for each that is summed up in `mark`. Where the engine throws, the run is of no more use.
  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, const double* step_time,
           const std::uint64_t* marks, std::int64_t n_steps);
  // There are no more rows.
  void close();

  // Goes on for at most max_steps server steps. `Slice` comes after about `seconds`, rounded up to a stretch of steps
  // that took about a tenth of a second; an evaluation comes to its end first. What the clients' work throws comes out;
  // the run stays where it was, and may go on.
  RunState advance(std::int64_t max_steps, double seconds, int threads);

  // The answer to Evaluate: loss, squared gradient norm and accuracy, those among the metrics, in their order.
  void note(const double* values, std::int64_t n_values, double seconds);
  // The answer to Announce.
  std::int64_t announced() const { return announced_; }
  void allow(std::int64_t version) { allowed_ = version; }

  // A run that goes on from a checkpoint passes over the steps before `version`: `pass_over`; `add` until they are
  // known; `skip_to` the last evaluation, if there was one, and `resume`; `skip_to` the version; then the engine's
  // restore, and `resumed` with the model before this one or null.
  void pass_over(std::int64_t version);
  void skip_to(std::int64_t version);
  void resume(const RunResume<T>& from);
  void resumed(const T* previous);

  // Where it stands: server steps made, virtual time of the last, client updates in them, and the sum of their marks.
  std::int64_t version() const { return at_.version; }
  double time() const { return at_.time; }
  std::int64_t updates() const { return at_.updates; }
  std::uint64_t mark() const { return at_.mark; }
  std::int64_t steps_known() const { return at_.version + n_complete_; }
  std::int64_t rows_known() const { return rows_known_; }

  // The history: n_rows in all, of which those that this run noted are rows of n_columns: step, time, updates, mean and
  // largest staleness since the row before; the metrics; cut numbers and seconds of secure sums, where the config says
  // so; and, where the squared gradient norm is a metric, its mean so far.
  std::int64_t n_rows() const { return n_rows_; }
  std::int64_t n_columns() const;
  const std::vector<double>& history() const { return history_; }
  double eval_seconds() const { return eval_seconds_; }
  std::int64_t cut() const { return cut_before_ + engine_.stats().cut; }
  double secure_seconds() const { return seconds_before_ + engine_.stats().secure_seconds; }

  // The model of the newest row, where the distance is a metric; and the model before this version, where the step's
  // norm is one and the version is yet to be evaluated. (dim) or null.
  const T* evaluated() const { return evaluated_.empty() ? nullptr : evaluated_.data(); }
  const T* previous() const { return previous_of_ == at_.version - 1 ? previous_.data() : nullptr; }

 private:
  struct Position {
    std::int64_t version = 0;
    double time = 0;
    std::int64_t updates = 0;
    std::uint64_t mark = 0;
  };
  struct Step {
    double time = 0;
    std::int64_t updates = 0;  // up to and with this step
    std::int64_t staleness_sum = 0;
    std::int64_t staleness_max = 0;
    std::uint64_t mark = 0;
  };
  struct Goal {
    std::int64_t version;
    std::optional<RunState> end;  // where it is a limit
  };

  bool has(RunMetric metric) const;
  bool is_due() const { return n_rows_ == 0 || at_.version % config_.eval_every == 0; }
  Step& step_at(std::int64_t number);
  Goal goal() const;
  std::optional<RunState> evaluate(bool due, int threads);
  std::optional<RunState> reached() const;
  std::optional<RunState> make_steps(std::int64_t goal, std::int64_t target, int threads);
  double value(RunMetric metric, int threads);
  double moved_from(const T* origin);
  void append(const std::vector<double>& values);

  Replay<T>& engine_;
  std::int64_t dim_;
  RunConfig<T> config_;
  Position at_;
  std::vector<Step> steps_;  // from head_ on: of steps version, version + 1, ..., n_complete_ of them with all rows
  std::size_t head_ = 0;
  std::int64_t n_complete_ = 0;
  std::int64_t rows_known_ = 0, updates_known_ = 0;
  bool closed_ = false;
  std::int64_t stretch_;  // server steps between two looks at the clock
  // Since the newest row of the history.
  std::int64_t updates_before_ = 0;
  std::int64_t staleness_sum_ = 0;
  std::int64_t staleness_max_ = 0;
  std::int64_t n_rows_ = 0;
  std::int64_t evaluated_at_ = -1;
  std::vector<double> values_;  // metrics of the newest row
  double mean_ = 0;
  std::vector<double> history_;
  double eval_seconds_ = 0;
  bool unshown_ = false;  // the newest row
  bool unjudged_ = false;
  std::optional<RunState> stopped_;
  std::int64_t saved_at_ = 0;
  std::int64_t announced_ = 0, allowed_ = 0;
  std::vector<T> evaluated_, previous_, scratch_;
  std::int64_t previous_of_ = -2;
  std::int64_t cut_before_ = 0;
  double seconds_before_ = 0;
};

extern template class Run<float>;
extern template class Run<double>;

}  // namespace fedbuff
