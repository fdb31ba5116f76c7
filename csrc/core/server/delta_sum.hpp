// The sum of a buffer: deltas of the model's dtype, or integers that count units.
//
// Terms are added in their order, element by element. With OnFailure::Restore they are added from one vector into
// another, and commit() swaps the two: additions that failed are not committed and change nothing. Different chunks may
// be added on different threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/dispatch.hpp"
#include "fedbuff/fedbuff.h"
#include "numbers/fixed_point.hpp"
#include "threads/core_chunks.hpp"
#include "memory/placement.hpp"

namespace fedbuff {

// Allocates vectors at the alignment of alignment_of.
template <class T>
struct PlacedAllocator {
  using value_type = T;
  PlacedAllocator() = default;
  template <class U>
  PlacedAllocator(const PlacedAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment(n))); }
  void deallocate(T* memory, std::size_t n) { ::operator delete(memory, alignment(n)); }
  friend bool operator==(const PlacedAllocator&, const PlacedAllocator&) { return true; }
  friend bool operator!=(const PlacedAllocator&, const PlacedAllocator&) { return false; }

 private:
  static std::align_val_t alignment(std::size_t n) { return std::align_val_t{alignment_of(n * sizeof(T))}; }
};
template <class T>
using PlacedVector = std::vector<T, PlacedAllocator<T>>;

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
    bool good = true;
    for (std::size_t k = 0; k < terms.size(); ++k) {
      good = (fixed() ? add_fixed(r, k == 0 && empty, k > 0, terms[k])
                      : add_floats(r, k == 0 && empty, k > 0, terms[k], current)) &&
             good;
    }
    return good ? FB_OK : FB_ERR_OVERFLOW;
  }

  // The status of a term whose addition gave FB_ERR_OVERFLOW: FB_ERR_NOT_FINITE where its delta is not finite.
  fb_status reason(const Term& term) const {
    return fixed() || kernels().of<T>().all_finite(dim_, static_cast<const T*>(term.delta)) ? FB_ERR_OVERFLOW
                                                                                            : FB_ERR_NOT_FINITE;
  }

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

 private:
  std::size_t size() const { return static_cast<std::size_t>(dim_); }

  bool add_floats(Range r, bool from_zero, bool continues, const Term& term, const T* current) {
    T* out = (in_place_ ? sum_ : next_).data() + r.begin;
    const T* from = from_zero ? nullptr : continues ? out : sum_.data() + r.begin;
    const T* start = term.start == nullptr ? nullptr : term.start + r.begin;
    return kernels().of<T>().accumulate(static_cast<std::int64_t>(r.n), from,
                                        static_cast<const T*>(term.delta) + r.begin, static_cast<T>(term.weight),
                                        current == nullptr ? nullptr : current + r.begin, start, out);
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
