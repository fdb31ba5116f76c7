// The formulas of a server rule: norm, base, server optimizer. RuleState applies them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fedbuff/fedbuff.h"
#include "kernels/kernels.hpp"
#include "numbers/learning_rate.hpp"

namespace fedbuff {

// Sums over the arrivals of a buffer, added in the order of arrival.
struct WeightSums {
  std::int64_t arrivals = 0;
  double e = 0;
  double se = 0;               // of s * e
  std::int64_t staleness = 0;  // the largest
};

// What the sum of contributions is divided by. 0 is no valid norm: a step with it must be refused.
inline double norm_of(const fb_rule& rule, const WeightSums& sums) {
  switch (rule.norm) {
    case FB_NORM_ARRIVALS: return static_cast<double>(sums.arrivals);
    case FB_NORM_WEIGHTS: return sums.e;
    case FB_NORM_SCALED_WEIGHTS: return sums.se;
    case FB_NORM_CLIENTS: return static_cast<double>(rule.n_clients);
    default: return 1.0;
  }
}

// Whether (current model - the model that the client downloaded) is added to a delta. It is zero for the current one.
inline bool is_rebased(const fb_rule& rule, std::int64_t version, std::int64_t current_version) {
  return rule.base == FB_BASE_CURRENT && version != current_version;
}

// Whether weights depend on the numbers of a delta; and whether an arrival needs the model that its client downloaded.
inline bool weighs_numbers(const fb_rule& rule) { return rule.weight_by != FB_WEIGHT_NONE || rule.weight_clip > 0; }
inline bool weighs_way(const fb_rule& rule) {
  return rule.weight_by == FB_WEIGHT_WAY || rule.weight_by == FB_WEIGHT_RATIO;
}
// Whether versions have a control variate beside the model.
inline bool has_control(const fb_rule& rule) { return rule.control != FB_CONTROL_NONE; }
inline bool keeps_models(const fb_rule& rule) { return rule.table_keeps == FB_KEEPS_MODELS; }
inline bool keeps_means(const fb_rule& rule) { return rule.table_keeps == FB_KEEPS_MEANS; }
inline bool needs_start(const fb_rule& rule) {
  return rule.base == FB_BASE_CURRENT || weighs_way(rule) || keeps_models(rule);
}

// Whether a server keeps the deltas of a buffer until its step.
inline bool holds_deltas(const fb_rule& rule) { return rule.weight_shared != 0 || rule.own_step != nullptr; }

// Whether an upload must say which client it is of, one of n_clients.
inline bool needs_client(const fb_rule& rule) {
  return (rule.table != FB_TABLE_NONE && !keeps_models(rule)) || rule.trigger != FB_TRIGGER_BUFFER ||
         rule.weight_shared != 0;
}

// From which staleness on an arrival is not used; no limit: the largest number.
inline std::int64_t too_stale(const fb_rule& rule) {
  const std::int64_t dropped = rule.max_staleness >= 0 ? rule.max_staleness + 1 : INT64_MAX;
  return rule.stop_stale > 0 ? std::min(dropped, rule.stop_stale) : dropped;
}

// The step size of the step from `version`, with a buffer in which the largest staleness is this.
inline double lr_of(const fb_rule& rule, std::int64_t version, std::int64_t staleness) {
  if (rule.decay == FB_DECAY_NONE && rule.warm_up == 0 && rule.delay_lr == FB_DELAY_LR_NONE) {
    return rule.lr;
  }
  const LearningRate rate{
      rule.lr, static_cast<Decay>(rule.decay), rule.decay_steps, rule.decay_factor, rule.decay_floor, rule.warm_up};
  double lr = rate.at(version);
  if (rule.delay_lr != FB_DELAY_LR_NONE && staleness > rule.tau_c) {
    const auto tau = static_cast<double>(staleness);
    lr = rule.delay_lr == FB_DELAY_LR_MIN ? std::min(lr, 1.0 / tau) : lr / tau;
  }
  return lr;
}

// fb_optimizer as the kernels know it; FB_SGD and FB_ADAM have kernels of their own.
inline Optimizer optimizer_of(std::int32_t optimizer) {
  switch (optimizer) {
    case FB_ADAM_UNCORRECTED: return Optimizer::AdamUncorrected;
    case FB_ADAGRAD: return Optimizer::Adagrad;
    case FB_YOGI: return Optimizer::Yogi;
    case FB_AMSGRAD: return Optimizer::AmsGrad;
    case FB_DELAYED_NESTEROV: return Optimizer::DelayedNesterov;
    default: return Optimizer::Nesterov;
  }
}

// The step that makes version + 1 from a buffer with these sums.
inline StepConfig step_config(const fb_rule& rule, const WeightSums& sums, double norm, std::int64_t version) {
  return {lr_of(rule, version, sums.staleness),
          norm,
          rule.momentum,
          rule.beta1,
          rule.beta2,
          rule.epsilon,
          rule.weight_decay,
          version + 1,
          optimizer_of(rule.optimizer),
          std::max<std::int64_t>(1, rule.period),
          rule.activation};
}

inline constexpr int kMostMoments = 3;

// How many vectors a rule's optimizer keeps: a velocity or first moment, a second one, and the largest of those.
inline int n_moments(const fb_rule& rule) {
  switch (rule.optimizer) {
    case FB_SGD: return rule.momentum != 0 ? 1 : 0;
    case FB_NESTEROV: return 1;
    case FB_AMSGRAD: return 3;
    default: return 2;
  }
}

// Whether the step is w - (lr / norm) * sum, so that additions and step can be made in one pass.
inline bool is_linear(const fb_rule& rule) { return rule.optimizer == FB_SGD && rule.momentum == 0; }

// Moves w to w_out (which may be w) by the sum of a buffer; all arrays (dim). Returns whether w_out is finite.
template <class T>
bool step_model(const Kernels<T>& kernels, const fb_rule& rule, const StepConfig& config, std::int64_t dim, const T* w,
                const T* sum, T* const (&moment)[kMostMoments], T* w_out) {
  switch (rule.optimizer) {
    case FB_SGD: return kernels.sgd_step(dim, w, sum, config, moment[0], w_out);
    case FB_ADAM: return kernels.adam_step(dim, w, sum, config, moment[0], moment[1], w_out);
    default: return kernels.optimizer_step(dim, w, sum, config, moment[0], moment[1], moment[2], w_out);
  }
}

}  // namespace fedbuff
