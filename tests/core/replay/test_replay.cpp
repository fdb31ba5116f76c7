// The replay engine: the same bits on any number of threads, in any pieces, with any window, and after a restore.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "check.hpp"
#include "replay/replay.hpp"

namespace {

using fedbuff::Replay;
using fedbuff::ReplayExit;
using fedbuff::ReplayRow;

constexpr std::int64_t kDim = 37, kSteps = 40, kBuffer = 5, kTau = 6;

fb_rule make_rule(std::int32_t base = FB_BASE_START, double momentum = 0.0) {
  fb_rule rule{};
  rule.size = sizeof rule;
  rule.buffer_size = kBuffer;
  rule.base = base;
  rule.norm = FB_NORM_SCALED_WEIGHTS;
  rule.lr = 0.5;
  rule.momentum = momentum;
  return rule;
}

// delta = a function of the row and of every weight, so that a wrong model or order shows; in groups, also of the
// others in the call and of the place among them.
class Work final : public fedbuff::ClientWork<double> {
 public:
  explicit Work(bool tiny = false, std::int64_t most_in_group = 0) : tiny_(tiny), most_in_group_(most_in_group) {}
  std::int64_t most_in_group() const override { return most_in_group_; }
  bool is_tiny() const override { return tiny_; }
  std::size_t scratch_bytes() const override { return sizeof(double); }
  double flops() const override { return 1e4; }
  void run(const fedbuff::ClientTask<double>* tasks, std::int64_t n_tasks, void* scratch) override {
    for (std::int64_t i = 0; i < n_tasks; ++i) {
      run_one(*tasks[i].row, tasks[i].w, scratch, tasks[i].delta_out);
    }
    for (std::int64_t i = 0; most_in_group_ > 0 && i < n_tasks; ++i) {
      tasks[i].delta_out[i % kDim] += 1e-3 * tasks[n_tasks - 1 - i].w[0] + 1e-4 * static_cast<double>(n_tasks);
    }
    if (std::this_thread::get_id() != owner_) {
      by_others.fetch_add(n_tasks);
    } else if (tiny_) {
      for (int i = 0; i < 100; ++i) {  // others come to help
        std::this_thread::yield();
      }
    }
  }
  std::atomic<std::int32_t> fail_on{-1}, poison_on{-1};
  std::atomic<std::int64_t> by_others{0};  // tasks that other threads than the first have run

 private:
  const bool tiny_;
  const std::int64_t most_in_group_;
  const std::thread::id owner_ = std::this_thread::get_id();

  void run_one(const ReplayRow& row, const double* w, void* scratch, double* delta_out) {
    if (row.client == fail_on.load()) {
      throw std::runtime_error("client failed");
    }
    auto* used = static_cast<double*>(scratch);
    *used += 1;
    const std::int64_t first = row.client * std::int64_t{7} + std::int64_t{row.task} * 3;
    for (std::int64_t j = 0; j < kDim; ++j) {
      delta_out[j] = 0.1 * w[j] + 1e-3 * static_cast<double>((first + j) % 11) - 5e-3;
    }
    if (row.client == poison_on.load()) {
      delta_out[3] = std::numeric_limits<double>::quiet_NaN();
    }
  }
};

struct Schedule {
  std::vector<ReplayRow> rows;
  std::vector<std::int64_t> references = std::vector<std::int64_t>(kSteps);

  Schedule() {
    check::Numbers numbers(7);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (std::int64_t k = 0; k < kBuffer; ++k) {
        const std::int64_t version = std::max<std::int64_t>(0, step - numbers.below(kTau + 1));
        rows.push_back({static_cast<std::int32_t>(numbers.below(50)), static_cast<std::uint32_t>(rows.size()), version,
                        step, 1.0 / static_cast<double>(1 + step - version), 1.0 + 0.25 * static_cast<double>(k)});
        ++references[static_cast<std::size_t>(version)];
      }
    }
  }
  void give(Replay<double>& replay) const {
    replay.add(rows.data(), static_cast<std::int64_t>(rows.size()), references.data(), kSteps);
  }
};

std::vector<double> model_of(const Replay<double>& replay) { return {replay.w(), replay.w() + kDim}; }

std::vector<double> run(const fb_rule& rule, int threads, std::int64_t piece, std::int64_t window_bytes,
                        const fedbuff::SumConfig& sums = {}, bool tiny = false, std::int64_t most_in_group = 0) {
  Work work(tiny, most_in_group);
  const Schedule schedule;
  Replay<double> replay(rule, kDim, std::vector<double>(kDim, 1.0).data(), work, window_bytes, sums);
  schedule.give(replay);
  replay.close();
  while (replay.run(piece, threads) == ReplayExit::Steps) {
    replay.check();
  }
  replay.check();
  CHECK_EQ(replay.version(), kSteps);
  CHECK_EQ(replay.stats().rows, kSteps * kBuffer);
  CHECK_EQ(replay.stats().live_versions, 1);
  CHECK(replay.stats().most_versions <= kTau + 3);
  return model_of(replay);
}

TEST(replay_bits_do_not_depend_on_threads_pieces_or_window) {
  for (const fb_rule& rule : {make_rule(), make_rule(FB_BASE_CURRENT), make_rule(FB_BASE_START, 0.9)}) {
    const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20);
    for (const int threads : {1, 2, 3, 8}) {
      for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{7}, kSteps}) {
        for (const std::int64_t window : {1, 1 << 20}) {
          CHECK(run(rule, threads, piece, window) == expected);
        }
      }
    }
  }
}

TEST(replay_of_groups_has_the_same_bits) {
  fedbuff::SumConfig sums;
  sums.clip = 0.25;
  for (const fb_rule& rule : {make_rule(), make_rule(FB_BASE_CURRENT), make_rule(FB_BASE_START, 0.9)}) {
    const std::vector<double> one_by_one = run(rule, 1, kSteps, 1 << 20, sums);
    for (const std::int64_t most : {1, 4, 64}) {
      const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20, sums, false, most);
      CHECK(expected != one_by_one);
      for (const int threads : {2, 8}) {
        for (const std::int64_t window : {1, 1 << 20}) {
          CHECK(run(rule, threads, 1, window, sums, false, most) == expected);
          CHECK(run(rule, threads, 7, window, sums, false, most) == expected);
        }
      }
    }
  }
}

TEST(replay_of_tiny_tasks_has_the_same_bits) {
  for (const fb_rule& rule : {make_rule(), make_rule(FB_BASE_CURRENT), make_rule(FB_BASE_START, 0.9)}) {
    const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20);
    for (const int threads : {1, 2, 4}) {
      for (const std::int64_t piece : {std::int64_t{7}, kSteps}) {
        for (const std::int64_t window : {1, 1 << 20}) {
          CHECK(run(rule, threads, piece, window, {}, true) == expected);
        }
      }
    }
  }
}

TEST(replay_of_many_tiny_tasks_is_helped) {
  constexpr std::int64_t kMany = 3000;  // steps, enough for both ways to be tried
  const auto rule = make_rule();
  const auto go = [&](int threads, std::int64_t piece, std::int64_t* by_others) {
    Work work(threads > 1);
    Replay<double> replay(rule, kDim, std::vector<double>(kDim, 1.0).data(), work, 1 << 20);
    check::Numbers numbers(11);
    std::vector<std::int64_t> references(kMany);
    std::vector<ReplayRow> rows;
    for (std::int64_t step = 0; step < kMany; ++step) {
      for (std::int64_t k = 0; k < numbers.below(2 * kBuffer); ++k) {  // some steps are empty
        const std::int64_t version = std::max<std::int64_t>(0, step - numbers.below(20));
        rows.push_back({static_cast<std::int32_t>(k), static_cast<std::uint32_t>(rows.size()), version, step, 1, 1});
        ++references[static_cast<std::size_t>(version)];
      }
    }
    replay.add(rows.data(), static_cast<std::int64_t>(rows.size()), references.data(), kMany);
    while (replay.run(piece, threads) == ReplayExit::Steps) {
      replay.check();
    }
    CHECK_EQ(replay.version(), kMany);
    *by_others = work.by_others.load();
    return model_of(replay);
  };
  std::int64_t by_others = 0;
  const std::vector<double> expected = go(1, kMany, &by_others);
  CHECK_EQ(by_others, 0);
  CHECK(go(2, 500, &by_others) == expected);
  CHECK(by_others > 0);
  CHECK(go(3, kMany, &by_others) == expected);
  CHECK(by_others > 0);
}

TEST(replay_of_secure_and_private_sums_has_the_same_bits) {
  const std::vector<double> plain = run(make_rule(), 1, kSteps, 1 << 20);
  for (const int modulus : {0, 32, 64}) {
    fedbuff::SumConfig sums;
    sums.modulus = modulus;
    sums.range = 1.0;
    sums.step = 1.0 / (1 << 16);
    sums.weight_unit = 1 << 8;
    sums.stochastic = modulus == 64;
    if (modulus != 32) {
      sums.clip = 0.25;
      sums.deviation = 1e-3;
    }
    const std::vector<double> expected = run(make_rule(), 1, kSteps, 1 << 20, sums);
    CHECK(expected != plain);
    for (const int threads : {1, 3}) {
      for (const std::int64_t window : {1, 1 << 20}) {
        CHECK(run(make_rule(), threads, 7, window, sums) == expected);
        CHECK(run(make_rule(), threads, 7, window, sums, true) == expected);
      }
    }
  }
}

void restore_anywhere(std::int64_t most_in_group) {
  const fb_rule rule = make_rule(FB_BASE_CURRENT, 0.9);
  fedbuff::SumConfig sums;
  sums.clip = 0.25;
  const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20, sums, false, most_in_group);
  const Schedule schedule;
  const std::vector<double> w0(kDim, 1.0);
  std::size_t n_waiting = 0;
  for (std::int64_t stop = 0; stop < kSteps; stop += 3) {
    Work work(false, most_in_group);
    Replay<double> first(rule, kDim, w0.data(), work, 1 << 20, sums);
    schedule.give(first);
    first.close();
    first.run(stop, 3);
    std::vector<double> deltas;
    for (const double* delta : first.waiting_deltas()) {
      deltas.insert(deltas.end(), delta, delta + kDim);
    }
    n_waiting += deltas.size();
    std::vector<std::int64_t> live = first.live_versions();
    CHECK_EQ(live.back(), stop);
    live.pop_back();
    std::vector<double> models;
    for (const std::int64_t version : live) {
      models.insert(models.end(), first.model(version), first.model(version) + kDim);
    }
    Replay<double> second(rule, kDim, w0.data(), work, 1 << 20, sums);
    second.pass_over(stop);
    schedule.give(second);
    second.close();
    CHECK_EQ(second.restore(first.w(), live, models.data(), first.rule_state(), deltas.data(),
                            static_cast<std::int64_t>(deltas.size()) / kDim),
             static_cast<std::int64_t>(live.size()));
    second.check();
    second.run(kSteps, 2);
    second.check();
    CHECK_EQ(second.version(), kSteps);
    CHECK(model_of(second) == expected);
  }
  CHECK((n_waiting > 0) == (most_in_group > 1));
}

TEST(replay_restored_anywhere_gives_the_same_bits) {
  for (const std::int64_t most_in_group : {0, 1, 16}) {
    restore_anywhere(most_in_group);
  }
}

TEST(replay_rows_may_come_in_pieces) {
  const fb_rule rule = make_rule();
  const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20);
  const Schedule schedule;
  Work work;
  Replay<double> replay(rule, kDim, std::vector<double>(kDim, 1.0).data(), work, 1 << 20);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    replay.add(schedule.rows.data() + step * kBuffer, kBuffer, schedule.references.data() + step, 1);
    CHECK(replay.run(kSteps, 3) == ReplayExit::NeedRows);
    replay.check();
    CHECK_EQ(replay.version(), step + 1);
  }
  CHECK(model_of(replay) == expected);
}

TEST(replay_goes_on_after_a_client_failed) {
  const fb_rule rule = make_rule();
  const std::vector<double> expected = run(rule, 1, kSteps, 1 << 20);
  const Schedule schedule;
  for (const bool tiny : {false, true}) {
    Work work(tiny);
    Replay<double> replay(rule, kDim, std::vector<double>(kDim, 1.0).data(), work, 1 << 20);
    schedule.give(replay);
    work.fail_on = schedule.rows[60].client;
    bool thrown = false;
    try {
      replay.run(kSteps, 4);
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    CHECK(thrown);
    replay.check();
    work.fail_on = -1;
    CHECK(replay.run(kSteps, 4) == ReplayExit::NeedRows);
    CHECK(model_of(replay) == expected);
  }
}

TEST(replay_stops_before_a_model_that_is_not_finite) {
  const Schedule schedule;
  Work work;
  work.poison_on = schedule.rows[52].client;
  std::int64_t first = 0;
  while (schedule.rows[static_cast<std::size_t>(first)].client != work.poison_on) {
    ++first;
  }
  Replay<double> replay(make_rule(), kDim, std::vector<double>(kDim, 1.0).data(), work, 1 << 20);
  schedule.give(replay);
  CHECK(replay.run(kSteps, 3) == ReplayExit::Diverged);
  CHECK_EQ(replay.divergence().row, first);
  CHECK_EQ(replay.divergence().step, first / kBuffer);
  CHECK_EQ(replay.version(), first / kBuffer);
  for (const double value : model_of(replay)) {
    CHECK(std::isfinite(value));
  }
}

TEST(replay_records_the_gradient_of_every_version) {
  // f_i = (w - c_i)^2 a / 2 in every coordinate: |grad f|^2 = a^2 |w - mean c|^2
  constexpr double kCurvature = 0.5;
  std::vector<double> centers(2 * kDim, 1.0);
  std::fill(centers.begin() + kDim, centers.end(), -3.0);
  const double weight[2] = {0.25, 0.75};
  fedbuff::Problem<double> problem{};
  problem.family = fedbuff::Family::Quadratic;
  problem.n_clients = 2;
  problem.dim = kDim;
  problem.client_weight = weight;
  problem.center = centers.data();
  problem.curvature = &kCurvature;
  problem.curvature_form = fedbuff::Curvature::Scalar;
  problem.curvature_shared = true;
  const Schedule schedule;
  std::vector<double> expected;
  for (const int threads : {1, 3}) {
    Work work;
    Replay<double> replay(make_rule(), kDim, std::vector<double>(kDim, 1.0).data(), work, 1 << 20);
    schedule.give(replay);
    CHECK(replay.gradients().empty());
    replay.record_gradients(problem, 3, 1);
    while (threads == 1 && replay.version() < kSteps) {
      double sum = 0;
      for (const double w : model_of(replay)) {
        sum += kCurvature * (w + 2.0) * kCurvature * (w + 2.0);
      }
      if (replay.version() % 3 == 1) {
        expected.push_back(sum);
      }
      replay.run(1, threads);
    }
    replay.run(kSteps, threads);
    CHECK_EQ(replay.gradients().size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(std::abs(replay.gradients()[i] - expected[i]) <= 1e-12 * expected[i]);
    }
  }
}

TEST(replay_refuses_rows_out_of_order) {
  Work work;
  const std::vector<double> w0(kDim);
  const std::int64_t references = 0;
  for (const std::vector<ReplayRow>& rows :
       {std::vector<ReplayRow>{{0, 0, 1, 0, 1, 1}}, std::vector<ReplayRow>{{0, 0, -1, 0, 1, 1}},
        std::vector<ReplayRow>{{0, 0, 0, 1, 1, 1}, {0, 0, 0, 0, 1, 1}}}) {
    Replay<double> replay(make_rule(), kDim, w0.data(), work, 1 << 20);
    bool thrown = false;
    try {
      replay.add(rows.data(), static_cast<std::int64_t>(rows.size()), &references, 1);
    } catch (const std::invalid_argument&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

template <class Error, class Body>
bool throws(Body body) {
  try {
    body();
  } catch (const Error&) {
    return true;
  }
  return false;
}

TEST(replay_refuses_rows_whose_model_is_gone) {
  const Schedule schedule;
  Work work;
  const std::vector<double> w0(kDim, 1.0);
  for (std::size_t version = 0; version < kSteps; version += 7) {
    if (schedule.references[version] == 0) {
      continue;
    }
    std::vector<std::int64_t> fewer = schedule.references;
    --fewer[version];
    for (const bool tiny : {false, true}) {  // of tiny rows helpers take some
      Work work_of_both(tiny);
      Replay<double> replay(make_rule(), kDim, w0.data(), work_of_both, 1 << 20);
      CHECK(throws<std::invalid_argument>([&] {
        for (std::int64_t step = 0; step < kSteps; ++step) {
          replay.add(schedule.rows.data() + step * kBuffer, kBuffer, fewer.data() + step, 1);
          replay.run(kSteps, 3);
        }
      }));
      CHECK(throws<std::logic_error>([&] { replay.run(kSteps, 3); }));  // what was taken in part is of no use
    }
  }
  Replay<double> replay(make_rule(), kDim, w0.data(), work, 1 << 20);
  schedule.give(replay);
  const std::vector<std::int64_t> ended(100, 0);
  CHECK(throws<std::invalid_argument>([&] { replay.release(ended.data(), 100); }));
}

TEST(replay_restores_no_models_that_do_not_fit) {
  const Schedule schedule;
  const fb_rule rule = make_rule();
  const std::vector<double> w0(kDim, 1.0);
  Work work;
  Replay<double> first(rule, kDim, w0.data(), work, 1 << 20);
  schedule.give(first);
  first.run(20, 1);
  std::vector<std::int64_t> live = first.live_versions();
  live.pop_back();
  const std::vector<double> models(live.size() * kDim);
  CHECK(live.size() >= 2);
  const auto restore = [&](const std::vector<std::int64_t>& versions) {
    Replay<double> second(rule, kDim, w0.data(), work, 1 << 20);
    second.pass_over(20);
    CHECK(throws<std::logic_error>([&] { second.run(1, 1); }));
    schedule.give(second);
    return second.restore(w0.data(), versions, models.data(), {});
  };
  CHECK_EQ(restore(live), static_cast<std::int64_t>(live.size()));
  CHECK(throws<std::invalid_argument>([&] { restore({live.begin() + 1, live.end()}); }));
  CHECK(throws<std::invalid_argument>([&] { restore({live.rbegin(), live.rend()}); }));
  std::vector<std::int64_t> shifted = live;
  shifted.back() = 20;
  CHECK(throws<std::invalid_argument>([&] { restore(shifted); }));
  shifted = live;
  shifted.front() = -1;
  CHECK(throws<std::invalid_argument>([&] { restore(shifted); }));
}

}  // namespace
