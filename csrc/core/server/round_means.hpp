// Ringleader's two tables: the mean of each client's deltas, in the round that is collected and in the one that steps
// are made of, whose means have a sum too. Rows are allocated when they are first needed.
//
// A delta is folded in by
//   sum  = sum + (delta - mean) / count      mean = mean + (delta - mean) / count      count: with this delta
// With `restores` both are made beside the old ones, and commit() swaps them, until undo(). Different chunks may be
// folded on different threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/dispatch.hpp"
#include "server/placed_vector.hpp"

namespace fedbuff {

template <class T>
class RoundMeans {
 public:
  enum Table : int { Collected, Stepped };  // of the round that is collected; of the one that steps are made of

  // Throws std::bad_alloc.
  RoundMeans(std::int64_t n_clients, std::int64_t dim, std::int64_t chunk, bool restores)
      : dim_(static_cast<std::size_t>(dim)),
        restores_(restores),
        zeros_(static_cast<std::size_t>(std::min(chunk, dim)), T(0)) {
    for (const Table table : {Collected, Stepped}) {
      row_[table].resize(static_cast<std::size_t>(n_clients));
      count_[table].assign(static_cast<std::size_t>(n_clients), 0);
      sum_[table].assign(dim_, T(0));
    }
    next_row_.resize(restores ? dim_ : 0);
    next_sum_.resize(restores ? dim_ : 0);
  }

  std::int64_t n_clients() const { return static_cast<std::int64_t>(count_[0].size()); }
  std::int64_t count(Table table, std::int64_t client) const { return count_[table][at(client)]; }
  const T* row(Table table, std::int64_t client) const { return row_[table][at(client)].data(); }
  const T* sum(Table table) const { return sum_[table].data(); }

  // The next delta is of this client, for this table. Throws std::bad_alloc.
  void begin(Table table, std::int64_t client) {
    table_ = table;
    client_ = client;
    row_[table][at(client)].resize(dim_);
  }
  // Elements begin .. begin + n of the delta (dim); whether the results are finite.
  bool fold(std::size_t begin, std::size_t n, const T* delta) {
    const Kernels<T>& k = kernels().of<T>();
    PlacedVector<T>& row = row_[table_][at(client_)];
    PlacedVector<T>& sum = sum_[table_];
    const std::int64_t before = count_[table_][at(client_)];
    const T* mean = before == 0 ? zeros_.data() : row.data() + begin;
    const T weight = static_cast<T>(1.0 / static_cast<double>(before + 1));
    const auto size = static_cast<std::int64_t>(n);
    const bool finite = k.accumulate(size, sum.data() + begin, delta + begin, weight, zeros_.data(), mean,
                                     (restores_ ? next_sum_ : sum).data() + begin);
    return k.accumulate(size, mean, delta + begin, weight, zeros_.data(), mean,
                        (restores_ ? next_row_ : row).data() + begin) &&
           finite;
  }
  void commit() {
    swap();
    ++count_[table_][at(client_)];
  }
  void undo() {
    swap();
    --count_[table_][at(client_)];
  }

  // Steps are made of the collected round from now on, and another one is collected.
  void next_round() {
    row_[Collected].swap(row_[Stepped]);
    count_[Collected].swap(count_[Stepped]);
    sum_[Collected].swap(sum_[Stepped]);
    std::fill(count_[Collected].begin(), count_[Collected].end(), 0);
    std::fill(sum_[Collected].begin(), sum_[Collected].end(), T(0));
  }

  // A saved row or sum (dim), and the counts.
  void restore_row(Table table, std::int64_t client, const void* saved) {
    row_[table][at(client)].resize(dim_);
    std::copy_n(static_cast<const T*>(saved), dim_, row_[table][at(client)].data());
  }
  void restore_sum(Table table, const void* saved) {
    std::copy_n(static_cast<const T*>(saved), dim_, sum_[table].data());
  }
  void restore_counts(Table table, const std::int64_t* saved) {
    std::copy_n(saved, count_[table].size(), count_[table].data());
  }
  const std::vector<std::int64_t>& counts(Table table) const { return count_[table]; }

 private:
  static std::size_t at(std::int64_t client) { return static_cast<std::size_t>(client); }
  void swap() {
    if (restores_) {
      row_[table_][at(client_)].swap(next_row_);
      sum_[table_].swap(next_sum_);
    }
  }

  std::size_t dim_;
  bool restores_;
  PlacedVector<T> zeros_;  // a chunk
  std::vector<PlacedVector<T>> row_[2];
  std::vector<std::int64_t> count_[2];
  PlacedVector<T> sum_[2];
  PlacedVector<T> next_row_, next_sum_;
  Table table_ = Collected;
  std::int64_t client_ = 0;
};

}  // namespace fedbuff
