// A run: the host is asked where it should be, slices do not show in the result, and every limit stops it.
#include <algorithm>
#include <limits>
#include <memory>

#include "check.hpp"
#include "clients/local_sgd.hpp"
#include "replay/run.hpp"
#include "small_quadratic.hpp"

namespace {

using fedbuff::Run;
using fedbuff::RunConfig;
using fedbuff::RunMetric;
using fedbuff::RunState;

constexpr std::int64_t kClients = 4, kDim = 3, kSteps = 20;
constexpr double kForever = std::numeric_limits<double>::infinity();

// Two rows a step, the second one version old; step t is made at time t + 1.
struct Study {
  SmallQuadratic quadratic{kClients, kDim, 0.0};
  std::vector<double> w0 = std::vector<double>(kDim, 1.0);
  std::unique_ptr<fedbuff::ClientWork<double>> work;
  std::unique_ptr<fedbuff::Replay<double>> engine;

  Study() {
    fedbuff::LocalOptions local;
    local.lr = 0.1;
    local.seed = 7;
    work = fedbuff::make_local_sgd<double>(quadratic.fields, local);
    fb_rule rule = FB_RULE_INIT;
    rule.buffer_size = 2;
    rule.norm = FB_NORM_ARRIVALS;
    rule.lr = 1.0;
    engine = std::make_unique<fedbuff::Replay<double>>(rule, kDim, w0.data(), *work, 1 << 20);
  }

  // Steps begin, ..., end - 1.
  static void feed(Run<double>& run, std::int64_t begin, std::int64_t end) {
    std::vector<fedbuff::ReplayRow> rows;
    std::vector<std::int64_t> references;
    std::vector<double> times;
    for (std::int64_t step = begin; step < end; ++step) {
      const std::int64_t stale = step > 0 ? step - 1 : 0;
      rows.push_back({static_cast<std::int32_t>(step % kClients), static_cast<std::uint32_t>(step), step, step, 1, 1});
      rows.push_back(
          {static_cast<std::int32_t>((step + 1) % kClients), static_cast<std::uint32_t>(step), stale, step, 1, 1});
      references.push_back(step == 0 ? 3 : step + 1 < kSteps ? 2 : 1);
      times.push_back(static_cast<double>(step) + 1);
    }
    run.add(rows.data(), static_cast<std::int64_t>(rows.size()), references.data(), times.data(), nullptr, end - begin);
  }
};

RunConfig<double> evaluating(const Study& study) {
  RunConfig<double> config;
  config.eval_every = 6;
  config.metrics = {RunMetric::Loss, RunMetric::Distance, RunMetric::StepNorm};
  config.problem = study.quadratic.workspace.get();
  return config;
}

std::vector<double> history(std::int64_t chunk, std::int64_t slice) {
  const Study study;
  Run<double> run(*study.engine, kDim, evaluating(study));
  for (;;) {
    const RunState state = run.advance(slice, kForever, 1);
    if (state == RunState::NeedRows) {
      const std::int64_t known = run.steps_known();
      known < kSteps ? Study::feed(run, known, std::min(kSteps, known + chunk)) : run.close();
    } else if (state != RunState::Slice) {
      CHECK(state == RunState::ScheduleEnd);
      return run.history();
    }
  }
}

RunState end_of(RunConfig<double> config, std::int64_t& version) {
  const Study study;
  config.problem = study.quadratic.workspace.get();
  Run<double> run(*study.engine, kDim, config);
  Study::feed(run, 0, kSteps);
  run.close();
  const RunState state = run.advance(1 << 20, kForever, 1);
  version = run.version();
  return state;
}

}  // namespace

TEST(run_has_the_same_history_for_all_chunks_and_slices) {
  const auto expected = history(kSteps, 1 << 20);
  CHECK_EQ(expected.size(), std::size_t{5 * 8});  // at 0, 6, 12, 18 and the end
  CHECK(expected[8] == 6 && expected[9] == 6.0 && expected[10] == 12 && expected[12] == 1.0);
  CHECK_EQ(expected[11], 5.0 / 12);  // the first step has no stale row
  for (const std::int64_t chunk : {1, 3, 7}) {
    for (const std::int64_t slice : {1, 4, 100}) {
      CHECK(history(chunk, slice) == expected);
    }
  }
}

TEST(run_stops_at_its_limits) {
  const Study study;
  std::int64_t version = 0;
  RunConfig<double> config = evaluating(study);
  config.limits.server_steps = 7;
  CHECK(end_of(config, version) == RunState::ServerSteps && version == 7);
  config.limits = {};
  config.limits.time = 9.5;
  CHECK(end_of(config, version) == RunState::Time && version == 9);
  config.limits = {};
  config.limits.updates = 11;
  CHECK(end_of(config, version) == RunState::Updates && version == 5);
  config.limits = {};
  config.limits.loss = 1e9;
  CHECK(end_of(config, version) == RunState::Loss && version == 0);
}

TEST(run_asks_its_host) {
  const Study study;
  RunConfig<double> config = evaluating(study);
  config.problem = nullptr;
  config.show_rows = true;
  config.announce = true;
  config.checkpoint_every = 10;
  Run<double> run(*study.engine, kDim, config);
  std::vector<std::int64_t> evaluated, shown, saved;
  RunState state = RunState::Slice;
  while (static_cast<int>(state) >= fedbuff::kRunEnds) {
    state = run.advance(1 << 20, kForever, 1);
    const double value = 1.0;
    if (state == RunState::NeedRows) {
      run.steps_known() == 0 ? Study::feed(run, 0, kSteps) : run.close();
    } else if (state == RunState::Evaluate) {
      CHECK(run.advance(1 << 20, kForever, 1) == RunState::Evaluate);  // until it is answered
      evaluated.push_back(run.version());
      run.note(&value, 1, 0.0);
    } else if (state == RunState::Evaluated) {
      shown.push_back(run.version());
    } else if (state == RunState::Checkpoint) {
      saved.push_back(run.version());
    } else if (state == RunState::Announce) {
      CHECK(run.announced() > run.version());
      run.allow(run.announced());
    }
  }
  CHECK(state == RunState::ScheduleEnd);
  CHECK(evaluated == (std::vector<std::int64_t>{0, 6, 12, 18, 20}) && shown == evaluated);
  CHECK(saved == (std::vector<std::int64_t>{10, 20}));
}
