// The aggregation rule's arithmetic, in one place for whoever steps a model.
#pragma once

#include <cstdint>

#include "fedbuff/fedbuff.h"
#include "kernels/kernels.hpp"

namespace fedbuff {

// What the sum of contributions is divided by, for a buffer of `arrivals` with these sums of e and of s e.
inline double norm_of(const fb_rule& rule, std::int64_t arrivals, double sum_weights, double sum_scaled_weights) {
  switch (rule.norm) {
    case FB_NORM_ARRIVALS: return static_cast<double>(arrivals);
    case FB_NORM_WEIGHTS: return sum_weights;
    case FB_NORM_SCALED_WEIGHTS: return sum_scaled_weights;
    case FB_NORM_CLIENTS: return static_cast<double>(rule.n_clients);
    default: return 1.0;
  }
}

// The step that makes version + 1.
inline StepConfig step_config(const fb_rule& rule, double norm, std::int64_t version) {
  return {rule.lr, norm, rule.momentum, rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay, version + 1};
}

// Whether the rule keeps a velocity or Adam's first moment; and Adam's second.
inline bool has_first_moment(const fb_rule& rule) { return rule.optimizer == FB_ADAM || rule.momentum != 0; }
inline bool has_second_moment(const fb_rule& rule) { return rule.optimizer == FB_ADAM; }

// Moves w to w_out by the sum of a buffer; whether w_out is finite.
template <class T>
bool step_model(const Kernels<T>& kernels, const fb_rule& rule, const StepConfig& config, std::int64_t dim, const T* w,
                const T* sum, T* first, T* second, T* w_out) {
  if (rule.optimizer == FB_ADAM) {
    return kernels.adam_step(dim, w, sum, config, first, second, w_out);
  }
  return kernels.sgd_step(dim, w, sum, config, first, w_out);
}

}  // namespace fedbuff
