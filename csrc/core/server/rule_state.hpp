// What a server rule keeps between two steps, and the arithmetic on it. Server, Replay and DeltaBuffer use this class.
//
//   contribution_j = weight_j (delta_j + rebase_j)    weight_j = s_j e_j; rebase_j = 0, or current - start_j
//   sum            = the contributions, added element by element in the order of arrival
//   w_out          = optimizer(w, sum / norm)
//
// s, e and their sums are double; a weight is rounded to T before it multiplies a delta. With a unit (rule.unit > 0)
// deltas are integers, and weights are rounded to multiples of 2^-24. All operations work element by element, so the
// bits depend neither on chunks nor on threads.
//
// An object that uses several threads calls add_chunk and step_chunk for each chunk; one thread calls add, step, and
// step_fused where fuses() allows it. Not thread-safe, except for calls on different chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "kernels/dispatch.hpp"
#include "numbers/fixed_point.hpp"
#include "server/delta_sum.hpp"
#include "server/rule.hpp"

namespace fedbuff {

template <class T>
class RuleState {
 public:
  using Term = typename DeltaSum<T>::Term;

  // Throws std::bad_alloc. With OnFailure::Discard an addition or step that is not finite leaves a state that must not
  // be used; it needs half of the memory.
  RuleState(const fb_rule& rule, std::int64_t dim, OnFailure on_failure)
      : rule_(rule), sum_(dim, rule.unit, on_failure), restores_(on_failure == OnFailure::Restore) {
    const auto size = static_cast<std::size_t>(dim);
    first_.resize(has_first_moment(rule) ? size : 0);
    second_.resize(has_second_moment(rule) ? size : 0);
    next_first_.resize(restores_ ? first_.size() : 0);
    next_second_.resize(restores_ ? second_.size() : 0);
  }

  const fb_rule& rule() const { return rule_; }
  const DeltaSum<T>& sum() const { return sum_; }
  const WeightSums& weights() const { return weights_; }
  const T* first_moment() const { return first_.empty() ? nullptr : first_.data(); }     // (dim) or null
  const T* second_moment() const { return second_.empty() ? nullptr : second_.data(); }  // (dim) or null
  std::int64_t n_chunks() const { return sum_.n_chunks(); }

  // Adds an arrival to `sums`, and gives its weight. FB_ERR_OVERFLOW where sums of integer weights would be inexact.
  fb_status weigh(double s, double e, WeightSums& sums, double& weight_out) const {
    weight_out = s * e;
    if (sum_.fixed()) {
      e = fixed_weight(e);
      weight_out = fixed_weight(weight_out);
    }
    sums = {sums.arrivals + 1, sums.e + e, sums.se + weight_out};
    return sum_.fixed() && std::max(sums.e, sums.se) > kMostFixedWeight ? FB_ERR_OVERFLOW : FB_OK;
  }

  // ---- additions

  // One chunk of the sum with the terms added; `current` (dim) is needed where a term has a start. FB_ERR_OVERFLOW
  // where the result is not finite, or does not fit; reason() tells more. The chunks count from commit_sum on.
  fb_status add_chunk(std::int64_t chunk, const std::vector<Term>& terms, const T* current) {
    return sum_.add_chunk(chunk, weights_.arrivals == 0, terms, current);
  }
  fb_status reason(const Term& term) const { return sum_.reason(term); }
  void commit_sum() { sum_.commit(); }
  void undo_sum() { sum_.commit(); }  // the last commit_sum, if nothing was added since
  void set_weights(const WeightSums& sums) { weights_ = sums; }

  // All chunks on this thread, committed.
  void add(const std::vector<Term>& terms, const T* current) {
    sum_.allocate();
    for (std::int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
      add_chunk(chunk, terms, current);
    }
    commit_sum();
  }

  // The sum (dim), for a caller that makes it in another way or adds noise.
  T* values_out() {
    sum_.allocate();
    return sum_.values_out();
  }

  void clear() {
    sum_.clear();
    weights_ = {};
  }

  // ---- the step

  // The next model's chunk and moments from the sum; w_out may be w. Returns whether it is finite. The moments count
  // from commit_step on.
  bool step_chunk(std::int64_t chunk, const StepConfig& config, const T* w, T* w_out) {
    const auto [begin, n] = sum_.range(chunk);
    sum_.make_values(chunk);
    T* first = moment_chunk(first_, next_first_, begin, n);
    T* second = moment_chunk(second_, next_second_, begin, n);
    return step_model(kernels().of<T>(), rule_, config, static_cast<std::int64_t>(n), w + begin, sum_.values() + begin,
                      first, second, w_out + begin);
  }

  // Keeps the moments of the step and empties the buffer.
  void commit_step() {
    if (restores_) {
      first_.swap(next_first_);
      second_.swap(next_second_);
    }
    weights_ = {};
  }

  // All chunks on this thread, without commit_step.
  bool step(const StepConfig& config, const T* w, T* w_out) {
    bool finite = true;
    for (std::int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
      finite = step_chunk(chunk, config, w, w_out) && finite;
    }
    return finite;
  }

  // Whether a step of exactly these terms can be made by step_fused.
  bool fuses(const std::vector<Term>& terms) const {
    return weights_.arrivals == 0 && is_linear(rule_) && !sum_.fixed() &&
           std::all_of(terms.begin(), terms.end(), [](const Term& term) { return term.start == nullptr; });
  }

  // add and step in one pass over the model, without the sum: the same bits.
  bool step_fused(const std::vector<Term>& terms, const StepConfig& config, const T* w, T* w_out) {
    deltas_.clear();
    factors_.clear();
    for (const Term& term : terms) {
      deltas_.push_back(static_cast<const T*>(term.delta));
      factors_.push_back(static_cast<T>(term.weight));
    }
    const Kernels<T>& k = kernels().of<T>();
    k.aggregate(0, sum_.dim(), w, static_cast<std::int64_t>(terms.size()), deltas_.data(), factors_.data(),
                static_cast<T>(config.lr / config.norm), w_out);
    return k.all_finite(sum_.dim(), w_out);
  }

  // ---- a saved state

  // sum as DeltaSum::raw gives it; moments (dim), null to leave them as they are.
  void restore(const WeightSums& weights, const void* sum, const T* first, const T* second) {
    weights_ = weights;
    if (sum != nullptr) {
      sum_.set_raw(sum);
    }
    if (first != nullptr) {
      std::copy_n(first, first_.size(), first_.data());
    }
    if (second != nullptr) {
      std::copy_n(second, second_.size(), second_.data());
    }
  }

 private:
  // Where a chunk of a moment is stepped: in place, or in a copy that is in the cache then. Null where there is none.
  T* moment_chunk(PlacedVector<T>& moment, PlacedVector<T>& next, std::size_t begin, std::size_t n) const {
    if (moment.empty()) {
      return nullptr;
    }
    if (!restores_) {
      return moment.data() + begin;
    }
    return std::copy_n(moment.data() + begin, n, next.data() + begin) - n;
  }

  fb_rule rule_;
  DeltaSum<T> sum_;
  WeightSums weights_;
  bool restores_;
  PlacedVector<T> first_, second_;            // moments
  PlacedVector<T> next_first_, next_second_;  // where the next ones are made
  std::vector<const T*> deltas_;              // of step_fused
  std::vector<T> factors_;
};

}  // namespace fedbuff
