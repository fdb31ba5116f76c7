// Finished rows into the sum of their server step, and the step: RuleState in the order of arrival, with what privacy
// and secure aggregation put between a delta and the sum.
//
// The engine gathers rows under its lock (begin, add), then calls run without it. A step may be added in several
// pieces, where it does not fit the window; the pieces do not show in the bits. One thread at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "clients/client_work.hpp"
#include "clients/gradient_norm.hpp"
#include "kernels/dispatch.hpp"
#include "replay/secure_sum.hpp"
#include "replay/stats.hpp"
#include "replay/stopwatch.hpp"
#include "server/held_deltas.hpp"
#include "server/own_rule.hpp"
#include "server/rule_state.hpp"

namespace fedbuff {

template <class T>
class Commit {
 public:
  // `secure` makes the sums where the config says fixed point; null: they are simulated.
  Commit(const fb_rule& rule, std::int64_t dim, const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure)
      : dim_(dim),
        state_(rule, dim, OnFailure::Discard),
        own_(rule),
        sums_(sums),
        secure_(sums.modulus == 0 || secure ? std::move(secure) : make_simulated_sum<T>(sums, dim)) {}

  const fb_rule& rule() const { return state_.rule(); }
  const RuleState<T>& state() const { return state_; }
  RuleState<T>& state() { return state_; }

  // What is kept between two steps, as RuleState::arrays; and one of it, restored.
  std::vector<fb_array> arrays() const {
    std::vector<fb_array> found = state_.arrays();
    if (own_.is_there()) {
      const std::vector<double>& numbers = own_.state();
      found.push_back({"own_state", -1, static_cast<std::int64_t>(numbers.size()), FB_F64, numbers.data()});
    }
    return found;
  }
  fb_status restore(const fb_array& array) {
    if (!own_.is_there() || std::strcmp(array.name, "own_state") != 0) {
      return state_.restore(array);
    }
    if (array.dtype != FB_F64 || array.size != rule().own_state) {
      return array.dtype != FB_F64 ? FB_ERR_DTYPE : FB_ERR_SIZE;
    }
    own_.restore(static_cast<const double*>(array.data));
    return FB_OK;
  }
  std::int64_t cut() const { return cut_; }  // numbers out of range, in committed steps
  double secure_seconds() const { return secure_seconds_; }
  bool is_interrupted() const { return interrupted_; }  // a secure sum was begun and not ended

  // Begins a piece of a step.
  void begin() {
    terms_.clear();
    rows_.clear();
    unweighed_.clear();
    changes_.clear();
    unused_.clear();
    weights_ = state_.weights();
  }

  // Adds a row to the piece: its delta (dim), the factor that clips it, and where the rule needs_start and that is
  // not the current one, the model (dim) that it was computed from, else null. The pointers must stay valid until run
  // has returned.
  void add(const ReplayRow& row, const T* delta, double factor, const T* start) {
    double weight = 0;
    if (weighs_numbers(rule())) {
      unweighed_.push_back({&row, start});
    } else {
      state_.weigh(row.s, row.e, row.step - row.version, 1.0, weights_, weight);
    }
    terms_.emplace_back(delta, kDtype, weight * factor, rule().base == FB_BASE_CURRENT ? start : nullptr);
    if (state_.has_rows()) {
      RowTable<T>& rows = state_.rows();
      const std::int64_t at = state_.row_of(row.client, row.step);
      terms_.back().row = rows.row(at);
      std::shared_ptr<void> place = rows.place(at);
      terms_.back().row_out = place.get();
      rows.set(at, std::move(place));
    }
    if (secure_ || state_.has_means() || keeps_models(rule()) || own_.is_there()) {
      rows_.push_back({&row, factor, start});
    }
  }

  // Of the row that was added last: its client's state after and before it, (dim); null: zeros.
  void add_change(const T* after, const T* before) { changes_.push_back({after, before}); }
  // A row of the piece that no step uses.
  void skip(const T* delta) { unused_.push_back({static_cast<std::int64_t>(terms_.size()), delta}); }

  // Whether run takes less time than releasing a lock and taking it again.
  bool is_brief() const {
    return static_cast<std::int64_t>(terms_.size() + 2) * dim_ < kBriefNumbers && !secure_ && !record_;
  }

  // Adds the piece, whose first row has this number, to the sum of step `version`. Where that makes the step complete,
  // the next model goes to next_out (dim); w (dim) is the current one. Returns where it is not finite, or step -1.
  // Throws std::invalid_argument where the norm is zero, and what a secure sum throws.
  Divergence run(std::int64_t version, std::int64_t first_row, bool complete, const T* w, T* next_out) {
    for (std::size_t i = 0; i < unused_.size(); ++i) {
      if (!kernels().of<T>().all_finite(dim_, unused_[i].delta)) {
        return {version, first_row + unused_[i].terms_before + static_cast<std::int64_t>(i)};
      }
    }
    if (own_.is_there()) {
      return run_own(version, first_row, complete, w, next_out);
    }
    weigh_numbers(w);
    for (const auto& [after, before] : changes_) {
      state_.add_change(after, before);
    }
    const double norm = norm_of(rule(), weights_);
    if (complete && weights_.arrivals > 0 && norm == 0) {
      throw std::invalid_argument("step " + std::to_string(version) + ": the weights of its arrivals sum to zero");
    }
    if (secure_) {
      const std::int64_t bad = add_secure(version, complete);
      if (bad >= 0) {
        return {version, first_row + bad};
      }
    }
    if (state_.has_means()) {
      fold_means(version, complete);
    } else if (keeps_models(rule())) {
      take_model(version, w);
    }
    const bool adds = !secure_ && !state_.weighs_sum() && !state_.has_means();
    const bool fused = complete && adds && sums_.deviation == 0 && state_.fuses(terms_);
    if (!fused && adds) {
      state_.add(terms_, w);
    }
    state_.set_weights(weights_);
    if (complete && !step(version, fused, norm, w, next_out)) {
      const std::int64_t bad = first_not_finite();
      return {version, bad < 0 ? -1 : first_row + bad + unused_before(bad)};
    }
    return {};
  }

  // From now on notes |grad f(w)|^2 of the models with version % every == offset that a step starts from.
  void record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset) {
    if (every < 1 || offset < 0 || offset >= every) {
      throw std::invalid_argument("every " + std::to_string(every) + ", offset " + std::to_string(offset) +
                                  ": expected 0 <= offset < every");
    }
    record_.reset(new GradientRecord{GradientNorm<T>(problem), every, offset, {}});
  }
  const std::vector<double>& gradients() const {
    static const std::vector<double> none;
    return record_ ? record_->values : none;
  }

 private:
  static constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;
  static constexpr std::int64_t kBriefNumbers = 4096;

  struct Unweighed {
    const ReplayRow* row;
    const T* start;
  };
  struct Change {
    const T *after, *before;
  };
  struct Unused {
    std::int64_t terms_before;
    const T* delta;
  };
  struct TermRow {
    const ReplayRow* row;
    double factor;
    const T* start;
  };
  struct GradientRecord {
    GradientNorm<T> norm;
    std::int64_t every, offset;
    std::vector<double> values;
  };

  // Weights that depend on deltas, and where they depend on the sum so far, the additions with them.
  void weigh_numbers(const T* w) {
    for (std::size_t i = 0; i < unweighed_.size(); ++i) {
      const auto [row, start] = unweighed_[i];
      const double q = state_.weight_of_numbers(static_cast<const T*>(terms_[i].delta), w, start);
      state_.weigh(row->s, row->e, row->step - row->version, q, weights_, terms_[i].weight);
      if (state_.weighs_sum()) {
        state_.add({terms_[i]}, w);
        state_.set_weights(weights_);
      }
    }
  }

  // The piece for the host's own rule, whose deltas are kept until the step is complete.
  Divergence run_own(std::int64_t version, std::int64_t first_row, bool complete, const T* w, T* next_out) {
    if (!complete) {
      for (std::size_t i = 0; i < terms_.size(); ++i) {
        const ReplayRow& row = *rows_[i].row;
        const auto* delta = static_cast<const T*>(terms_[i].delta);
        held_.push(dim_, delta, row.client, row.step - row.version, terms_[i].weight, 1.0);
      }
      state_.set_weights(weights_);
      return {};
    }
    own_.begin();
    for (std::int64_t i = 0; i < held_.size(); ++i) {
      own_.add(held_.delta(i), held_.s(i), held_.staleness(i), held_.client(i));
    }
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const ReplayRow& row = *rows_[i].row;
      own_.add(static_cast<const T*>(terms_[i].delta), terms_[i].weight, row.step - row.version, row.client);
    }
    if (weights_.arrivals == 0) {
      std::memcpy(next_out, w, static_cast<std::size_t>(dim_) * sizeof(T));
    } else if (const OwnStep made = own_.step(dim_, version, w, next_out); made != OwnStep::Made) {
      if (made == OwnStep::Failed) {
        throw std::invalid_argument("step " + std::to_string(version) + ": the own rule's function gave " +
                                    std::to_string(own_.code()));
      }
      const std::int64_t bad = first_not_finite();
      return {version, bad < 0 ? -1 : first_row + bad};
    } else {
      own_.commit();
    }
    held_.clear();
    state_.commit_step();
    note_gradient(version, w);
    return {};
  }

  void note_gradient(std::int64_t version, const T* w) {
    if (record_ && version % record_->every == record_->offset) {
      record_->values.push_back(record_->norm.squared(w));
    }
  }

  // Ringleader's means with the piece. The schedule must be one of its rounds: the last arrival of a step makes it.
  void fold_means(std::int64_t version, bool complete) {
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const std::int64_t client = rows_[i].row->client;
      if (state_.completes(client, 0) != (complete && i + 1 == terms_.size())) {
        throw std::invalid_argument("step " + std::to_string(version) +
                                    ": the schedule is not one of Ringleader's rounds; make it with this strategy");
      }
      state_.fold(client, terms_[i]);
      if (i + 1 < terms_.size() || !complete) {
        state_.hear(client, 0);
      }
    }
  }

  // The arrival of a step as minus its model, which a ring keeps.
  void take_model(std::int64_t version, const T* w) {
    if (terms_.size() > 1 || weights_.arrivals > 1) {
      throw std::invalid_argument("step " + std::to_string(version) +
                                  ": a ring of models takes one arrival in each step; make the schedule with this "
                                  "strategy");
    }
    if (!terms_.empty()) {
      const T* start = rows_[0].start == nullptr ? w : rows_[0].start;
      terms_[0].delta = state_.minus_model(static_cast<const T*>(terms_[0].delta), start);
    }
  }

  // The step from a complete sum; whether the next model is finite.
  bool step(std::int64_t version, bool fused, double norm, const T* w, T* next_out) {
    if (weights_.arrivals == 0) {
      const std::int64_t width = has_control(rule()) ? 2 * dim_ : dim_;
      std::memcpy(next_out, w, static_cast<std::size_t>(width) * sizeof(T));
    } else {
      if (sums_.deviation > 0) {
        add_noise(sums_, dim_, version, state_.values_out());
      }
      const StepConfig config = step_config(rule(), weights_, norm, version);
      if (!(fused ? state_.step_fused(terms_, config, w, next_out) : state_.step(config, w, next_out))) {
        return false;
      }
      if (has_control(rule())) {
        if (!state_.step_control(state_.changes(), w + dim_, next_out + dim_, next_out)) {
          return false;
        }
        state_.clear_changes();
      }
    }
    state_.note_step(w, next_out);
    if (state_.has_means() && !rows_.empty()) {
      state_.hear(rows_.back().row->client, 0);
    }
    state_.commit_step(fused);
    cut_ += std::exchange(step_cut_, 0);
    note_gradient(version, w);
    return true;
  }

  // The piece into the secure sum, and that into the rule's when the step is complete. Returns the first row whose
  // delta is not finite, or -1.
  std::int64_t add_secure(std::int64_t version, bool complete) {
    Stopwatch watch;
    interrupted_ = true;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto& [row, factor, _] = rows_[i];
      const auto* delta = static_cast<const T*>(terms_[i].delta);
      const auto weight = static_cast<std::uint64_t>(std::llround(row->s * row->e * sums_.weight_unit));
      const std::int64_t cut = secure_->add(*row, delta, weight, factor);
      if (cut > 0 && !is_finite(terms_[i])) {
        return static_cast<std::int64_t>(i);
      }
      step_cut_ += cut;
    }
    if (complete && weights_.arrivals > 0) {
      secure_->finish(version, state_.values_out());
    }
    secure_seconds_ += watch.lap();
    interrupted_ = false;
    return -1;
  }

  using Term = typename RuleState<T>::Term;

  bool is_finite(const Term& term) const {
    return kernels().of<T>().all_finite(dim_, static_cast<const T*>(term.delta));
  }
  std::int64_t unused_before(std::int64_t term) const {
    return std::count_if(unused_.begin(), unused_.end(), [=](const Unused& one) { return one.terms_before <= term; });
  }
  std::int64_t first_not_finite() const {
    const auto bad = std::find_if(terms_.begin(), terms_.end(), [this](const Term& term) { return !is_finite(term); });
    return bad == terms_.end() ? -1 : bad - terms_.begin();
  }

  const std::int64_t dim_;
  RuleState<T> state_;
  OwnRule<T> own_;
  HeldDeltas<T> held_;  // for it, of a step that came in pieces
  const SumConfig sums_;
  const std::unique_ptr<SecureSum<T>> secure_;
  std::vector<Term> terms_;           // of the piece
  std::vector<Unweighed> unweighed_;  // of the piece, where weights depend on deltas
  std::vector<TermRow> rows_;         // of the piece, for a secure sum and some tables
  std::vector<Change> changes_;       // of the piece, for a control variate
  std::vector<Unused> unused_;        // of the piece
  WeightSums weights_;                // of the step, with the piece
  std::int64_t step_cut_ = 0, cut_ = 0;
  double secure_seconds_ = 0;
  bool interrupted_ = false;
  std::unique_ptr<GradientRecord> record_;
};

}  // namespace fedbuff
