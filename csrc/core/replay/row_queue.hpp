// The rows and complete steps that a replay was given and has not committed.
//
// Rows are numbered from 0 over all used arrivals. A row is removed when its step is committed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>

#include "clients/client_work.hpp"
#include "memory/index_ring.hpp"

namespace fedbuff {

class RowQueue {
 public:
  const IndexRing<ReplayRow>& rows() const { return rows_; }
  std::int64_t n_rows() const { return n_rows_; }    // that were given
  std::int64_t n_steps() const { return n_steps_; }  // complete steps that were given

  // The step of a row; -1 where the row was removed.
  std::int64_t step_of(std::int64_t row) const { return row < rows_.begin() ? -1 : rows_[row].step; }

  // Throws std::invalid_argument unless the row can follow those that were given.
  void require_order(const ReplayRow& row) const {
    const std::int64_t least = std::max(n_steps_, last_step_);
    if (row.step < least || row.version < 0 || row.version > row.step) {
      throw std::invalid_argument("row " + std::to_string(n_rows_) + ": version " + std::to_string(row.version) +
                                  " in step " + std::to_string(row.step) + " after step " + std::to_string(least));
    }
  }

  void push(const ReplayRow& row) {
    rows_.push_back(row);
    last_step_ = row.step;
    ++n_rows_;
  }

  // Counts a row of a step that was made before a restore.
  void skip() { rows_.restart(++n_rows_); }

  // Step n_steps() is complete with the rows that were given. `version` is that of the current model: earlier steps are
  // made already.
  void close_step(std::int64_t version) {
    while (scan_ < n_rows_ && step_of(scan_) <= n_steps_) {
      ++scan_;
    }
    if (n_steps_ >= version) {
      step_end_.push_back(scan_);
    }
    ++n_steps_;
  }

  // Whether the step that starts from the current model is complete; the row after its last one.
  bool has_complete_step() const { return !step_end_.empty(); }
  std::int64_t step_end() const { return step_end_.front(); }

  void pop_step() { step_end_.pop_front(); }
  void pop_row() { rows_.pop_front(); }

 private:
  IndexRing<ReplayRow> rows_;
  std::int64_t n_rows_ = 0, n_steps_ = 0;
  std::int64_t scan_ = 0;              // rows before it belong to complete steps
  std::int64_t last_step_ = 0;         // of the last row
  std::deque<std::int64_t> step_end_;  // for each complete step that is not committed
};

}  // namespace fedbuff
