// The parts of the replay engine, each alone: row queue, groups, version store, window, states of clients, commit,
// helper policy.
#include <set>
#include <stdexcept>

#include "check.hpp"
#include "replay/client_states.hpp"
#include "replay/commit.hpp"
#include "replay/groups.hpp"
#include "replay/helper_policy.hpp"
#include "replay/row_queue.hpp"
#include "replay/version_store.hpp"
#include "replay/window.hpp"

using namespace fedbuff;

namespace {

ReplayRow row_of(std::int64_t version, std::int64_t step) { return {0, 0, version, step, 1.0, 1.0}; }

template <class Body>
bool throws(Body body) {
  try {
    body();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(row_queue_closes_steps_at_their_last_rows) {
  RowQueue queue;
  for (const std::int64_t step : {0, 0, 1, 3}) {
    queue.require_order(row_of(0, step));
    queue.push(row_of(0, step));
  }
  CHECK(throws([&] { queue.require_order(row_of(0, 2)); }));  // steps ascend
  CHECK(throws([&] { queue.require_order(row_of(5, 4)); }));  // a version is not above the step
  CHECK(!queue.has_complete_step());
  for (const std::int64_t end : {2, 3, 3, 4}) {
    queue.close_step(queue.n_steps());
    CHECK_EQ(queue.step_end(), end);
    queue.pop_step();
  }
  queue.pop_row();
  CHECK(queue.step_of(0) == -1 && queue.step_of(1) == 0);
  CHECK(queue.n_rows() == 4 && queue.n_steps() == 4);
}

TEST(row_queue_skips_rows_of_made_steps) {
  RowQueue queue;
  queue.skip(), queue.skip();
  queue.push(row_of(0, 2));
  CHECK(queue.rows().begin() == 2 && queue.rows().end() == 3 && queue.n_rows() == 3);
  for (int step = 0; step < 3; ++step) {
    queue.close_step(2);  // two steps are made
  }
  CHECK_EQ(queue.step_end(), std::int64_t{3});
}

TEST(groups_hold_rows_whose_versions_come_from_earlier_steps) {
  Groups groups(3);
  const ReplayRow rows[] = {row_of(0, 0), row_of(0, 0), row_of(1, 1), row_of(0, 1), row_of(1, 1), row_of(1, 2)};
  std::vector<std::int64_t> begins;
  const auto visit = [&](const RowGroup& group) { begins.push_back(group.begin); };
  for (std::int64_t i = 0; i < 6; ++i) {
    groups.add(i, rows[i]);
  }
  groups.visit_new(4, visit);
  CHECK(begins == std::vector<std::int64_t>{0});  // the next one ends at 5
  groups.visit_new(6, visit);
  CHECK(begins == (std::vector<std::int64_t>{0, 2}));
  CHECK(groups.find(1)->end == 2 && groups.find(4)->begin == 2 && groups.find(4)->version == 1);
  CHECK(groups.find(5) == nullptr);  // it may take more rows
  groups.close();
  groups.forget_before(3);
  groups.revisit();
  groups.visit_new(6, visit);
  CHECK(begins == (std::vector<std::int64_t>{0, 2, 2, 5}));
  CHECK(groups.find(1) == nullptr);
  groups.restart(3, 1);
  groups.add(3, rows[3]), groups.add(4, rows[4]);
  groups.close();
  CHECK(groups.find(4)->begin == 4 && groups.find(3)->begin < 3 && groups.find(3)->end == 4);
}

TEST(version_store_frees_a_model_with_its_last_reference) {
  VectorPool pool;
  const double w0 = 7.0;
  VersionStore<double> store(1, &w0, pool);
  const IndexRing<ReplayRow> none;
  store.hold(0, 0), store.hold(0, 1);
  store.close(0, 3, 2);  // two rows, and one task that ends unused
  store.push(store.take());
  store.commit_row(0, 2);
  store.free_if_unused(0);
  CHECK_EQ(*store.model(0), 7.0);
  CHECK(throws([&] { store.check(none); }));  // a row is missing
  store.commit_row(0, 2);
  CHECK_EQ(store.n_live(), std::int64_t{2});
  store.release(0, 2);
  CHECK(store.find(0) == nullptr && store.n_live() == 1 && store.most_live() == 2);
  CHECK(store.live() == std::vector<std::int64_t>{1});
  store.check(none);
  CHECK(throws([&] { store.hold(0, 3); }));
}

TEST(version_store_refuses_more_ends_than_starts) {
  VectorPool pool;
  const float w0 = 1.0f;
  VersionStore<float> store(1, &w0, pool);
  store.hold(0, 0), store.hold(0, 1);
  CHECK(throws([&] { store.close(0, 1, 2); }));
}

TEST(version_store_does_not_use_a_kept_model_again) {
  VectorPool pool;
  const double w0 = 1.0;
  VersionStore<double> store(1, &w0, pool);
  const auto kept = store.keep(0);
  store.push(store.take());
  store.close(0, 0, 0);
  CHECK(store.find(0) == nullptr);
  const SharedMemory next = store.take();
  CHECK(next.get() != kept.get());
  CHECK_EQ(*static_cast<const double*>(kept.get()), 1.0);
}

TEST(version_store_is_restored_with_what_rows_need) {
  VectorPool pool;
  const double w0 = 0.0, w = 5.0, models[] = {1.0, 2.0};
  VersionStore<double> store(1, &w0, pool);
  store.pass_over(4);
  store.hold(2, 0);
  for (std::int64_t v = 0; v < 4; ++v) {
    store.close(v, v == 2 ? 1 : 0, 1);
  }
  CHECK(throws([&] { store.restore(&w, {4}, models); }));
  CHECK_EQ(store.restore(&w, {1, 2}, models), std::int64_t{1});
  CHECK(*store.model(2) == 2.0 && *store.model(4) == 5.0 && store.n_live() == 2);
}

TEST(window_moves_rows_from_waiting_to_added) {
  VectorPool pool;
  Window<float> window(3, 1 << 20, pool);
  constexpr std::int64_t kRows = 1000;
  window.resize(20, 2);
  CHECK_EQ(window.size(), std::int64_t{32});
  RowList list;
  std::set<std::int64_t> cancelled;  // once each
  std::int64_t next = 0;
  while (window.added() < kRows) {
    window.visit_new(kRows, [&](std::int64_t row) {
      CHECK_EQ(row, next++);
      row % 3 == 2 ? window.make_wait(row, list) : window.make_runnable(row);
    });
    if (window.n_runnable() == 0) {
      window.visit_waiting(list, [&](std::int64_t waiting) { window.make_runnable(waiting); });
      list = {};
    }
    const std::int64_t row = window.pop_runnable();
    float* delta_out = window.start(row);
    delta_out[2] = static_cast<float>(row);
    CHECK(!window.is_done(row));
    if (row % 7 == 0 && cancelled.insert(row).second) {
      window.cancel(row);
      window.make_runnable(row);
      continue;
    }
    window.finish(row);
    window.move_prefix(kRows, [&](std::int64_t i) { return window.is_done(i); });
    window.check(kRows);
    while (window.added() < window.prefix()) {
      CHECK_EQ(window.delta(window.added())[2], static_cast<float>(window.added()));
      window.pop(true);
    }
  }
  CHECK(window.n_deltas() == 0 && window.most_deltas() <= window.size());
}

TEST(window_lets_a_row_follow_the_one_of_its_client) {
  VectorPool pool;
  Window<float> window(1, 1 << 20, pool, true);
  window.resize(4, 4);
  window.visit_new(3,
                   [&](std::int64_t row) { row == 0 ? window.make_runnable(row) : window.make_follow(row, row - 1); });
  for (std::int64_t row = 0; row < 3; ++row) {
    CHECK_EQ(window.n_runnable(), std::int64_t{1});
    CHECK_EQ(window.pop_runnable(), row);
    window.start(row);
    window.client_state(row) = pool.take(4);
    window.finish(row);
  }
  CHECK_EQ(window.n_runnable(), std::int64_t{0});
  void* kept = window.client_state(2).get();
  window.move_prefix(3, [&](std::int64_t i) { return window.is_done(i); });
  window.pop(true);
  window.resize(8, 8);
  CHECK(window.client_state(2).get() == kept && window.is_done(2) && window.client_state(5) == nullptr);
}

TEST(states_of_clients_are_saved_as_the_last_whole_step_left_them) {
  VectorPool pool;
  ClientStates<double> states(1, true, pool);
  const auto finish = [&](std::int64_t row, std::int32_t client, double value) {
    CHECK(states.previous(row) < row);
    SharedMemory after = states.take();
    *static_cast<double*>(after.get()) = value;
    states.commit(client, after);
    states.pop_row();
  };
  const auto saved = [&] {
    std::vector<std::pair<std::int64_t, double>> found;
    states.visit_saved([&](std::int64_t client, const double* state) { found.emplace_back(client, *state); });
    return found;
  };
  using Found = std::vector<std::pair<std::int64_t, double>>;
  for (std::int64_t row = 0; row < 5; ++row) {
    states.add(row, row == 1 ? 0 : 3);
  }
  CHECK(states.previous(0) == -1 && states.previous(1) == -1 && states.previous(2) == 0 && states.previous(4) == 3);
  CHECK(states.state(3) == nullptr);
  finish(0, 3, 1.0);
  finish(1, 0, 2.0);
  CHECK(saved().empty() && *states.state(3) == 1.0);
  states.end_step();
  CHECK((saved() == Found{{0, 2.0}, {3, 1.0}}));
  finish(2, 3, 4.0);
  finish(3, 3, 5.0);  // twice in a step
  CHECK((saved() == Found{{0, 2.0}, {3, 1.0}}) && *states.state(3) == 5.0);
  states.end_step();
  CHECK((saved() == Found{{0, 2.0}, {3, 5.0}}));
  ClientStates<double> other(1, true, pool);
  const double value = 7.0;
  other.restore(2, &value);
  other.skip(9, 2);
  other.add(10, 2);
  CHECK(other.previous(10) == 9 && *other.state(2) == 7.0);
}

TEST(window_keeps_done_rows_when_it_is_resized) {
  VectorPool pool;
  Window<double> window(1, 64 * 8, pool);
  window.resize(1000, 2);
  CHECK_EQ(window.size(), std::int64_t{64});  // what fits
  window.visit_new(100, [&](std::int64_t row) { window.make_runnable(row); });
  for (int i = 0; i < 20; ++i) {
    const std::int64_t row = window.pop_runnable();
    *window.start(row) = static_cast<double>(row);
    window.finish(row);
  }
  window.move_prefix(100, [&](std::int64_t i) { return window.is_done(i); });
  CHECK_EQ(window.prefix(), std::int64_t{20});
  window.resize(4, 2);
  CHECK(window.size() == 4 && window.prefix() == 4 && window.n_deltas() == 4 && *window.delta(3) == 3.0);
  window.resize(64, 2);
  CHECK(window.is_done(3) && !window.is_done(4) && window.frontier() == 0);
  window.check(100);
}

TEST(commit_in_pieces_gives_the_bits_of_one) {
  constexpr std::int64_t kDim = 37;
  check::Numbers numbers(2);
  const auto w = numbers.vector<float>(kDim);
  std::vector<std::vector<float>> deltas;
  for (int i = 0; i < 6; ++i) {
    deltas.push_back(numbers.vector<float>(kDim));
  }
  fb_rule rule = FB_RULE_INIT;
  rule.norm = FB_NORM_WEIGHTS;
  const ReplayRow row{0, 0, 0, 0, 0.5, 3.0};
  std::vector<float> want(static_cast<std::size_t>(kDim)), got(want);
  for (const std::size_t piece : {std::size_t{6}, std::size_t{1}, std::size_t{4}}) {
    Commit<float> commit(rule, kDim, {}, nullptr);
    std::vector<float>& out = piece == 6 ? want : got;
    for (std::size_t first = 0; first < 6; first += piece) {
      commit.begin();
      const std::size_t end = std::min<std::size_t>(6, first + piece);
      for (std::size_t i = first; i < end; ++i) {
        commit.add(row, deltas[i].data(), 1.0, nullptr);
      }
      CHECK_EQ(commit.run(0, 0, end == 6, w.data(), out.data()).step, std::int64_t{-1});
    }
    CHECK(out == want);
  }
}

TEST(commit_names_the_row_that_is_not_finite) {
  Commit<double> commit(FB_RULE_INIT, 1, {}, nullptr);
  const ReplayRow row{0, 0, 0, 3, 1.0, 1.0};
  const double w = 1.0, good = 1.0, bad = std::numeric_limits<double>::infinity();
  double next = 0;
  commit.begin();
  commit.add(row, &good, 1.0, nullptr), commit.add(row, &bad, 1.0, nullptr);
  const Divergence found = commit.run(3, 100, true, &w, &next);
  CHECK(found.step == 3 && found.row == 101);
}

TEST(commit_refuses_a_norm_of_zero_and_passes_an_empty_step) {
  fb_rule rule = FB_RULE_INIT;
  rule.norm = FB_NORM_WEIGHTS;
  Commit<double> commit(rule, 1, {}, nullptr);
  const ReplayRow row{0, 0, 0, 0, 1.0, 0.0};
  const double w = 4.0, delta = 1.0;
  double next = 0;
  commit.begin();
  commit.add(row, &delta, 1.0, nullptr);
  CHECK(throws([&] { commit.run(0, 0, true, &w, &next); }));
  commit.begin();
  CHECK_EQ(commit.run(0, 0, true, &w, &next).step, std::int64_t{-1});
  CHECK_EQ(next, 4.0);
}

TEST(helper_policy_takes_the_faster_way_and_tries_again) {
  HelperPolicy policy;
  CHECK(policy.wants_helpers());
  policy.note_run(true, 1.0, HelperPolicy::kTrialRows);
  CHECK(!policy.wants_helpers());
  policy.note_run(false, 2.0, HelperPolicy::kTrialRows);
  CHECK(policy.wants_helpers());
  policy.note_run(true, 1.0, HelperPolicy::kTrialsApart * HelperPolicy::kTrialRows);
  CHECK(policy.wants_helpers());
  policy.note_run(true, 1.0, HelperPolicy::kTrialRows);  // the trials began anew
  CHECK(!policy.wants_helpers());
}

TEST(helper_policy_share_follows_the_waits) {
  HelperPolicy policy;
  CHECK_EQ(policy.share(), HelperPolicy::kShares);
  CHECK(policy.note_wait(4) && !policy.note_wait(4) && policy.note_wait(5));
  policy.adapt_share(6);
  CHECK_EQ(policy.share(), HelperPolicy::kShares - 1);
  policy.adapt_share(6);  // no waits: it rises
  CHECK_EQ(policy.share(), HelperPolicy::kShares);
}
