#include "replay/run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "kernels/dispatch.hpp"
#include "kernels/kernels.hpp"

namespace fedbuff {

namespace {

constexpr double kSecondsAStretch = 0.1;
constexpr std::int64_t kLongestStretch = std::int64_t{1} << 40;
constexpr std::int64_t kRowsCountedAtOnce = 4096;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

bool of_problem(RunMetric metric) { return metric != RunMetric::Distance && metric != RunMetric::StepNorm; }

}  // namespace

template <class T>
Run<T>::Run(Replay<T>& engine, std::int64_t dim, RunConfig<T> config)
    : engine_(engine), dim_(dim), config_(std::move(config)), stretch_(config_.stretch) {}

template <class T>
bool Run<T>::has(RunMetric metric) const {
  return std::find(config_.metrics.begin(), config_.metrics.end(), metric) != config_.metrics.end();
}

template <class T>
void Run<T>::add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, const double* step_time,
                 const std::uint64_t* marks, std::int64_t n_steps) {
  engine_.add(rows, n_rows, references, n_steps);
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(head_));
  head_ = 0;
  for (std::int64_t i = 0; i < n_rows; ++i) {
    ++rows_known_;
    if (!rows[i].is_used()) {
      continue;
    }
    const std::int64_t staleness = rows[i].step - rows[i].version;
    Step& step = step_at(rows[i].step);
    step.updates = ++updates_known_;
    step.staleness_sum += staleness;
    step.staleness_max = std::max(step.staleness_max, staleness);
  }
  for (std::int64_t i = 0; i < n_steps; ++i) {
    const std::int64_t before = n_complete_ > 0 ? steps_[at(n_complete_ - 1)].updates : at_.updates;
    Step& step = step_at(at_.version + n_complete_);
    step.updates = std::max(step.updates, before);
    step.time = step_time[i];
    step.mark = marks == nullptr ? 0 : marks[i];
    ++n_complete_;
  }
}

// Of a step that is not made yet; a new one has no rows.
template <class T>
typename Run<T>::Step& Run<T>::step_at(std::int64_t number) {
  const std::size_t index = at(number - at_.version);
  if (index >= steps_.size()) {
    steps_.resize(index + 1);
  }
  return steps_[index];
}

template <class T>
void Run<T>::skip_to(std::int64_t version) {
  for (; at_.version < version; ++head_, --n_complete_) {
    const Step& step = steps_[head_];
    staleness_sum_ += step.staleness_sum;
    staleness_max_ = std::max(staleness_max_, step.staleness_max);
    at_ = {at_.version + 1, step.time, step.updates, at_.mark + step.mark};
  }
}

template <class T>
void Run<T>::pass_over(std::int64_t version) {
  engine_.pass_over(version);
}

template <class T>
void Run<T>::resume(const RunResume<T>& from) {
  n_rows_ = from.n_rows;
  values_ = from.values;
  mean_ = from.mean;
  cut_before_ = from.cut;
  seconds_before_ = from.secure_seconds;
  if (n_rows_ > 0) {
    evaluated_at_ = at_.version;
    updates_before_ = at_.updates;
    staleness_sum_ = staleness_max_ = 0;
  }
  if (from.evaluated != nullptr) {
    evaluated_.assign(from.evaluated, from.evaluated + dim_);
  }
}

template <class T>
void Run<T>::resumed(const T* previous) {
  saved_at_ = at_.version;
  unjudged_ = evaluated_at_ == at_.version && values_.size() == config_.metrics.size();
  if (previous != nullptr) {
    previous_.assign(previous, previous + dim_);
    previous_of_ = at_.version - 1;
  }
}

template <class T>
void Run<T>::close() {
  closed_ = true;
  engine_.close();
}

template <class T>
RunState Run<T>::advance(std::int64_t max_steps, double seconds, int threads) {
  const double until = now() + seconds;
  const std::int64_t target = at_.version + std::min(max_steps, std::numeric_limits<std::int64_t>::max() - at_.version);
  while (!stopped_) {
    if (config_.eval_every > 0) {
      if (const auto asked = evaluate(is_due(), threads)) {
        return *asked;
      }
      if (unjudged_ && (stopped_ = reached())) {
        break;
      }
      unjudged_ = false;
    }
    if (config_.checkpoint_every > 0 && at_.version % config_.checkpoint_every == 0 && saved_at_ != at_.version) {
      saved_at_ = at_.version;
      return RunState::Checkpoint;
    }
    if (at_.version >= target) {
      return RunState::Slice;
    }
    const Goal next = goal();
    if (next.version == at_.version) {
      if (!next.end && !closed_) {
        return RunState::NeedRows;
      }
      if (config_.eval_every > 0) {
        if (const auto asked = evaluate(true, threads)) {
          return *asked;
        }
      }
      return next.end.value_or(RunState::ScheduleEnd);
    }
    if (const auto came = make_steps(next.version, target, threads)) {
      return *came;
    }
    if (now() >= until) {
      return RunState::Slice;
    }
  }
  return *stopped_;
}

// The version to go to next: a limit, an evaluation, a checkpoint, or the last step that is known.
template <class T>
typename Run<T>::Goal Run<T>::goal() const {
  const RunLimits& limits = config_.limits;
  Goal next{steps_known(), std::nullopt};
  const auto begin = steps_.begin() + static_cast<std::ptrdiff_t>(head_);
  const auto end = begin + static_cast<std::ptrdiff_t>(n_complete_);
  const auto within = [&](std::int64_t steps, RunState limit) {
    if (at_.version + steps < next.version) {
      next = {at_.version + steps, limit};
    }
  };
  if (limits.server_steps >= 0 && limits.server_steps <= next.version) {
    next = {std::max(limits.server_steps, at_.version), RunState::ServerSteps};
  }
  if (n_complete_ > 0 && std::prev(end)->time > limits.time) {
    const auto later = [](double limit, const Step& step) { return limit < step.time; };
    within(std::upper_bound(begin, end, limits.time, later) - begin, RunState::Time);
  }
  if (limits.updates >= 0) {
    const auto later = [](std::int64_t limit, const Step& step) { return limit < step.updates; };
    within(std::upper_bound(begin, end, limits.updates, later) - begin, RunState::Updates);
  }
  for (const std::int64_t every : {config_.eval_every, config_.checkpoint_every}) {
    if (every > 0) {
      const std::int64_t following = (at_.version / every + 1) * every;
      if (following < next.version) {
        next = {following, std::nullopt};
      }
    }
  }
  return next;
}

// A stretch of steps towards the goal. Before the last one the model is kept where its step's norm is a metric.
template <class T>
std::optional<RunState> Run<T>::make_steps(std::int64_t goal, std::int64_t target, int threads) {
  std::int64_t steps = std::min(std::min(goal, target) - at_.version, stretch_);
  if (has(RunMetric::StepNorm)) {
    if (goal - at_.version > 1) {
      steps = std::min(steps, goal - at_.version - 1);
    } else {
      previous_.assign(engine_.w(), engine_.w() + dim_);
      previous_of_ = at_.version;
    }
  }
  if (config_.announce && allowed_ < at_.version + steps) {
    announced_ = at_.version + steps;
    return RunState::Announce;
  }
  const double began = now();
  ReplayExit exit{};
  try {
    exit = engine_.run(steps, threads);
  } catch (...) {
    skip_to(engine_.version());
    throw;
  }
  skip_to(engine_.version());
  stretch_ = now() - began < kSecondsAStretch ? std::min(2 * stretch_, kLongestStretch)
                                              : std::max<std::int64_t>(1, stretch_ / 2);
  if (exit == ReplayExit::NeedRows) {  // the rows of the steps are known, but not whether a group goes on after them
    if (closed_) {
      throw std::logic_error("run: rows of a complete step cannot be run");
    }
    return RunState::NeedRows;
  }
  return exit == ReplayExit::Diverged ? std::optional(RunState::Diverged) : std::nullopt;
}

// The evaluation of this version, unless it is made or not due; what the host is asked, if anything.
template <class T>
std::optional<RunState> Run<T>::evaluate(bool due, int threads) {
  if (due && evaluated_at_ != at_.version) {
    const bool by_host =
        config_.problem == nullptr && std::any_of(config_.metrics.begin(), config_.metrics.end(), of_problem);
    if (by_host) {
      return RunState::Evaluate;
    }
    const double began = now();
    std::vector<double> values;
    for (const RunMetric metric : config_.metrics) {
      values.push_back(value(metric, threads));
    }
    eval_seconds_ += now() - began;
    append(values);
  }
  return std::exchange(unshown_, false) ? std::optional(RunState::Evaluated) : std::nullopt;
}

template <class T>
void Run<T>::note(const double* given, std::int64_t n_given, double seconds) {
  if (n_given != std::count_if(config_.metrics.begin(), config_.metrics.end(), of_problem)) {
    throw std::invalid_argument("values: expected one for every metric that the host evaluates");
  }
  std::vector<double> values;
  for (const RunMetric metric : config_.metrics) {
    values.push_back(of_problem(metric) ? *given++ : value(metric, 1));
  }
  eval_seconds_ += seconds;
  append(values);
}

template <class T>
void Run<T>::append(const std::vector<double>& values) {
  const bool judged = is_due();
  const std::int64_t updates = at_.updates - updates_before_;
  const auto staleness = updates > 0 ? static_cast<double>(staleness_sum_) / static_cast<double>(updates) : 0.0;
  std::vector<double> row = {static_cast<double>(at_.version), at_.time, static_cast<double>(at_.updates), staleness,
                             static_cast<double>(staleness_max_)};
  row.insert(row.end(), values.begin(), values.end());
  if (config_.secure) {
    row.insert(row.end(), {static_cast<double>(cut()), secure_seconds()});
  }
  double mean = mean_;
  const auto squares = std::find(config_.metrics.begin(), config_.metrics.end(), RunMetric::GradNormSq);
  if (squares != config_.metrics.end()) {
    mean += (values[at(squares - config_.metrics.begin())] - mean) / static_cast<double>(n_rows_ + 1);
    row.push_back(mean);
  }
  if (has(RunMetric::Distance)) {
    evaluated_.assign(engine_.w(), engine_.w() + dim_);
  }
  history_.insert(history_.end(), row.begin(), row.end());
  mean_ = mean;
  values_ = values;
  ++n_rows_;
  evaluated_at_ = at_.version;
  updates_before_ = at_.updates;
  staleness_sum_ = staleness_max_ = 0;
  unshown_ = config_.show_rows;
  unjudged_ = judged;
}

template <class T>
std::int64_t Run<T>::n_columns() const {
  return 5 + static_cast<std::int64_t>(config_.metrics.size()) + (config_.secure ? 2 : 0) +
         (has(RunMetric::GradNormSq) ? 1 : 0);
}

template <class T>
double Run<T>::value(RunMetric metric, int threads) {
  const T* w = engine_.w();
  switch (metric) {
    case RunMetric::Loss: return config_.problem->gradient(w, nullptr, threads, config_.after_part);
    case RunMetric::GradNormSq:
      scratch_.resize(at(dim_));
      config_.problem->gradient(w, scratch_.data(), threads, config_.after_part);
      return kernels().of<T>().dot(dim_, scratch_.data(), scratch_.data());
    case RunMetric::Accuracy: {
      Workspace<T>& judged = config_.held_out != nullptr ? *config_.held_out : *config_.problem;
      const Problem<T>& problem = judged.problem();
      const std::int64_t n_rows = problem.offsets[problem.n_clients];
      std::int64_t correct = 0;
      for (std::int64_t begin = 0; begin < n_rows; begin += kRowsCountedAtOnce) {
        correct += judged.count_correct(begin, std::min(n_rows, begin + kRowsCountedAtOnce), w);
        if (config_.after_part != nullptr) {
          config_.after_part();
        }
      }
      return static_cast<double>(correct) / static_cast<double>(n_rows);
    }
    case RunMetric::Distance: return moved_from(evaluated());
    case RunMetric::StepNorm: return moved_from(previous());
  }
  throw std::logic_error("run: an unknown metric");
}

template <class T>
double Run<T>::moved_from(const T* origin) {
  if (origin == nullptr) {
    return 0.0;
  }
  scratch_.resize(at(dim_));
  std::transform(engine_.w(), engine_.w() + dim_, origin, scratch_.data(), [](T w, T from) { return w - from; });
  return std::sqrt(kernels().of<T>().dot(dim_, scratch_.data(), scratch_.data()));
}

// The limit that the newest row of the history reached.
template <class T>
std::optional<RunState> Run<T>::reached() const {
  const RunLimits& limits = config_.limits;
  const auto holds = [&](RunMetric metric, auto&& enough) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (config_.metrics[i] == metric && enough(values_[i])) {
        return true;
      }
    }
    return false;
  };
  if (holds(RunMetric::Loss, [&](double found) { return found <= limits.loss; })) {
    return RunState::Loss;
  }
  if (holds(RunMetric::GradNormSq, [&](double found) { return found <= limits.grad_norm_sq; })) {
    return RunState::GradNormSq;
  }
  if (holds(RunMetric::Accuracy, [&](double found) { return found >= limits.accuracy; })) {
    return RunState::Accuracy;
  }
  return std::nullopt;
}

template class Run<float>;
template class Run<double>;

}  // namespace fedbuff
