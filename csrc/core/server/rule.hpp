// The formulas of a server rule: norm, base, server optimizer. RuleState applies them.
#pragma once

#include <cstdint>

#include "fedbuff/fedbuff.h"
#include "kernels/kernels.hpp"

namespace fedbuff {

// Sums over the arrivals of a buffer, added in the order of arrival.
struct WeightSums {
  std::int64_t arrivals = 0;
  double e = 0;
  double se = 0;  // of s * e
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

// The step that makes version + 1.
inline StepConfig step_config(const fb_rule& rule, double norm, std::int64_t version) {
  return {rule.lr, norm, rule.momentum, rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay, version + 1};
}

// Whether the rule keeps a velocity or Adam's first moment; and Adam's second.
inline bool has_first_moment(const fb_rule& rule) { return rule.optimizer == FB_ADAM || rule.momentum != 0; }
inline bool has_second_moment(const fb_rule& rule) { return rule.optimizer == FB_ADAM; }

// Whether the step is w - (lr / norm) * sum, so that additions and step can be made in one pass.
inline bool is_linear(const fb_rule& rule) { return rule.optimizer == FB_SGD && rule.momentum == 0; }

// Moves w to w_out (which may be w) by the sum of a buffer; all arrays (dim). Returns whether w_out is finite.
template <class T>
bool step_model(const Kernels<T>& kernels, const fb_rule& rule, const StepConfig& config, std::int64_t dim, const T* w,
                const T* sum, T* first, T* second, T* w_out) {
  if (rule.optimizer == FB_ADAM) {
    return kernels.adam_step(dim, w, sum, config, first, second, w_out);
  }
  return kernels.sgd_step(dim, w, sum, config, first, w_out);
}

}  // namespace fedbuff
