#include "replay/packed_runs.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "clients/local_sgd.hpp"
#include "replay/replay.hpp"

namespace fedbuff {

namespace {

constexpr double kSecondsASlice = 0.1;
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
  // Used rows up to and with the step before this one.
  std::int64_t rows_before(std::int64_t step) const { return rows_before_[at(step)]; }

  // Gives the run the rows of the steps that follow, or closes it.
  template <class T>
  void feed(Run<T>& run, const PackedArm<T>& arm) {
    const std::int64_t step = run.steps_known();
    if (step == n_steps_) {
      run.close();
      return;
    }
    std::int64_t end = step + 1;
    while (end < n_steps_ && rows_before(end) - rows_before(step) < kRowsAtOnce) {
      ++end;
    }
    rows_.clear();
    for (std::int64_t used = rows_before(step); used < rows_before(end); ++used) {
      const std::size_t i = at(used_[at(used)]);
      rows_.push_back({client_[i], task_[i], version_[i], step_[i], arm.s[staleness_[i]], arm.e[client_[i]]});
    }
    run.add(rows_.data(), static_cast<std::int64_t>(rows_.size()), references_.data() + step, step_time_.data() + step,
            nullptr, end - step);
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
PackedResult<T> run_arm(ResolvedSchedule& schedule, const PackedArm<T>& arm, const T* w0, std::uint64_t seed,
                        int threads, const std::uint8_t* cancel) {
  const Problem<T>& problem = arm.problem->problem();
  LocalOptions local = arm.local;
  local.seed = seed;
  const auto work = make_local_sgd<T>(problem, std::move(local));
  Replay<T> engine(arm.rule, problem.dim, w0, *work, arm.window_bytes);
  RunConfig<T> config;
  config.eval_every = arm.eval_every > 0 ? arm.eval_every : std::max<std::int64_t>(1, schedule.n_steps() / 100);
  config.metrics = arm.metrics;
  config.problem = arm.problem;
  config.held_out = arm.held_out;
  config.limits = arm.limits;
  config.stretch = 64;
  Run<T> run(engine, problem.dim, config);
  RunState state = RunState::Slice;
  while (static_cast<int>(state) >= kRunEnds) {
    if (is_set(cancel)) {
      return {};
    }
    if (state == RunState::NeedRows) {
      schedule.feed(run, arm);
    }
    state = run.advance(kMostSteps, kSecondsASlice, threads);
  }
  PackedResult<T> result;
  result.what = PackedEnd::Ended;
  result.end = state;
  result.version = run.version();
  result.updates = run.updates();
  result.time = run.time();
  result.w.assign(engine.w(), engine.w() + problem.dim);
  result.history = run.history();
  result.n_columns = run.n_columns();
  return result;
}

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
      result.what = PackedEnd::Stalled;
    } else if (schedule_->max_staleness() >= arms[i]->n_s) {
      result.what = PackedEnd::ShortTable;
      result.staleness = schedule_->max_staleness();
    } else {
      try {
        result = run_arm<T>(*schedule_, *arms[i], w0, plan.seed, threads_, cancel_);
      } catch (const std::exception&) {
        result.what = PackedEnd::Failed;
        result.error = std::current_exception();
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
