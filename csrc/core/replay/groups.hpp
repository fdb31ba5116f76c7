// Rows that the client's work takes in one call, cut by the schedule alone.
//
// Rows are consecutive in a group. A group takes the next row while it has fewer than `most` and the row's version is
// at most the step of the group's first row. So all versions that it needs come from steps before its first row's,
// whose rows are in earlier groups: the oldest group that is not done can always run. A group is whole when it has
// `most` rows, or the row after it is known, or there are no more rows.
//
// Every operation is O(1) amortised, but find, which is O(log groups). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>

#include "clients/client_work.hpp"

namespace fedbuff {

struct RowGroup {
  std::int64_t begin, end;  // rows
  std::int64_t version;     // the newest that it needs
};

class Groups {
 public:
  explicit Groups(std::int64_t most) : most_(most) {}

  bool is_on() const { return most_ > 0; }  // else rows have no groups
  std::int64_t most() const { return most_; }

  // The next row, which has this number. Rows before the one of `restart` have no group.
  void add(std::int64_t number, const ReplayRow& row) {
    if (!is_on() || number < open_.end) {
      return;
    }
    const bool is_full = open_.end - open_.begin == most_;
    if (open_.end > open_.begin && (is_full || row.version > step_)) {
      finish();
    }
    if (open_.end == open_.begin) {
      step_ = row.step;
      open_.version = row.version;
    }
    open_.version = std::max(open_.version, row.version);
    ++open_.end;
    if (open_.end - open_.begin == most_) {
      finish();
    }
  }

  // There are no more rows.
  void close() {
    closed_ = true;
    if (open_.end > open_.begin) {
      finish();
    }
  }
  bool is_closed() const { return closed_; }

  // Rows before `first` are committed, and `n_done` from it on are done, in a group with a committed row. The next
  // group begins after them: rows from there on are added again.
  void restart(std::int64_t first, std::int64_t n_done) {
    whole_.clear();
    next_ = 0;
    open_ = {first + n_done, first + n_done, 0};
    if (n_done > 0) {
      whole_.push_back({first - 1, first + n_done, 0});
    }
  }

  // The whole group with this row; null where there is none.
  const RowGroup* find(std::int64_t row) const {
    const auto after = std::upper_bound(whole_.begin(), whole_.end(), row,
                                        [](std::int64_t at, const RowGroup& group) { return at < group.begin; });
    return after == whole_.begin() || std::prev(after)->end <= row ? nullptr : &*std::prev(after);
  }

  // Calls visit(group) for the whole groups that end at or before `rows_end` and were not visited since `revisit`.
  template <class Visit>
  void visit_new(std::int64_t rows_end, Visit visit) {
    for (; next_ < whole_.size() && whole_[next_].end <= rows_end; ++next_) {
      visit(whole_[next_]);
    }
  }
  void revisit() { next_ = 0; }

  // Forgets groups whose rows are all before this one.
  void forget_before(std::int64_t row) {
    while (!whole_.empty() && whole_.front().end <= row) {
      whole_.pop_front();
      next_ -= next_ > 0 ? 1 : 0;
    }
  }

 private:
  void finish() {
    whole_.push_back(open_);
    open_ = {open_.end, open_.end, 0};
  }

  const std::int64_t most_;
  std::deque<RowGroup> whole_;
  std::size_t next_ = 0;    // the first that was not visited
  RowGroup open_{0, 0, 0};  // may take more rows
  std::int64_t step_ = 0;   // of its first row
  bool closed_ = false;
};

}  // namespace fedbuff
