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
    for (int i = 0; i < n_moments(rule); ++i) {
      const bool from_zero = i == 0 || rule.optimizer == FB_DELAYED_NESTEROV;
      moment_[i].assign(size, from_zero ? T(0) : static_cast<T>(rule.initial));
      next_moment_[i].resize(restores_ ? size : 0);
    }
  }

  const fb_rule& rule() const { return rule_; }
  const DeltaSum<T>& sum() const { return sum_; }
  const WeightSums& weights() const { return weights_; }
  const T* moment(int i) const { return moment_[i].empty() ? nullptr : moment_[i].data(); }  // (dim) or null
  std::int64_t n_chunks() const { return sum_.n_chunks(); }

  // Adds an arrival to `sums`, and gives its weight. FB_ERR_OVERFLOW where sums of integer weights would be inexact.
  fb_status weigh(double s, double e, std::int64_t staleness, WeightSums& sums, double& weight_out) const {
    weight_out = s * e;
    if (sum_.fixed()) {
      e = fixed_weight(e);
      weight_out = fixed_weight(weight_out);
    }
    sums = {sums.arrivals + 1, sums.e + e, sums.se + weight_out, std::max(sums.staleness, staleness)};
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
    T* moment[kMostMoments];
    for (int i = 0; i < kMostMoments; ++i) {
      moment[i] = moment_chunk(moment_[i], next_moment_[i], begin, n);
    }
    return step_model(kernels().of<T>(), rule_, config, static_cast<std::int64_t>(n), w + begin, sum_.values() + begin,
                      moment, w_out + begin);
  }

  // Keeps the moments of the step and empties the buffer.
  void commit_step() {
    for (int i = 0; restores_ && i < kMostMoments; ++i) {
      moment_[i].swap(next_moment_[i]);
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

  // What is kept between two steps, by name: first, second and third, the optimizer's moments (dim).
  std::vector<fb_array> arrays() const {
    static constexpr const char* kNames[kMostMoments] = {"first", "second", "third"};
    std::vector<fb_array> found;
    for (int i = 0; i < n_moments(rule_); ++i) {
      found.push_back({kNames[i], -1, sum_.dim(), kDtype, moment_[i].data()});
    }
    return found;
  }

  // The sums of the buffer; `sum` as DeltaSum::raw gives it, or null for an empty one.
  void restore(const WeightSums& weights, const void* sum) {
    weights_ = weights;
    if (sum != nullptr) {
      sum_.set_raw(sum);
    }
  }
  // One of arrays(). FB_ERR_ARGUMENT, FB_ERR_DTYPE or FB_ERR_SIZE where it is none.
  fb_status restore(const fb_array& array) {
    for (const fb_array& own : arrays()) {
      if (std::strcmp(own.name, array.name) == 0 && array.data != nullptr) {
        if (array.dtype != own.dtype || array.size != own.size) {
          return array.dtype != own.dtype ? FB_ERR_DTYPE : FB_ERR_SIZE;
        }
        std::memcpy(const_cast<void*>(own.data), array.data, static_cast<std::size_t>(own.size) * sizeof(T));
        return FB_OK;
      }
    }
    return FB_ERR_ARGUMENT;
  }

 private:
  static constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;

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
  PlacedVector<T> moment_[kMostMoments], next_moment_[kMostMoments];  // and where the next ones are made
  std::vector<const T*> deltas_;                                      // of step_fused
  std::vector<T> factors_;
};

}  // namespace fedbuff
