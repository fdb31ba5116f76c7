#include "replay/packed_runs.hpp"

#include <algorithm>
#include <exception>
#include <chrono>
#include <cstddef>

#include "clients/local_sgd.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/kernels.hpp"
#include "replay/replay.hpp"

namespace fedbuff {

namespace {

constexpr double kSecondsAPiece = 0.1;
constexpr std::int64_t kRowsAtOnce = 8192;  // few enough to stay in the cache
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool is_set(const std::uint8_t* flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0; }

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

// A whole schedule: what a replay needs of it.
class ResolvedSchedule {
 public:
  // Where the flag is set on the way, what it holds is of no use.
  void resolve(const SchedulePlan& plan, std::int64_t expected_rows, const std::uint8_t* cancel) {
    ScheduleResolver resolver(plan);
    std::int64_t rows = 0;
    std::int64_t steps = 0;
    if (room_rows() < expected_rows) {
      grow(expected_rows, std::max<std::int64_t>(expected_rows, 2) + 2);
    }
    do {
      if (room_rows() - rows < resolver.rows_needed() || room_steps() - steps < 2) {
        const std::int64_t more = 2 * room_rows() + resolver.rows_needed();
        grow(more, more + 2);
      }
      const ChunkEnd end = resolver.run(columns_from(rows, steps));
      rows += end.n_rows;
      steps += end.n_steps;
      reason_ = end.reason;
    } while (reason_ == StopReason::Full && !is_set(cancel));
    n_steps_ = steps;
    pick_used(rows);
  }

  bool stalled() const { return reason_ == StopReason::Stalled; }
  std::int64_t n_steps() const { return n_steps_; }
  std::int64_t max_staleness() const { return max_staleness_; }
  double step_time(std::int64_t step) const { return step_time_[at(step)]; }
  // Used rows up to and with the step before this one.
  std::int64_t rows_before(std::int64_t step) const { return rows_before_[at(step)]; }
  std::int64_t staleness(std::int64_t used_row) const { return staleness_[at(used_[at(used_row)])]; }

  // Gives the replay the rows of some steps from this one on; returns the first step that it was not given.
  template <class T>
  std::int64_t feed(Replay<T>& replay, const PackedArm<T>& arm, std::int64_t step) {
    std::int64_t end = step + 1;
    while (end < n_steps_ && rows_before(end) - rows_before(step) < kRowsAtOnce) {
      ++end;
    }
    rows_.clear();
    for (std::int64_t used = rows_before(step); used < rows_before(end); ++used) {
      const std::size_t i = at(used_[at(used)]);
      rows_.push_back({client_[i], task_[i], version_[i], step_[i], arm.s[staleness_[i]], arm.e[client_[i]]});
    }
    replay.add(rows_.data(), static_cast<std::int64_t>(rows_.size()), references_.data() + step, end - step);
    return end;
  }

 private:
  std::int64_t room_rows() const { return static_cast<std::int64_t>(client_.size()); }
  std::int64_t room_steps() const { return static_cast<std::int64_t>(step_time_.size()); }

  // The two columns that tell the room come last: where memory ends before, there is none that the others lack.
  void grow(std::int64_t rows, std::int64_t steps) {
    task_.resize(at(rows));
    version_.resize(at(rows));
    step_.resize(at(rows));
    staleness_.resize(at(rows));
    start_time_.resize(at(rows));
    arrive_time_.resize(at(rows));
    status_.resize(at(rows));
    started_.resize(at(steps));
    step_rows_.resize(at(steps));
    step_time_.resize(at(steps));
    client_.resize(at(rows));
  }

  ScheduleColumns columns_from(std::int64_t row, std::int64_t step) {
    ScheduleColumns out;
    out.n_rows = room_rows() - row;
    out.n_steps = room_steps() - step;
    out.client = client_.data() + row;
    out.task = task_.data() + row;
    out.version = version_.data() + row;
    out.step = step_.data() + row;
    out.staleness = staleness_.data() + row;
    out.start_time = start_time_.data() + row;
    out.arrive_time = arrive_time_.data() + row;
    out.status = status_.data() + row;
    out.step_time = step_time_.data() + step;
    out.started = started_.data() + step;
    out.step_rows = step_rows_.data() + step;
    return out;
  }

  void pick_used(std::int64_t n_rows) {
    references_.assign(at(n_steps_), 0);
    rows_before_.assign(at(n_steps_ + 1), 0);
    used_.clear();
    max_staleness_ = -1;
    for (std::int64_t row = 0; row < n_rows; ++row) {
      const std::size_t i = at(row);
      // Rows of a step that was not made are left in the buffer.
      if (status_[i] != static_cast<std::uint8_t>(TaskStatus::Used) || step_[i] >= n_steps_) {
        continue;
      }
      used_.push_back(row);
      ++references_[at(version_[i])];
      ++rows_before_[at(step_[i] + 1)];
      max_staleness_ = std::max(max_staleness_, staleness_[i]);
    }
    for (std::int64_t step = 0; step < n_steps_; ++step) {
      rows_before_[at(step + 1)] += rows_before_[at(step)];
    }
  }

  std::vector<std::int32_t> client_;
  std::vector<std::uint32_t> task_;
  std::vector<std::int64_t> version_, step_, staleness_;
  std::vector<double> start_time_, arrive_time_;
  std::vector<std::uint8_t> status_;
  std::vector<double> step_time_;
  std::vector<std::int64_t> started_, step_rows_;
  StopReason reason_ = StopReason::Full;
  std::int64_t n_steps_ = 0;
  std::vector<std::int64_t> used_;        // rows, in order of arrival
  std::vector<std::int64_t> references_;  // (n_steps,) used rows on each version
  std::vector<std::int64_t> rows_before_;
  std::int64_t max_staleness_ = -1;
  std::vector<ReplayRow> rows_;
};

namespace {

// One arm along a schedule.
template <class T>
class PackedRun {
 public:
  PackedRun(ResolvedSchedule& schedule, const PackedArm<T>& arm, const T* w0, std::uint64_t seed, int threads,
            const std::uint8_t* cancel)
      : schedule_(schedule),
        arm_(arm),
        threads_(threads),
        cancel_(cancel),
        dim_(arm.problem->problem().dim),
        every_(arm.eval_every > 0 ? arm.eval_every : std::max<std::int64_t>(1, schedule.n_steps() / 100)),
        work_(make_local_sgd<T>(arm.problem->problem(), arm.local, seed,
                                {arm.batch, arm.batch + arm.problem->problem().n_clients})),
        replay_(arm.rule, dim_, w0, *work_, arm.window_bytes) {}

  PackedResult<T> go() {
    result_.end = run();
    result_.version = replay_.version();
    result_.updates = schedule_.rows_before(replay_.version());
    result_.time = time();
    result_.w.assign(replay_.w(), replay_.w() + dim_);
    return std::move(result_);
  }

 private:
  RunEnd run() {
    RunEnd end = RunEnd::ScheduleEnd;
    std::int64_t goal = schedule_.n_steps();
    bound(goal, end);
    if (stopped(look(), end)) {
      return end;
    }
    while (replay_.version() < goal) {
      const std::int64_t next = std::min(goal, (replay_.version() / every_ + 1) * every_);
      while (replay_.version() < next) {
        if (is_set(cancel_)) {
          return RunEnd::Cancelled;
        }
        if (fed_ <= replay_.version()) {
          fed_ = schedule_.feed(replay_, arm_, fed_);
        }
        const double began = now();
        const ReplayExit exit = replay_.run(std::min(std::min(next, fed_) - replay_.version(), piece_), threads_);
        piece_ =
            now() - began < kSecondsAPiece ? std::min(2 * piece_, kMostSteps) : std::max<std::int64_t>(1, piece_ / 2);
        if (exit == ReplayExit::Diverged) {
          return RunEnd::Diverged;
        }
      }
      if (next % every_ == 0) {
        if (stopped(look(), end)) {
          return end;
        }
      }
    }
    if (evaluated_ != replay_.version()) {
      look();
    }
    return end;
  }

  // How far the limits in steps, time and updates let it go, and which of them it is.
  void bound(std::int64_t& goal, RunEnd& end) const {
    const RunLimits& limits = arm_.limits;
    if (limits.server_steps >= 0 && limits.server_steps <= goal) {
      goal = limits.server_steps;
      end = RunEnd::ServerSteps;
    }
    std::int64_t within = 0;
    while (within < schedule_.n_steps() && schedule_.step_time(within) <= limits.time) {
      ++within;
    }
    if (within < goal) {
      goal = within;
      end = RunEnd::Time;
    }
    if (limits.updates >= 0) {
      within = 0;
      while (within < schedule_.n_steps() && schedule_.rows_before(within + 1) <= limits.updates) {
        ++within;
      }
      if (within < goal) {
        goal = within;
        end = RunEnd::Updates;
      }
    }
  }

  double time() const { return replay_.version() > 0 ? schedule_.step_time(replay_.version() - 1) : 0.0; }

  // Evaluates the model: the metrics, which are also the end of the newest row of the history.
  std::vector<double> look() {
    std::vector<double>& history = result_.history;
    const std::int64_t begin = std::max<std::int64_t>(evaluated_, 0);
    const std::int64_t version = replay_.version();
    const std::int64_t first = schedule_.rows_before(begin);
    const std::int64_t last = schedule_.rows_before(version);
    std::int64_t sum = 0;
    std::int64_t most = 0;
    for (std::int64_t row = first; row < last; ++row) {
      sum += schedule_.staleness(row);
      most = std::max(most, schedule_.staleness(row));
    }
    std::vector<double> values;
    double mean = 0;
    bool has_mean = false;
    for (const RunMetric metric : arm_.metrics) {
      values.push_back(value(metric));
      if (metric == RunMetric::GradNormSq) {
        mean_ += (values.back() - mean_) / static_cast<double>(n_evaluations_ + 1);
        mean = mean_;
        has_mean = true;
      }
    }
    const double staleness = last > first ? static_cast<double>(sum) / static_cast<double>(last - first) : 0.0;
    history.insert(history.end(), {static_cast<double>(version), time(), static_cast<double>(last), staleness,
                                   static_cast<double>(most)});
    history.insert(history.end(), values.begin(), values.end());
    if (has_mean) {
      history.push_back(mean);
    }
    ++n_evaluations_;
    result_.n_columns = static_cast<std::int64_t>(history.size()) / n_evaluations_;
    evaluated_ = version;
    return values;
  }

  double value(RunMetric metric) {
    const T* w = replay_.w();
    if (metric == RunMetric::Loss) {
      return arm_.problem->gradient(w, nullptr, threads_);
    }
    if (metric == RunMetric::GradNormSq) {
      gradient_.resize(at(dim_));
      arm_.problem->gradient(w, gradient_.data(), threads_);
      return kernels().of<T>().dot(dim_, gradient_.data(), gradient_.data());
    }
    Workspace<T>& judged = arm_.held_out != nullptr ? *arm_.held_out : *arm_.problem;
    const Problem<T>& problem = judged.problem();
    const std::int64_t n_rows = problem.offsets[problem.n_clients];
    return static_cast<double>(judged.count_correct(0, n_rows, w)) / static_cast<double>(n_rows);
  }

  bool stopped(const std::vector<double>& values, RunEnd& end) const {
    const RunLimits& limits = arm_.limits;
    const auto reached = [&](RunMetric metric, bool (*enough)(double, double), double limit) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (arm_.metrics[i] == metric && enough(values[i], limit)) {
          return true;
        }
      }
      return false;
    };
    const auto low = [](double found, double limit) { return found <= limit; };
    const auto high = [](double found, double limit) { return found >= limit; };
    if (reached(RunMetric::Loss, low, limits.loss)) {
      end = RunEnd::Loss;
    } else if (reached(RunMetric::GradNormSq, low, limits.grad_norm_sq)) {
      end = RunEnd::GradNormSq;
    } else if (reached(RunMetric::Accuracy, high, limits.accuracy)) {
      end = RunEnd::Accuracy;
    } else {
      return false;
    }
    return true;
  }

  ResolvedSchedule& schedule_;
  const PackedArm<T>& arm_;
  int threads_;
  const std::uint8_t* cancel_;
  std::int64_t dim_;
  std::int64_t every_;
  std::unique_ptr<ClientWork<T>> work_;
  Replay<T> replay_;
  PackedResult<T> result_;
  std::int64_t fed_ = 0;     // steps that the replay has the rows of
  std::int64_t piece_ = 64;  // server steps between two looks at the flag
  std::int64_t evaluated_ = -1;
  std::int64_t n_evaluations_ = 0;
  double mean_ = 0;  // of the squared gradient norms
  std::vector<T> gradient_;
};

}  // namespace

PackedRuns::PackedRuns(int threads, const std::uint8_t* cancel)
    : threads_(threads), cancel_(cancel), schedule_(std::make_unique<ResolvedSchedule>()) {}
PackedRuns::~PackedRuns() = default;

template <class T>
std::vector<PackedResult<T>> PackedRuns::run(const SchedulePlan& plan, std::int64_t expected_rows, const T* w0,
                                             const std::vector<const PackedArm<T>*>& arms) {
  std::vector<PackedResult<T>> results(arms.size());
  if (is_set(cancel_)) {
    return results;
  }
  double began = now();
  schedule_->resolve(plan, expected_rows, cancel_);
  for (std::size_t i = 0; i < arms.size() && !is_set(cancel_); ++i) {
    PackedResult<T>& result = results[i];
    if (schedule_->stalled()) {
      result.end = RunEnd::Stalled;
    } else if (schedule_->max_staleness() >= arms[i]->n_s) {
      result.end = RunEnd::ShortTable;
      result.staleness = schedule_->max_staleness();
    } else {
      try {
        result = PackedRun<T>(*schedule_, *arms[i], w0, plan.seed, threads_, cancel_).go();
      } catch (const std::exception&) {
        result.end = RunEnd::Failed;
      }
    }
    const double ended = now();
    result.seconds = ended - began;
    began = ended;
  }
  return results;
}

template FB_CORE_API std::vector<PackedResult<float>> PackedRuns::run(const SchedulePlan&, std::int64_t, const float*,
                                                                      const std::vector<const PackedArm<float>*>&);
template FB_CORE_API std::vector<PackedResult<double>> PackedRuns::run(const SchedulePlan&, std::int64_t, const double*,
                                                                       const std::vector<const PackedArm<double>*>&);

}  // namespace fedbuff
