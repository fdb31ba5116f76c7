// RuleState: the one-pass step, chunks and threads give the same bits; a failed step leaves the state as it was.
#include "server/rule_state.hpp"

#include <atomic>
#include <limits>

#include "check.hpp"
#include "threads/parallel.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

constexpr std::int64_t kDims[] = {1, 19, 2 * kChunkSize + 3};

template <class T>
constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;

fb_rule make_rule(int kind) {
  fb_rule rule = FB_RULE_INIT;
  rule.lr = 0.25;
  rule.norm = FB_NORM_SCALED_WEIGHTS;
  rule.momentum = kind == 0 ? 0 : 0.5;
  rule.optimizer = kind < 2 ? FB_SGD : static_cast<fb_optimizer>(kind - 1);
  rule.period = 2;
  rule.activation = 0.25;
  rule.decay = FB_DECAY_COSINE;
  rule.decay_steps = 10;
  return rule;
}

template <class T>
struct Arrivals {
  explicit Arrivals(std::int64_t dim) {
    Numbers numbers(11);
    for (int k = 0; k < 3; ++k) {
      deltas.push_back(numbers.vector<T>(dim));
    }
  }
  std::vector<typename RuleState<T>::Term> terms(const RuleState<T>& state, WeightSums& sums) const {
    std::vector<typename RuleState<T>::Term> terms;
    for (const auto& delta : deltas) {
      double weight = 0;
      CHECK_EQ(state.weigh(0.5, 1.0 + static_cast<double>(terms.size()), 0, 1.0, sums, weight), FB_OK);
      terms.emplace_back(delta.data(), kDtype<T>, weight, nullptr);
    }
    return terms;
  }
  std::vector<std::vector<T>> deltas;
};

template <class T>
void chunks_and_whole_passes_agree() {
  for (const std::int64_t dim : kDims) {
    const Arrivals<T> arrivals(dim);
    for (int kind = 0; kind < 9; ++kind) {
      const auto n = static_cast<std::size_t>(dim);
      RuleState<T> whole(make_rule(kind), dim, OnFailure::Discard), shared(make_rule(kind), dim, OnFailure::Restore);
      std::vector<T> w(n, T(1)), threaded(n, T(1)), fused(n);
      for (std::int64_t version = 0; version < 3; ++version) {
        WeightSums sums;
        const auto terms = arrivals.terms(whole, sums);
        CHECK(sums.arrivals == 3 && sums.e == 6.0 && sums.se == 3.0);
        const StepConfig config = step_config(whole.rule(), sums, norm_of(whole.rule(), sums), version);
        CHECK_EQ(whole.fuses(terms), kind == 0);
        if (whole.fuses(terms)) {
          CHECK(whole.step_fused(terms, config, w.data(), fused.data()));
        }
        whole.add(terms, w.data());
        whole.set_weights(sums);
        CHECK(!whole.fuses(terms));  // the buffer is not empty
        CHECK(whole.step(config, w.data(), w.data()));
        whole.commit_step();
        CHECK_EQ(whole.weights().arrivals, std::int64_t{0});
        run_parallel(shared.n_chunks(), 3, [&](std::int64_t chunk) { shared.add_chunk(chunk, terms, nullptr); });
        shared.commit_sum();
        run_parallel(shared.n_chunks(), 3,
                     [&](std::int64_t chunk) { shared.step_chunk(chunk, config, threaded.data(), threaded.data()); });
        shared.commit_step();
        CHECK(threaded == w);
        CHECK(kind != 0 || fused == w);
      }
      CHECK_EQ(static_cast<int>(whole.arrays().size()), n_moments(whole.rule()));
      for (int i = 0; i < n_moments(whole.rule()); ++i) {
        CHECK(std::equal(whole.moment(i), whole.moment(i) + dim, shared.moment(i)));
      }
    }
  }
}

}  // namespace

TEST(rule_state_bits_depend_on_neither_chunks_nor_threads_nor_passes) {
  check::on_every_level([] { chunks_and_whole_passes_agree<float>(), chunks_and_whole_passes_agree<double>(); });
}

TEST(rule_state_restores_what_a_failed_step_would_change) {
  constexpr double kMost = std::numeric_limits<double>::max();
  RuleState<double> state(make_rule(1), 1, OnFailure::Restore);
  const double delta = kMost, w = -kMost;
  double out = 0;
  CHECK_EQ(state.add_chunk(0, {{&delta, FB_F64, 1.0, nullptr}}, nullptr), FB_OK);
  state.commit_sum();
  state.set_weights({1, 1.0, 1.0});
  StepConfig config = step_config(state.rule(), {}, 1.0, 0);
  config.lr = 1.0;
  CHECK(!state.step_chunk(0, config, &w, &out));
  CHECK_EQ(state.moment(0)[0], 0.0);
  CHECK_EQ(state.add_chunk(0, {{&delta, FB_F64, 1.0, nullptr}}, nullptr), FB_ERR_OVERFLOW);
  CHECK_EQ(state.sum().values()[0], kMost);
}

TEST(rule_state_rebases_a_contribution) {
  fb_rule rule = make_rule(0);
  rule.base = FB_BASE_CURRENT;
  CHECK(is_rebased(rule, 1, 2) && !is_rebased(rule, 2, 2) && !is_rebased(make_rule(0), 1, 2));
  RuleState<double> state(rule, 1, OnFailure::Discard);
  const double delta = 1.0, start = 10.0, current = 12.0;
  const std::vector<RuleState<double>::Term> terms = {{&delta, FB_F64, 2.0, &start}};
  CHECK(!state.fuses(terms));
  state.add(terms, &current);
  CHECK_EQ(state.sum().values()[0], 6.0);
}

TEST(rule_state_integer_weights_are_exact_or_refused) {
  fb_rule rule = make_rule(0);
  rule.unit = 0.5;
  const RuleState<float> state(rule, 1, OnFailure::Restore);
  WeightSums sums;
  double weight = 0;
  CHECK_EQ(state.weigh(1.0, 0.1, 0, 1.0, sums, weight), FB_OK);
  CHECK_EQ(weight, fixed_weight(0.1));
  CHECK_EQ(state.weigh(1.0, kMostFixedWeight, 0, 1.0, sums, weight), FB_ERR_OVERFLOW);
}

namespace {

fb_rule make_table_rule(fb_table table, bool seen) {
  fb_rule rule = make_rule(0);
  rule.norm = FB_NORM_ARRIVALS;
  rule.n_clients = 4;
  rule.table = table;
  rule.table_seen = seen ? 1 : 0;
  rule.table_own = -0.75;
  rule.table_mean = 0.5;
  return rule;
}

// Three ways to make the same steps: in one pass, in a sum and a step, and arrival by arrival on several threads, where
// every one of them may be undone.
template <class T>
void rows_give_the_same_bits(fb_table table, bool seen) {
  constexpr std::int64_t kClients[] = {2, 0, 2};  // the third is compared with the first
  for (const std::int64_t dim : kDims) {
    const fb_rule rule = make_table_rule(table, seen);
    const Arrivals<T> arrivals(dim);
    RuleState<T> fused(rule, dim, OnFailure::Discard), whole(rule, dim, OnFailure::Discard);
    RuleState<T> single(rule, dim, OnFailure::Restore);
    const auto n = static_cast<std::size_t>(dim);
    std::vector<T> w(n, T(1)), summed(n, T(1)), threaded(n, T(1));
    const auto place = [&](RuleState<T>& state, std::vector<typename RuleState<T>::Term>& terms) {
      for (std::size_t k = 0; k < terms.size(); ++k) {
        terms[k].row = state.rows().row(kClients[k]);
        auto memory = state.rows().place(kClients[k]);
        terms[k].row_out = memory.get();
        state.rows().set(kClients[k], memory);
      }
    };
    for (std::int64_t version = 0; version < 3; ++version) {
      WeightSums sums, same, again;
      auto terms = arrivals.terms(fused, sums);
      auto others = arrivals.terms(whole, same);
      const StepConfig config = step_config(rule, sums, norm_of(rule, sums), version);
      place(fused, terms), place(whole, others);
      CHECK(fused.fuses(terms));
      CHECK(fused.step_fused(terms, config, w.data(), w.data()));
      fused.set_weights(sums);
      fused.commit_step(true);
      whole.add(others, nullptr);
      whole.set_weights(same);
      CHECK(whole.step(config, summed.data(), summed.data()));
      whole.commit_step();
      const auto ours = arrivals.terms(single, again);
      for (std::size_t k = 0; k < ours.size(); ++k) {
        std::vector<typename RuleState<T>::Term> one{ours[k]};
        single.begin_row(kClients[k], one[0]);
        for (int times = 0; times < 2; ++times) {  // once in vain
          run_parallel(single.n_chunks(), 3, [&](std::int64_t chunk) { single.add_chunk(chunk, one, nullptr); });
          single.commit_sum();
          if (times == 0) {
            single.undo_sum();
          }
        }
        single.set_weights({static_cast<std::int64_t>(k) + 1, 0, 0, 0});
        single.store_row(kClients[k], one[0]);
      }
      run_parallel(single.n_chunks(), 3, [&](std::int64_t chunk) {
        CHECK(single.step_chunk(chunk, config, threaded.data(), threaded.data()));
      });
      single.commit_step();
      CHECK(summed == w);
      CHECK(threaded == w);
      CHECK_EQ(fused.rows().n_rows(), std::int64_t{2});
    }
  }
}

}  // namespace

TEST(rule_state_rows_depend_on_neither_chunks_nor_threads_nor_passes) {
  check::on_every_level([] {
    for (const fb_table table : {FB_TABLE_ROWS, FB_TABLE_BF16}) {
      for (const bool seen : {false, true}) {
        rows_give_the_same_bits<float>(table, seen), rows_give_the_same_bits<double>(table, seen);
      }
    }
  });
}

TEST(row_table_shares_rows_until_they_are_replaced) {
  const fb_rule rule = make_table_rule(FB_TABLE_ROWS, false);
  RowTable<double> rows(rule, 2);
  const double first[] = {1, 2}, second[] = {3, 4};
  rows.store(1, first, rows.place(1));
  const RowTable<double> copy(rows);
  CHECK_EQ(copy.row(1), rows.row(1));
  rows.store(1, second, rows.place(1));
  CHECK_EQ(static_cast<const double*>(copy.row(1))[0], 1.0);
  CHECK_EQ(static_cast<const double*>(rows.row(1))[0], 3.0);
  CHECK(rows.n_rows() == 1 && rows.row(0) == nullptr);
  double memory[8];
  CHECK_EQ(rows.use(memory, sizeof memory), FB_ERR_ARGUMENT);  // it has rows
  RowTable<double> outside(rule, 2);
  CHECK_EQ(outside.use(memory, sizeof memory - 1), FB_ERR_SIZE);
  CHECK_EQ(outside.use(memory, sizeof memory), FB_OK);
  outside.store(3, first, outside.place(3));
  CHECK_EQ(memory[7], 2.0);
  const RowTable<double> kept(outside);
  outside.store(3, second, outside.place(3));
  CHECK_EQ(static_cast<const double*>(kept.row(3))[1], 2.0);
}
