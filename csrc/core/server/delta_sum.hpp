// The sum of a buffer: deltas of the model's dtype, or integers that count units.
//
// Terms are added in their order, element by element. With OnFailure::Restore they are added from one vector into
// another, and commit() swaps the two: additions that failed are not committed and change nothing. Different chunks may
// be added on different threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/dispatch.hpp"
#include "fedbuff/fedbuff.h"
#include "numbers/fixed_point.hpp"
#include "threads/core_chunks.hpp"
#include "server/placed_vector.hpp"

namespace fedbuff {

// Whether a failed operation leaves the state as it was, or one that must not be used any more.
enum class OnFailure { Restore, Discard };

template <class T>
class DeltaSum {
 public:
  // One delta (dim) and what it is multiplied by. Built in place by emplace_back: a copy of a new one has to wait until
  // its stores are done.
  struct Term {
    Term(const void* its_delta, fb_dtype its_dtype, double its_weight, const T* its_start)
        : delta(its_delta), dtype(its_dtype), weight(its_weight), start(its_start) {}

    const void* delta;
    fb_dtype dtype;
    double weight;
    const T* start;             // where not null, (current - start) is added to the delta
    const void* row = nullptr;  // of RuleState's table: what the delta is compared with, and where it is stored
    void* row_out = nullptr;
    const fb_model_upload* model = nullptr;  // where not null, the delta is made from it
  };

  // unit 0: deltas of dtype T. OnFailure::Discard is for those; it allocates the sum at the first allocate().
  DeltaSum(std::int64_t dim, double unit, OnFailure on_failure = OnFailure::Restore)
      : dim_(dim), unit_(unit), in_place_(on_failure == OnFailure::Discard) {
    sum_.resize(in_place_ ? 0 : size());
    next_.resize(fixed() || in_place_ ? 0 : size());
    fixed_.resize(fixed() ? size() : 0);
    next_fixed_.resize(fixed() ? size() : 0);
  }
  void allocate() { sum_.resize(size()); }

  std::int64_t dim() const { return dim_; }
  bool fixed() const { return unit_ > 0; }
  std::int64_t n_chunks() const { return count_chunks(dim_); }

  // FB_OK where an array of this dtype and size can be a delta.
  fb_status accepts(fb_dtype dtype, std::int64_t dim) const {
    constexpr fb_dtype kOwn = sizeof(T) == 4 ? FB_F32 : FB_F64;
    const bool good = fixed() ? dtype == FB_I32 || dtype == FB_I64 : dtype == kOwn;
    return !good ? FB_ERR_DTYPE : dim != dim_ ? FB_ERR_SIZE : FB_OK;
  }

  // Chunk `chunk` of the next sum: this one (zero where `empty`) and the terms, in their order.
  fb_status add_chunk(std::int64_t chunk, bool empty, const std::vector<Term>& terms, const T* current) {
    const Range r = range(chunk);
    if (are_models(terms)) {
      return add_models(r, empty, terms) ? FB_OK : FB_ERR_OVERFLOW;
    }
    bool good = true;
    for (std::size_t k = 0; k < terms.size(); ++k) {
      const bool from_zero = k == 0 && empty, continues = k > 0;
      good = (fixed()                     ? add_fixed(r, from_zero, continues, terms[k])
              : terms[k].model == nullptr ? add_values(r, from_zero, continues, terms[k],
                                                       static_cast<const T*>(terms[k].delta) + r.begin, current)
                                          : add_model(r, from_zero, continues, terms[k], current)) &&
             good;
    }
    return good ? FB_OK : FB_ERR_OVERFLOW;
  }

  // The status of a term whose addition gave FB_ERR_OVERFLOW: FB_ERR_NOT_FINITE where its delta is not finite.
  fb_status reason(const Term& term) const { return fixed() || is_finite(term) ? FB_ERR_OVERFLOW : FB_ERR_NOT_FINITE; }

  // Makes the next sum the sum. A second call undoes the first.
  void commit() {
    if (in_place_) {
      return;
    }
    if (fixed()) {
      fixed_.swap(next_fixed_);
    } else {
      sum_.swap(next_);
    }
  }

  // Converts a chunk of an integer sum to the dtype, in values().
  void make_values(std::int64_t chunk) {
    if (fixed()) {
      const Range r = range(chunk);
      for (std::size_t j = r.begin; j < r.begin + r.n; ++j) {
        sum_[j] = static_cast<T>(static_cast<double>(fixed_[j]) * unit_);
      }
    }
  }
  const T* values() const { return sum_.data(); }
  T* values_out() { return sum_.data(); }
  T* next_out() { return (in_place_ ? sum_ : next_).data(); }  // where the next sum is made

  // The sum as it is kept: (dim) of the dtype, or int64.
  const void* raw() const { return fixed() ? static_cast<const void*>(fixed_.data()) : sum_.data(); }
  void set_raw(const void* from) {
    if (fixed()) {
      std::memcpy(fixed_.data(), from, size() * sizeof(std::int64_t));
    } else {
      std::memcpy(sum_.data(), from, size() * sizeof(T));
    }
  }
  void clear() {
    std::fill(sum_.begin(), sum_.end(), T(0));
    std::fill(fixed_.begin(), fixed_.end(), 0);
  }

  struct Range {
    std::size_t begin, n;
  };
  Range range(std::int64_t chunk) const {
    if (n_chunks() == 1) {
      return {0, size()};
    }
    const std::int64_t begin = chunk * kChunkSize;
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(std::min(kChunkSize, dim_ - begin))};
  }

  // start - model of an upload, in this range, into delta_out (r.n).
  static void model_delta(const fb_model_upload& upload, Range r, T* delta_out) {
    const auto begin = static_cast<std::int64_t>(r.begin), end = begin + static_cast<std::int64_t>(r.n);
    const T* start = static_cast<const T*>(upload.start);
    std::int64_t i = part_of(upload, begin);
    for (std::int64_t at = begin; at < end; ++i) {
      const std::int64_t part_begin = i == 0 ? 0 : upload.part_end[i - 1];
      const std::int64_t n = std::min(end, upload.part_end[i]) - at;
      const T* part = static_cast<const T*>(upload.part[i]) + (at - part_begin);
      kernels().of<T>().accumulate(n, start + at, part, T(-1), nullptr, nullptr, delta_out + (at - begin));
      at += n;
    }
  }

 private:
  static constexpr std::size_t kBlock = 2048;     // of a delta that is made from a model
  static constexpr std::size_t kMostModels = 16;  // that are added in one pass

  std::size_t size() const { return static_cast<std::size_t>(dim_); }

  // A term whose delta is made from a model, block by block.
  bool add_model(Range r, bool from_zero, bool continues, const Term& term, const T* current) {
    bool good = true;
    alignas(64) T delta[kBlock];
    for (std::size_t begin = r.begin; begin < r.begin + r.n; begin += kBlock) {
      const Range block{begin, std::min(kBlock, r.begin + r.n - begin)};
      model_delta(*term.model, block, delta);
      good = add_values(block, from_zero, continues, term, delta, current) && good;
    }
    return good;
  }

  // Whether these are models that can be added together.
  bool are_models(const std::vector<Term>& terms) const {
    if (!terms.empty() && terms.front().model == nullptr) {
      return false;
    }
    return !fixed() && terms.size() <= kMostModels && std::all_of(terms.begin(), terms.end(), [](const Term& term) {
      return term.model != nullptr && term.start == nullptr;
    });
  }
  bool add_models(Range r, bool from_zero, const std::vector<Term>& terms) {
    const T *start[kMostModels], *model[kMostModels];
    T weight[kMostModels];
    bool good = true;
    const auto end = static_cast<std::int64_t>(r.begin + r.n);
    for (auto at = static_cast<std::int64_t>(r.begin), next = end; at < end; at = next, next = end) {
      for (std::size_t k = 0; k < terms.size(); ++k) {  // `next`: where a part of any of them ends
        const fb_model_upload& upload = *terms[k].model;
        const std::int64_t i = part_of(upload, at), part_begin = i == 0 ? 0 : upload.part_end[i - 1];
        next = std::min(next, upload.part_end[i]);
        start[k] = static_cast<const T*>(upload.start) + at;
        model[k] = static_cast<const T*>(upload.part[i]) + (at - part_begin);
        weight[k] = static_cast<T>(terms[k].weight);
      }
      T* out = (in_place_ ? sum_ : next_).data() + at;
      good = kernels().of<T>().accumulate_models(next - at, from_zero ? nullptr : sum_.data() + at,
                                                 static_cast<std::int64_t>(terms.size()), start, model, weight, out) &&
             good;
    }
    return good;
  }

  // The part that has element `at`.
  static std::int64_t part_of(const fb_model_upload& upload, std::int64_t at) {
    return std::upper_bound(upload.part_end, upload.part_end + upload.n_parts, at) - upload.part_end;
  }

  // `delta` (r.n) is the term's in this range.
  bool add_values(Range r, bool from_zero, bool continues, const Term& term, const T* delta, const T* current) {
    T* out = (in_place_ ? sum_ : next_).data() + r.begin;
    const T* from = from_zero ? nullptr : continues ? out : sum_.data() + r.begin;
    const T* start = term.start == nullptr ? nullptr : term.start + r.begin;
    return kernels().of<T>().accumulate(static_cast<std::int64_t>(r.n), from, delta, static_cast<T>(term.weight),
                                        current == nullptr ? nullptr : current + r.begin, start, out);
  }

  bool is_finite(const Term& term) const {
    const Kernels<T>& k = kernels().of<T>();
    if (term.model == nullptr) {
      return k.all_finite(dim_, static_cast<const T*>(term.delta));
    }
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < term.model->n_parts; begin = term.model->part_end[i++]) {
      if (!k.all_finite(term.model->part_end[i] - begin, static_cast<const T*>(term.model->part[i]))) {
        return false;
      }
    }
    return true;
  }

  bool add_fixed(Range r, bool from_zero, bool continues, const Term& term) {
    std::int64_t* out = next_fixed_.data() + r.begin;
    const std::int64_t* from = from_zero ? nullptr : continues ? out : fixed_.data() + r.begin;
    const auto n = static_cast<std::int64_t>(r.n);
    return term.dtype == FB_I32
               ? fixed_accumulate(n, from, static_cast<const std::int32_t*>(term.delta) + r.begin, term.weight, out)
               : fixed_accumulate(n, from, static_cast<const std::int64_t*>(term.delta) + r.begin, term.weight, out);
  }

  std::int64_t dim_;
  double unit_;
  bool in_place_;
  PlacedVector<T> sum_, next_;  // with a unit: values(), and empty
  PlacedVector<std::int64_t> fixed_, next_fixed_;
};

}  // namespace fedbuff
