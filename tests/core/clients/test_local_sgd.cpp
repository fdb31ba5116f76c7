// Local SGD as the replay engine calls it: the deltas of Workspace, whatever tasks are run together.
#include "clients/local_sgd.hpp"

#include <vector>

#include "check.hpp"
#include "clients/workspace.hpp"

using namespace fedbuff;

TEST(local_sgd_work_gives_the_deltas_of_single_calls) {
  constexpr std::int64_t kClients = 5, kDim = 3;
  check::Numbers numbers(4);
  const auto center = numbers.vector<double>(kClients * kDim);
  const std::vector<double> curvature(1, 0.5);
  Problem<double> problem{};
  problem.family = Family::Quadratic;
  problem.n_clients = kClients;
  problem.dim = kDim;
  problem.center = center.data();
  problem.curvature = curvature.data();
  problem.curvature_form = Curvature::Scalar;
  problem.curvature_shared = true;
  problem.noise_variance = 0.25;
  LocalOptions options;
  options.steps = 4;
  options.lr = 0.1;
  options.seed = 9;
  const LocalConfig config = options.config(0, 0);
  const auto work = make_local_sgd<double>(problem, options);
  CHECK(work->is_tiny());
  const auto w = numbers.vector<double>(kDim);
  std::vector<ReplayRow> rows;
  std::vector<double> together(static_cast<std::size_t>(kMaxTasksPerRun * kDim));
  for (std::int64_t i = 0; i < kMaxTasksPerRun; ++i) {
    rows.push_back({static_cast<std::int32_t>(i % kClients), static_cast<std::uint32_t>(i), 0, 0, 1.0, 1.0});
  }
  std::vector<ClientTask<double>> tasks;
  for (std::int64_t i = 0; i < kMaxTasksPerRun; ++i) {
    tasks.push_back({&rows[static_cast<std::size_t>(i)], w.data(), together.data() + i * kDim});
  }
  std::vector<std::max_align_t> scratch(work->scratch_bytes() / sizeof(std::max_align_t) + 8);
  void* memory = scratch.data();
  std::size_t space = scratch.size() * sizeof(std::max_align_t);
  CHECK(std::align(64, work->scratch_bytes(), memory, space) != nullptr);
  work->run(tasks.data(), kMaxTasksPerRun, memory);
  Workspace<double> alone(problem);
  for (std::int64_t i = 0; i < kMaxTasksPerRun; ++i) {
    double delta[kDim];
    const ReplayRow& row = rows[static_cast<std::size_t>(i)];
    alone.local_sgd(config, {9, row.client, row.task, 0, nullptr}, w.data(), delta);
    for (std::int64_t j = 0; j < kDim; ++j) {
      CHECK_EQ(together[static_cast<std::size_t>(i * kDim + j)], delta[j]);
    }
  }
}
