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
      CHECK_EQ(state.weigh(0.5, 1.0 + static_cast<double>(terms.size()), 0, sums, weight), FB_OK);
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
  CHECK_EQ(state.weigh(1.0, 0.1, 0, sums, weight), FB_OK);
  CHECK_EQ(weight, fixed_weight(0.1));
  CHECK_EQ(state.weigh(1.0, kMostFixedWeight, 0, sums, weight), FB_ERR_OVERFLOW);
}
