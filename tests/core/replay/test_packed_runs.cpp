// Whole runs in one call: the same bits on any number of threads, every end, and memory that is used again.
#include <limits>

#include "check.hpp"
#include "replay/packed_runs.hpp"
#include "small_quadratic.hpp"

namespace {

using fedbuff::PackedArm;
using fedbuff::PackedEnd;
using fedbuff::PackedResult;
using fedbuff::PackedRuns;
using fedbuff::RunMetric;
using fedbuff::RunState;

constexpr std::int64_t kClients = 6, kDim = 5;

struct Study {
  SmallQuadratic quadratic{kClients, kDim, 0.1};
  std::vector<double> s = std::vector<double>(200, 1.0);
  std::vector<double> e = std::vector<double>(kClients, 1.0);
  std::vector<double> w0 = std::vector<double>(kDim, 1.0);
  fedbuff::SchedulePlan plan;

  Study() {
    plan.mode = fedbuff::Mode::SlotIsClient;
    plan.n_clients = plan.n_slots = kClients;
    plan.seed = plan.model.seed = 11;
    plan.model.component[fedbuff::kCompute].kind = fedbuff::DistributionKind::Exponential;
    plan.model.component[fedbuff::kCompute].p[0] = 1.0;
    plan.buffer_size = 3;
    plan.server_steps = 120;
    plan.stall_limit = 1000;
  }

  PackedArm<double> arm(double lr) const {
    PackedArm<double> made;
    made.rule.buffer_size = 3;
    made.rule.norm = FB_NORM_ARRIVALS;
    made.rule.lr = 1.0;
    made.problem = quadratic.workspace.get();
    made.local.steps = 2;
    made.local.lr = lr;
    made.local.batch = 1;
    made.s = s.data();
    made.n_s = static_cast<std::int64_t>(s.size());
    made.e = e.data();
    made.window_bytes = 1 << 20;
    made.eval_every = 1;  // an evaluation a step
    made.metrics = {RunMetric::Loss, RunMetric::GradNormSq};
    return made;
  }
};

const std::uint8_t kGoOn = 0;
const std::uint8_t kCancel = 1;

std::vector<PackedResult<double>> run(const Study& study, const std::vector<const PackedArm<double>*>& arms,
                                      int threads = 1, const std::uint8_t* cancel = &kGoOn,
                                      std::int64_t expected = 400) {
  PackedRuns runs(threads, cancel);
  return runs.run<double>(study.plan, expected, study.w0.data(), arms);
}

}  // namespace

TEST(packed_runs_have_the_same_bits_on_any_number_of_threads) {
  const Study study;
  const auto slow = study.arm(0.01);
  const auto fast = study.arm(0.1);
  const auto expected = run(study, {&slow, &fast});
  CHECK(expected[0].end == RunState::ScheduleEnd && expected[0].version == 120 && expected[0].updates == 360);
  CHECK_EQ(expected[0].n_columns, 8);
  CHECK_EQ(expected[0].history.size(), std::size_t{121 * 8});
  CHECK(expected[0].w != expected[1].w);
  for (const int threads : {1, 2, 4}) {
    for (const std::int64_t guess : {1, 50, 4000}) {
      const auto found = run(study, {&slow, &fast}, threads, &kGoOn, guess);
      CHECK(found[0].w == expected[0].w && found[0].history == expected[0].history);
      CHECK(found[1].w == expected[1].w && found[1].history == expected[1].history);
    }
  }
}

TEST(packed_runs_use_memory_again_without_a_trace) {
  Study study;
  const auto arm = study.arm(0.05);
  PackedRuns runs(1, &kGoOn);
  study.plan.server_steps = 300;
  runs.run<double>(study.plan, 10, study.w0.data(), {&arm});
  study.plan.server_steps = 40;
  const auto again = runs.run<double>(study.plan, 10, study.w0.data(), {&arm});
  const auto fresh = run(study, {&arm});
  CHECK(again[0].w == fresh[0].w && again[0].history == fresh[0].history && again[0].version == 40);
}

TEST(packed_runs_end_as_they_should) {
  Study study;
  auto arm = study.arm(0.1);
  CHECK(run(study, {&arm}, 1, &kCancel)[0].what == PackedEnd::Cancelled);
  arm.n_s = 1;
  const auto small = run(study, {&arm})[0];
  CHECK(small.what == PackedEnd::ShortTable && small.staleness > 1);
  arm = study.arm(0.1);
  arm.limits.server_steps = 7;
  CHECK(run(study, {&arm})[0].end == RunState::ServerSteps);
  CHECK_EQ(run(study, {&arm})[0].version, 7);
  arm.limits = {};
  arm.limits.updates = 31;
  CHECK(run(study, {&arm})[0].end == RunState::Updates);
  CHECK_EQ(run(study, {&arm})[0].updates, 30);
  arm.limits = {};
  arm.limits.loss = 1e9;
  CHECK(run(study, {&arm})[0].end == RunState::Loss);
  CHECK_EQ(run(study, {&arm})[0].version, 0);
  arm = study.arm(1e300);
  CHECK(run(study, {&arm})[0].end == RunState::Diverged);
  study.plan.timeout = 1e-12;  // nobody arrives
  arm = study.arm(0.1);
  CHECK(run(study, {&arm})[0].what == PackedEnd::Stalled);
}
