// The host's own rule: its state, and a step of it. A step works on a copy of the state, which commit() keeps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "kernels/dispatch.hpp"
#include "server/delta_sum.hpp"
#include "server/rule.hpp"

namespace fedbuff {

enum class OwnStep { Made, Failed, Diverged };

template <class T>
class OwnRule {
 public:
  using Term = typename DeltaSum<T>::Term;

  explicit OwnRule(const fb_rule& rule)
      : rule_(rule), state_(static_cast<std::size_t>(rule.own_state), 0.0), next_(state_.size()) {}

  bool is_there() const { return rule_.own_step != nullptr; }
  std::int64_t code() const { return code_; }  // what the last function gave that failed
  const std::vector<double>& state() const { return state_; }
  void restore(const double* saved) { std::copy_n(saved, state_.size(), state_.data()); }

  void begin() {
    weight_.clear();
    staleness_.clear();
    client_.clear();
    delta_.clear();
    largest_ = 0;
  }
  // Throws std::bad_alloc.
  void add(const T* delta, double weight, std::int64_t staleness, std::int64_t client) {
    delta_.push_back(delta);
    weight_.push_back(weight);
    staleness_.push_back(staleness);
    client_.push_back(client);
    largest_ = std::max(largest_, staleness);
  }
  // The next model (dim) from what was added. The function may throw.
  OwnStep step(std::int64_t dim, std::int64_t version, const T* w, T* w_out) {
    std::copy(state_.begin(), state_.end(), next_.begin());
    fb_step_input input{};
    input.size = sizeof input;
    input.abi = FB_ABI_VERSION;
    input.dtype = sizeof(T) == 4 ? FB_F32 : FB_F64;
    input.dim = dim;
    input.version = version;
    input.n = static_cast<std::int64_t>(delta_.size());
    input.delta = delta_.data();
    input.weight = weight_.data();
    input.staleness = staleness_.data();
    input.client = client_.data();
    input.lr = lr_of(rule_, version, largest_);
    input.w = w;
    input.n_state = rule_.own_state;
    input.state = next_.data();
    input.w_out = w_out;
    code_ = rule_.own_step(rule_.own_context, &input);
    if (code_ != 0) {
      return OwnStep::Failed;
    }
    const bool finite = std::all_of(next_.begin(), next_.end(), [](double x) { return std::isfinite(x); });
    return finite && kernels().of<T>().all_finite(dim, w_out) ? OwnStep::Made : OwnStep::Diverged;
  }
  void commit() { state_.swap(next_); }

 private:
  fb_rule rule_;
  std::int64_t code_ = 0, largest_ = 0;
  std::vector<double> state_, next_;
  std::vector<const void*> delta_;
  std::vector<double> weight_;
  std::vector<std::int64_t> staleness_, client_;
};

}  // namespace fedbuff
