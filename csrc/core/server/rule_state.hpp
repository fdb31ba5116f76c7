// What a server rule keeps between two steps, and the arithmetic on it. Server, Replay and DeltaBuffer use this class.
//
//   contribution_j = weight_j (delta_j + rebase_j)    weight_j = s_j e_j; rebase_j = 0, or current - start_j
//   sum            = the contributions, added element by element in the order of arrival
//   w_out          = optimizer(w, sum / norm)
//
// With a table (row_table.hpp) own row_j is added to delta_j, the delta then becomes the row, and norm table_mean times
// the mean of all rows, as they were when the buffer was empty, to the sum. The sum of all rows is kept and changed:
// change adds stored delta - row, from zero, in the order of arrival, and total takes it in at the step.
//
// Other tables keep means of rounds (round_means.hpp), whose sum is the sum of a step; or models, in a ring. With a
// hidden model, which is what clients download, own_w is what steps move, and w_out = w + (own_w - w, quantised).
//
// With a control variate c (dim), the mean over n clients of a state that each of them keeps, an arrival brings the
// change of its client's state too:
//   c_out = c + (sum of changes) / n, a change made in T as after - before, and added in the order of arrival
//   w_out = w_out - control_pull c_out, where there is a pull (FedDyn)
//
// s, e and their sums are double; a weight is rounded to T before it multiplies a delta. With a unit (rule.unit > 0)
// deltas are integers, and weights are rounded to multiples of 2^-24. All operations work element by element, so the
// bits depend neither on chunks nor on threads.
//
// An object that uses several threads calls add_chunk and step_chunk for each chunk; one thread calls add, step, and
// step_fused where fuses() allows it. Not thread-safe, except for calls on different chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "kernels/dispatch.hpp"
#include "numbers/fixed_point.hpp"
#include "schedule/triggers.hpp"
#include "server/delta_sum.hpp"
#include "server/round_means.hpp"
#include "server/row_table.hpp"
#include "server/rule.hpp"

namespace fedbuff {

template <class T>
class RuleState {
 public:
  using Term = typename DeltaSum<T>::Term;

  // Throws std::bad_alloc. With OnFailure::Discard an addition or step that is not finite leaves a state that must not
  // be used; it needs half of the memory.
  RuleState(const fb_rule& rule, std::int64_t dim, OnFailure on_failure)
      : rule_(rule),
        sum_(dim, rule.unit, on_failure),
        restores_(on_failure == OnFailure::Restore),
        n_kept_(n_moments(rule)),
        rows_(rule, dim),
        means_(keeps_means(rule) ? rule.n_clients : 0, keeps_means(rule) ? dim : 0, kChunkSize * 2, restores_),
        hearing_(static_cast<Trigger>(rule.trigger), rule.n_clients, rule.per_client) {
    const auto size = static_cast<std::size_t>(dim);
    for (int i = 0; i < n_kept_; ++i) {
      const bool from_zero = i == 0 || rule.optimizer == FB_DELAYED_NESTEROV;
      moment_[i].assign(size, from_zero ? T(0) : static_cast<T>(rule.initial));
      next_moment_[i].resize(restores_ ? size : 0);
    }
    if (has_rows()) {
      total_.assign(size, T(0));
      next_change_.resize(restores_ ? size : 0);
      direction_.resize(restores_ ? size : 0);
    }
    control_sum_.assign(has_control(rule) ? size : 0, T(0));
    change_.resize(has_rows() || has_control(rule) ? size : 0);
    last_step_.assign(rule.weight_by == FB_WEIGHT_LAST_STEP ? size : 0, T(0));
    model_.resize(keeps_models(rule) ? size : 0);
    own_w_.resize(is_hidden() ? size : 0);
    next_own_w_.resize(is_hidden() && restores_ ? size : 0);
  }
  // The first model (dim). Throws std::bad_alloc.
  void start_from(const T* w0) {
    std::copy_n(w0, own_w_.size(), own_w_.data());
    if (keeps_models(rule_)) {
      rows_.fill_with_minus(w0);
    }
  }

  const fb_rule& rule() const { return rule_; }
  const DeltaSum<T>& sum() const { return sum_; }
  const WeightSums& weights() const { return weights_; }
  const T* moment(int i) const { return moment_[i].empty() ? nullptr : moment_[i].data(); }  // (dim) or null
  std::int64_t n_chunks() const { return sum_.n_chunks(); }
  bool has_rows() const { return rule_.table != FB_TABLE_NONE && !has_means(); }
  bool has_means() const { return keeps_means(rule_); }
  bool is_hidden() const { return rule_.hidden_levels > 0; }

  // Whether the arrival of a client, with which the buffer holds so many, makes a step; and that it came.
  bool completes(std::int64_t client, std::int64_t fill) const {
    return rule_.trigger == FB_TRIGGER_BUFFER
               ? fill == rule_.buffer_size
               : hearing_.would_step(static_cast<std::uint32_t>(client), fill, rule_.buffer_size);
  }
  void hear(std::int64_t client, std::int64_t fill) {
    if (rule_.trigger == FB_TRIGGER_BUFFER) {
      return;
    }
    const std::int64_t round = hearing_.round();
    hearing_.enter(static_cast<std::uint32_t>(client), fill, rule_.buffer_size);
    if (has_means() && hearing_.round() != round) {
      means_.next_round();
    }
  }

  // The row of an arrival of a client, in the step from this version.
  std::int64_t row_of(std::int64_t client, std::int64_t version) const {
    return keeps_models(rule_) ? version % rows_.n_clients() : client;
  }
  // delta - start (dim), minus the model of an arrival, as a ring keeps it; until the next call.
  const T* minus_model(const T* delta, const T* start) {
    kernels().of<T>().accumulate(sum_.dim(), delta, start, T(-1), nullptr, nullptr, model_.data());
    return model_.data();
  }
  RowTable<T>& rows() { return rows_; }
  const RowTable<T>& rows() const { return rows_; }

  // q of a delta (dim); start (dim) is what its client downloaded, null where that is the current model. On this
  // thread, with the sums of dot.
  double weight_of_numbers(const T* delta, const T* current, const T* start) {
    if (!weighs_numbers(rule_)) {
      return 1.0;
    }
    const Kernels<T>& k = kernels().of<T>();
    const std::int64_t dim = sum_.dim();
    const bool of_sum = rule_.weight_by == FB_WEIGHT_SUM;
    const T* other =
        of_sum ? (weights_.arrivals > 0 ? sum_.values() : nullptr) : (last_step_.empty() ? nullptr : last_step_.data());
    const double norm = std::sqrt(k.dot(dim, delta, delta));
    double q = 1.0;
    if (rule_.weight_by == FB_WEIGHT_NORM) {
      q = 1.0 / (norm + rule_.weight_epsilon);
    } else if (weighs_way(rule_)) {
      double way = start == nullptr ? 0 : std::sqrt(k.squared_distance(dim, current, start));
      if (rule_.weight_by == FB_WEIGHT_RATIO && way > 0) {
        way = norm > 0 ? way / norm : std::numeric_limits<double>::infinity();
      }
      q = 1.0 / (way + rule_.weight_epsilon);
    } else if (other != nullptr) {
      const double length = norm * (of_sum ? std::sqrt(k.dot(dim, other, other)) : last_length_);
      q = length > 0 ? 0.5 * (1.0 + k.dot(dim, delta, other) / length) : 1.0;
    }
    return rule_.weight_clip > 0 && norm > rule_.weight_clip ? q * (rule_.weight_clip / norm) : q;
  }
  // Whether an arrival can be added in blocks whose delta is made on the way: nothing needs the whole delta.
  bool adds_blocks() const {
    return rule_.table == FB_TABLE_NONE && !weighs_numbers(rule_) && !sum_.fixed() && !holds_deltas(rule_);
  }
  // Whether q of an arrival depends on those before it in the buffer: then they are added one by one.
  bool weighs_sum() const { return rule_.weight_by == FB_WEIGHT_SUM; }

  // An arrival's client had `before` as its state and has `after`, (dim); a null before is zero.
  void add_change(const T* after, const T* before) {
    const T* change = after;
    if (before != nullptr) {
      kernels().of<T>().accumulate(sum_.dim(), after, before, T(-1), nullptr, nullptr, change_.data());
      change = change_.data();
    }
    sum_changes(change, control_sum_.data());
  }
  // The sum of changes with one more, into sum_out (dim), which may be the sum. Whether it is finite.
  bool sum_changes(const T* change, T* sum_out) const {
    return kernels().of<T>().accumulate(sum_.dim(), control_sum_.data(), change, T(1), nullptr, nullptr, sum_out);
  }
  // The control variate's part of a step with this sum of changes, after the model's; c, c_out, w_out (dim). Whether
  // they are finite.
  bool step_control(const T* sum, const T* c, T* c_out, T* w_out) const {
    const Kernels<T>& k = kernels().of<T>();
    const T share = static_cast<T>(1.0 / static_cast<double>(rule_.n_clients));
    bool finite = k.accumulate(sum_.dim(), c, sum, share, nullptr, nullptr, c_out);
    if (rule_.control_pull != 0) {
      const T pull = static_cast<T>(-rule_.control_pull);
      finite = k.accumulate(sum_.dim(), w_out, c_out, pull, nullptr, nullptr, w_out) && finite;
    }
    return finite;
  }
  // The changes of the buffer, (dim).
  const T* changes() const { return control_sum_.data(); }
  T* changes_out() { return control_sum_.data(); }
  void clear_changes() { std::fill(control_sum_.begin(), control_sum_.end(), T(0)); }

  // The step from w to w_out (dim), for the weights of later arrivals.
  void note_step(const T* w, const T* w_out) {
    if (!last_step_.empty()) {
      kernels().of<T>().accumulate(sum_.dim(), w, w_out, T(-1), nullptr, nullptr, last_step_.data());
      measure_last_step();
    }
  }

  // Adds an arrival to `sums`, and gives its weight. FB_ERR_OVERFLOW where sums of integer weights would be inexact.
  fb_status weigh(double s, double e, std::int64_t staleness, double q, WeightSums& sums, double& weight_out) const {
    weight_out = s * e * q;
    if (sum_.fixed()) {
      e = fixed_weight(e);
      weight_out = fixed_weight(weight_out);
    }
    sums = {sums.arrivals + 1, sums.e + e, sums.se + weight_out, std::max(sums.staleness, staleness)};
    return sum_.fixed() && std::max(sums.e, sums.se) > kMostFixedWeight ? FB_ERR_OVERFLOW : FB_OK;
  }

  // ---- rows of a state that restores: an arrival's row is stored when nothing can fail any more

  // The term's row, and memory for the next one. Throws std::bad_alloc.
  void begin_row(std::int64_t client, Term& term) {
    if (has_means()) {
      means_.begin(completes(client, 0) ? RoundMeans<T>::Stepped : RoundMeans<T>::Collected, client);
      return;
    }
    term.row = rows_.row(client);
    next_row_ = rows_.place(client);
    is_new_ = term.row == nullptr;
  }
  void store_row(std::int64_t client, const Term& term) {
    if (has_means()) {
      return;
    }
    rows_.store(client, static_cast<const T*>(term.delta), std::exchange(next_row_, nullptr));
    is_new_ = false;
  }
  void drop_row() {
    next_row_ = nullptr;
    is_new_ = false;
  }

  // ---- additions

  // One chunk of the sum with the terms added; `current` (dim) is needed where a term has a start. FB_ERR_OVERFLOW
  // where the result is not finite, or does not fit; reason() tells more. The chunks count from commit_sum on.
  fb_status add_chunk(std::int64_t chunk, const std::vector<Term>& terms, const T* current) {
    if (has_means()) {
      const auto [begin, n] = sum_.range(chunk);
      return means_.fold(begin, n, static_cast<const T*>(terms[0].delta)) ? FB_OK : FB_ERR_OVERFLOW;
    }
    return has_rows() ? add_rows(chunk, terms, current) : sum_.add_chunk(chunk, weights_.arrivals == 0, terms, current);
  }
  fb_status reason(const Term& term) const { return sum_.reason(term); }
  void commit_sum() {
    if (has_means()) {
      means_.commit();
      return;
    }
    sum_.commit();
    if (restores_ && has_rows()) {
      change_.swap(next_change_);
    }
  }
  // The last commit_sum, if nothing was added since.
  void undo_sum() {
    if (has_means()) {
      means_.undo();
    } else {
      commit_sum();
    }
  }
  void set_weights(const WeightSums& sums) { weights_ = sums; }

  // All chunks on this thread, committed.
  void add(const std::vector<Term>& terms, const T* current) {
    sum_.allocate();
    for (std::int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
      add_chunk(chunk, terms, current);
    }
    commit_sum();
  }

  // A delta into the means of its round, on this thread, committed; of a state that restores nothing.
  void fold(std::int64_t client, const Term& term) {
    means_.begin(completes(client, 0) ? RoundMeans<T>::Stepped : RoundMeans<T>::Collected, client);
    for (std::int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
      const auto [begin, n] = sum_.range(chunk);
      means_.fold(begin, n, static_cast<const T*>(term.delta));
    }
    means_.commit();
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
    const T* from = is_hidden() ? own_w_.data() : w;
    T* to = !is_hidden() ? w_out : restores_ ? next_own_w_.data() : own_w_.data();
    if (is_waiting()) {
      std::copy_n(from + begin, from == to ? 0 : n, to + begin);
      return true;
    }
    const T* sum = (has_means() ? means_.sum(RoundMeans<T>::Stepped) : sum_.values()) + begin;
    if (has_rows()) {
      T* with_mean = (restores_ ? direction_.data() : sum_.values_out()) + begin;
      kernels().of<T>().accumulate(static_cast<std::int64_t>(n), sum, total_.data() + begin, mean_factor(config),
                                   nullptr, nullptr, with_mean);
      sum = with_mean;
    }
    T* moment[kMostMoments] = {};
    for (int i = 0; i < n_kept_; ++i) {
      moment[i] = moment_chunk(moment_[i], next_moment_[i], begin, n);
    }
    return step_model(kernels().of<T>(), rule_, config, static_cast<std::int64_t>(n), from + begin, sum, moment,
                      to + begin);
  }

  // Where the model is hidden, what is downloaded after all chunks of a step: w_out (dim), not w. Whether it is finite.
  bool show(const StepConfig& config, const T* w, T* w_out) {
    const Kernels<T>& k = kernels().of<T>();
    const std::int64_t dim = sum_.dim();
    const auto version = static_cast<std::uint64_t>(config.step - 1);
    k.accumulate(dim, restores_ ? next_own_w_.data() : own_w_.data(), w, T(-1), nullptr, nullptr, w_out);
    const QuantizeConfig levels{std::sqrt(k.dot(dim, w_out, w_out)),
                                static_cast<double>(rule_.hidden_levels),
                                rule_.hidden_seed,
                                {static_cast<std::uint32_t>(version), static_cast<std::uint32_t>(version >> 32)},
                                Stream::HiddenModel};
    k.quantize(0, dim, w_out, levels, w_out);
    return k.accumulate(dim, w_out, w, T(1), nullptr, nullptr, w_out);
  }

  // Keeps the moments of the step, and what the buffer changed in the rows, and empties the buffer. `fused`: of a step
  // by step_fused.
  void commit_step(bool fused = false) {
    for (int i = 0; i < n_kept_ && restores_ && !is_waiting(); ++i) {
      moment_[i].swap(next_moment_[i]);
    }
    if (is_hidden() && restores_) {
      own_w_.swap(next_own_w_);
    }
    hearing_.on_step();
    if (has_rows() && weights_.arrivals > 0 && !fused) {
      kernels().of<T>().accumulate(sum_.dim(), total_.data(), change_.data(), T(1), nullptr, nullptr, total_.data());
    }
    seen_ = rows_.n_rows();
    weights_ = {};
  }

  // All chunks on this thread, without commit_step.
  bool step(const StepConfig& config, const T* w, T* w_out) {
    bool finite = true;
    for (std::int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
      finite = step_chunk(chunk, config, w, w_out) && finite;
    }
    return is_hidden() ? show(config, w, w_out) && finite : finite;
  }

  // Whether a step of exactly these terms can be made by step_fused.
  bool fuses(const std::vector<Term>& terms) const {
    return weights_.arrivals == 0 && is_linear(rule_) && !sum_.fixed() && !is_waiting() && !is_hidden() &&
           !has_means() &&
           (has_rows() ? !restores_
                       : std::all_of(terms.begin(), terms.end(), [](auto& term) { return term.start == nullptr; }));
  }

  // add and step in one pass over the model, without the sum: the same bits.
  bool step_fused(const std::vector<Term>& terms, const StepConfig& config, const T* w, T* w_out) {
    if (has_rows()) {
      gather_rows(terms);
      return kernels().of<T>().step_rows(sum_.dim(), w, static_cast<std::int64_t>(terms.size()), row_terms_.data(),
                                         row_config(w), mean_factor(config), static_cast<T>(config.lr / config.norm),
                                         total_.data(), w_out);
    }
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

  // What is kept between two steps, by name: first, second and third, the optimizer's moments (dim); and of a table
  // what fedbuff.h says.
  std::vector<fb_array> arrays() const {
    std::vector<fb_array> found;
    for (int i = 0; i < n_moments(rule_); ++i) {
      found.push_back({kMomentNames[i], -1, sum_.dim(), kDtype, moment_[i].data()});
    }
    if (!last_step_.empty()) {
      found.push_back({"last_step", -1, sum_.dim(), kDtype, last_step_.data()});
    }
    if (has_control(rule_) && weights_.arrivals > 0) {
      found.push_back({"control_change", -1, sum_.dim(), kDtype, control_sum_.data()});
    }
    if (is_hidden()) {
      found.push_back({"own_w", -1, sum_.dim(), kDtype, own_w_.data()});
    }
    const bool hears = rule_.trigger != FB_TRIGGER_BUFFER && (restores_ || has_means());
    if (hears) {
      heard_ = hearing_.heard();
      found.push_back({"heard", -1, rule_.n_clients, FB_I64, heard_.data()});
    }
    if (hears && rule_.trigger == FB_TRIGGER_RINGLEADER) {
      to_step_ = hearing_.to_step();
      found.push_back({"to_step", -1, rule_.n_clients, FB_I64, to_step_.data()});
    }
    if (has_means()) {
      list_means(found);
    }
    if (has_rows()) {
      found.push_back({"table_total", -1, sum_.dim(), kDtype, total_.data()});
      found.push_back({"table_seen", -1, 1, FB_I64, &seen_});
      if (weights_.arrivals > 0) {
        found.push_back({"table_change", -1, sum_.dim(), kDtype, change_.data()});
      }
      for (std::int64_t client = 0; client < rows_.n_clients(); ++client) {
        if (rows_.row(client) != nullptr) {
          found.push_back({"row", client, sum_.dim(), rows_.dtype(), rows_.row(client)});
        }
      }
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
    const auto is = [&](const char* name) { return std::strcmp(array.name, name) == 0; };
    if (array.data == nullptr) {
      return FB_ERR_ARGUMENT;
    }
    for (int i = 0; i < n_moments(rule_); ++i) {
      if (is(kMomentNames[i])) {
        return copy_values(array, kDtype, moment_[i].data(), sum_.dim());
      }
    }
    if (!last_step_.empty() && is("last_step")) {
      const fb_status status = copy_values(array, kDtype, last_step_.data(), sum_.dim());
      measure_last_step();
      return status;
    }
    if (has_control(rule_) && is("control_change")) {
      return copy_values(array, kDtype, control_sum_.data(), sum_.dim());
    }
    if (is_hidden() && is("own_w")) {
      return copy_values(array, kDtype, own_w_.data(), sum_.dim());
    }
    if (rule_.trigger != FB_TRIGGER_BUFFER && (is("heard") || is("to_step"))) {
      return restore_hearing(array);
    }
    if (has_means()) {
      return restore_means(array);
    }
    if (has_rows() && is("row") && array.key >= 0 && array.key < rows_.n_clients()) {
      if (array.dtype != rows_.dtype() || array.size != sum_.dim()) {
        return array.dtype != rows_.dtype() ? FB_ERR_DTYPE : FB_ERR_SIZE;
      }
      rows_.restore(array.key, array.data);
      return FB_OK;
    }
    if (has_rows() && (is("table_total") || is("table_change"))) {
      return copy_values(array, kDtype, is("table_total") ? total_.data() : change_.data(), sum_.dim());
    }
    return has_rows() && is("table_seen") ? copy_values(array, FB_I64, &seen_, 1) : FB_ERR_ARGUMENT;
  }

 private:
  static constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;
  static constexpr const char* kMomentNames[kMostMoments] = {"first", "second", "third"};

  template <class Value>
  static fb_status copy_values(const fb_array& from, fb_dtype dtype, Value* to, std::int64_t n) {
    if (from.dtype != dtype || from.size != n) {
      return from.dtype != dtype ? FB_ERR_DTYPE : FB_ERR_SIZE;
    }
    std::memcpy(to, from.data, static_cast<std::size_t>(n) * sizeof(Value));
    return FB_OK;
  }

  void measure_last_step() {
    last_length_ = std::sqrt(kernels().of<T>().dot(sum_.dim(), last_step_.data(), last_step_.data()));
  }

  // The tables of means: rows that a later arrival of the round reads.
  void list_means(std::vector<fb_array>& found) const {
    using Means = RoundMeans<T>;
    found.push_back({"table_total", -1, sum_.dim(), kDtype, means_.sum(Means::Collected)});
    found.push_back({"step_total", -1, sum_.dim(), kDtype, means_.sum(Means::Stepped)});
    found.push_back({"step_count", -1, rule_.n_clients, FB_I64, means_.counts(Means::Stepped).data()});
    for (std::int64_t client = 0; client < rule_.n_clients; ++client) {
      if (means_.count(Means::Collected, client) > 0 && means_.row(Means::Collected, client) != nullptr) {
        found.push_back({"row", client, sum_.dim(), kDtype, means_.row(Means::Collected, client)});
      }
    }
    for (std::int64_t client = 0; client < rule_.n_clients; ++client) {
      const bool needed = to_step_[static_cast<std::size_t>(client)] != 0;
      if (needed && means_.row(Means::Stepped, client) != nullptr) {
        found.push_back({"step_row", client, sum_.dim(), kDtype, means_.row(Means::Stepped, client)});
      }
    }
  }
  fb_status restore_means(const fb_array& array) {
    using Means = RoundMeans<T>;
    const auto is = [&](const char* name) { return std::strcmp(array.name, name) == 0; };
    const bool of_step = std::strncmp(array.name, "step_", 5) == 0, is_row = is("row") || is("step_row");
    const fb_dtype dtype = is("step_count") ? FB_I64 : kDtype;
    const std::int64_t size = is("step_count") ? rule_.n_clients : sum_.dim();
    const auto table = of_step ? Means::Stepped : Means::Collected;
    if (array.dtype != dtype || array.size != size) {
      return array.dtype != dtype ? FB_ERR_DTYPE : FB_ERR_SIZE;
    }
    if (is_row && array.key >= 0 && array.key < rule_.n_clients) {
      means_.restore_row(table, array.key, array.data);
    } else if (is("table_total") || is("step_total")) {
      means_.restore_sum(table, array.data);
    } else if (is("step_count") && are_counts(array)) {
      means_.restore_counts(table, static_cast<const std::int64_t*>(array.data));
    } else {
      return FB_ERR_ARGUMENT;
    }
    return FB_OK;
  }
  // Counts of arrivals to which one can be added.
  bool are_counts(const fb_array& array) const {
    const auto* first = static_cast<const std::int64_t*>(array.data);
    return std::all_of(first, first + array.size, [](std::int64_t n) { return n >= 0 && n < INT64_MAX; });
  }
  fb_status restore_hearing(const fb_array& array) {
    if (array.dtype != FB_I64 || array.size != rule_.n_clients || !are_counts(array)) {
      return array.dtype != FB_I64 ? FB_ERR_DTYPE : array.size != rule_.n_clients ? FB_ERR_SIZE : FB_ERR_ARGUMENT;
    }
    const auto* numbers = static_cast<const std::int64_t*>(array.data);
    if (std::strcmp(array.name, "heard") == 0) {
      hearing_.restore_heard(numbers);
      if (has_means()) {
        means_.restore_counts(RoundMeans<T>::Collected, numbers);
      }
    } else {
      hearing_.restore_to_step(numbers);
    }
    return FB_OK;
  }

  // Whether steps leave the model as it is, because clients are missing.
  bool is_waiting() const {
    return has_rows() && rule_.table_wait != 0 && rows_.n_rows() + (is_new_ ? 1 : 0) < rows_.n_clients();
  }

  // What the sum of all rows is multiplied by before it is added to a sum that is then divided by the norm.
  T mean_factor(const StepConfig& config) const {
    const std::int64_t n = rule_.table_seen != 0 ? std::max<std::int64_t>(seen_, 1) : rows_.n_clients();
    return static_cast<T>(config.norm * rule_.table_mean / static_cast<double>(n));
  }
  RowConfig<T> row_config(const T* current) const { return {static_cast<T>(rule_.table_own), rows_.half(), current}; }

  // The terms for the kernels. In a state that restores nothing their deltas are stored on the way.
  void gather_rows(const std::vector<Term>& terms) {
    row_terms_.clear();
    for (const Term& term : terms) {
      row_terms_.push_back({static_cast<const T*>(term.delta), term.start, static_cast<T>(term.weight), term.row,
                            restores_ ? nullptr : term.row_out});
    }
  }

  // add_chunk where there are rows.
  fb_status add_rows(std::int64_t chunk, const std::vector<Term>& terms, const T* current) {
    const auto [begin, n] = sum_.range(chunk);
    const std::size_t row_bytes = rows_.half() ? sizeof(std::uint16_t) : sizeof(T);
    const auto part_of = [begin = begin, row_bytes](auto* row) {
      using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(row)>>, const char, char>;
      return row == nullptr ? nullptr : static_cast<Byte*>(row) + begin * row_bytes;
    };
    T* sum_out = sum_.next_out() + begin;
    T* change_out = (restores_ ? next_change_ : change_).data() + begin;
    bool finite = true;
    for (std::size_t k = 0; k < terms.size(); ++k) {
      const Term& term = terms[k];
      const bool from_zero = k == 0 && weights_.arrivals == 0;
      const T* sum = from_zero ? nullptr : k > 0 ? sum_out : sum_.values() + begin;
      const T* change = from_zero ? nullptr : k > 0 ? change_out : change_.data() + begin;
      const RowTerm<T> part{static_cast<const T*>(term.delta) + begin,
                            term.start == nullptr ? nullptr : term.start + begin, static_cast<T>(term.weight),
                            part_of(term.row), restores_ ? nullptr : part_of(term.row_out)};
      finite =
          kernels().of<T>().add_row(static_cast<std::int64_t>(n), sum, change, part,
                                    row_config(current == nullptr ? nullptr : current + begin), sum_out, change_out) &&
          finite;
    }
    return finite ? FB_OK : FB_ERR_OVERFLOW;
  }

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
  int n_kept_;                                                        // moments
  PlacedVector<T> moment_[kMostMoments], next_moment_[kMostMoments];  // and where the next ones are made
  std::vector<const T*> deltas_;                                      // of step_fused
  std::vector<T> factors_;
  PlacedVector<T> control_sum_;         // of changes in the buffer
  PlacedVector<T> last_step_;           // old minus new model, of weights by its angle
  double last_length_ = 0;              // its norm
  PlacedVector<T> model_;               // minus that of the newest arrival, for a ring
  PlacedVector<T> own_w_, next_own_w_;  // where the model that is downloaded is a hidden one
  RowTable<T> rows_;
  RoundMeans<T> means_;
  Hearing hearing_;
  mutable std::vector<std::int64_t> heard_, to_step_;  // what arrays() shows of it
  std::int64_t seen_ = 0;                              // rows that there were when the buffer was empty
  PlacedVector<T> total_, change_, next_change_;       // sum of all rows then, and what the buffer changed in it
  PlacedVector<T> direction_;                          // where the mean is added to a sum that must stay
  std::vector<RowTerm<T>> row_terms_;                  // of step_fused
  std::shared_ptr<void> next_row_;                     // of begin_row
  bool is_new_ = false;                                // whether its client has no row yet
};

}  // namespace fedbuff
