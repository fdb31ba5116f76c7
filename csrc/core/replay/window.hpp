// The deltas of a replay between their computation and their commit: a ring of places, a power of two of them.
//
// Row i has place i modulo size(), from when i < added() + size() until it is added. Always
//   added() <= prefix() <= end of the rows, and added() <= frontier <= added() + size().
// Rows of the window are waiting (runnable, listed with the version that they wait for, or noted at the row of their
// client that they wait for), running, or done. The memory of a delta stays with its place. Not thread-safe, except for
// values of different rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memory/vector_pool.hpp"
#include "memory/window_bitset.hpp"
#include "replay/version_store.hpp"

namespace fedbuff {

template <class T>
class Window {
 public:
  // Deltas (dim), and the states of clients where they have one, take at most max_bytes, except for the fewest places
  // that resize() is asked for.
  Window(std::int64_t dim, std::int64_t max_bytes, VectorPool& pool, bool has_states = false)
      : bytes_(static_cast<std::size_t>(dim) * sizeof(T)),
        max_bytes_(max_bytes),
        has_states_(has_states),
        pool_(pool) {}

  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t added() const { return added_; }        // rows before it are in the sum
  std::int64_t prefix() const { return prefix_; }      // rows before it are done
  std::int64_t frontier() const { return frontier_; }  // rows before it were visited since resize()
  std::int64_t n_deltas() const { return n_deltas_; }
  std::int64_t most_deltas() const { return most_deltas_; }
  std::int64_t end(std::int64_t rows_end) const { return std::min(rows_end, added_ + size()); }

  bool is_done(std::int64_t row) const { return place(row).state == State::Done; }
  const T* delta(std::int64_t row) const { return static_cast<const T*>(place(row).delta.get()); }
  // Memory for the state of the row's client after it, where there are states; null until somebody puts it there.
  SharedMemory& client_state(std::int64_t row) { return of_client(row).state; }
  double factor(std::int64_t row) const { return place(row).factor; }
  void set_factor(std::int64_t row, double factor) { place(row).factor = factor; }  // of the norm's clipping

  // Gets places for at least `wanted` deltas where they fit into max_bytes, and for `least` in any case. Done rows stay
  // done if there is room; all rows are to be visited again, and no row is listed with a version.
  void resize(std::int64_t wanted, std::int64_t least) {
    const std::int64_t fit =
        max_bytes_ / static_cast<std::int64_t>(std::max<std::size_t>(1, (has_states_ ? 2 : 1) * bytes_));
    std::int64_t n = 1;
    while (n < least || (n < wanted && 2 * n <= fit)) {
      n *= 2;
    }
    if (n != size()) {
      std::vector<Place> before(static_cast<std::size_t>(n));
      std::vector<ClientPlace> clients_before(has_states_ ? before.size() : 0);
      before.swap(places_);
      clients_before.swap(of_clients_);
      const auto old = static_cast<std::int64_t>(before.size());
      for (std::int64_t i = added_; i < added_ + old; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) & (before.size() - 1);
        Place& from = before[at];
        if (i < added_ + n) {
          place(i) = std::move(from);
          if (has_states_) {
            of_client(i) = std::move(clients_before[at]);
          }
        } else if (from.state == State::Done) {
          --n_deltas_;
        }
      }
      prefix_ = std::min(prefix_, added_ + n);
    }
    for (ClientPlace& at : of_clients_) {
      at.follower = -1;
    }
    frontier_ = added_;
    runnable_.reset(size(), added_);
  }

  // ---- rows that wait

  // Calls visit(row) for the rows that have come into the window since the last call.
  template <class Visit>
  void visit_new(std::int64_t rows_end, Visit visit) {
    for (const std::int64_t last = end(rows_end); frontier_ < last; ++frontier_) {
      visit(frontier_);
    }
  }
  void make_runnable(std::int64_t row) { runnable_.insert(row); }
  void make_wait(std::int64_t row, RowList& list) {
    place(row).next_waiting = -1;
    (list.last < 0 ? list.first : place(list.last).next_waiting) = row;
    list.last = row;
  }
  // Calls visit(row) for the rows that wait for a version.
  template <class Visit>
  void visit_waiting(const RowList& list, Visit visit) {
    for (std::int64_t row = list.first; row >= 0; row = place(row).next_waiting) {
      visit(row);
    }
  }
  // The row waits for the one of its client before it, which is not done.
  void make_follow(std::int64_t row, std::int64_t before) { of_client(before).follower = row; }
  std::int64_t n_runnable() const { return runnable_.size(); }

  // ---- rows that run

  // The first runnable row, which is in the list no more; there must be one.
  std::int64_t pop_runnable() { return runnable_.pop_first(added_); }

  // A row begins to run. Returns where its delta is written.
  T* start(std::int64_t row) {
    Place& at = place(row);
    if (!at.delta) {
      at.delta = pool_.take(bytes_);
    }
    at.state = State::Running;
    most_deltas_ = std::max(most_deltas_, ++n_deltas_);
    return static_cast<T*>(at.delta.get());
  }
  void finish(std::int64_t row) {
    place(row).state = State::Done;
    if (has_states_ && of_client(row).follower >= 0) {
      runnable_.insert(std::exchange(of_client(row).follower, -1));
    }
  }
  void cancel(std::int64_t row) {
    place(row).state = State::Waiting;
    --n_deltas_;
  }

  // ---- rows that are done

  // Moves prefix() over the rows that is_finished(row) holds for.
  template <class IsFinished>
  void move_prefix(std::int64_t rows_end, IsFinished is_finished) {
    for (const std::int64_t last = end(rows_end); prefix_ < last && is_finished(prefix_);) {
      ++prefix_;
    }
  }
  void restart_prefix() { prefix_ = added_; }

  // The row added() is in the sum; `has_delta`: its delta lay here.
  void pop(bool has_delta) {
    n_deltas_ -= has_delta ? 1 : 0;
    place(added_++).state = State::Waiting;
    frontier_ = std::max(frontier_, added_);
  }

  // Passes over a row that was added before a restore.
  void skip() { prefix_ = ++added_; }

  // A row is done, though it may not be known yet. Returns where its delta is written.
  T* put(std::int64_t row) {
    T* delta_out = start(row);
    finish(row);
    return delta_out;
  }

  // Throws std::logic_error unless counts and states agree, while no row runs.
  void check(std::int64_t rows_end) const {
    const auto require = [](bool holds, const char* what) {
      if (!holds) {
        throw std::logic_error(std::string("replay: ") + what);
      }
    };
    require(added_ <= prefix_ && prefix_ <= rows_end, "row order");
    std::int64_t deltas = 0;
    for (std::int64_t i = added_; i < added_ + size(); ++i) {
      const Place& at = place(i);
      deltas += at.state == State::Waiting ? 0 : 1;
      require(at.state != State::Running, "nobody is at work");
      require(at.state == State::Waiting || at.delta, "a finished row has its delta");
      require(i >= prefix_ || at.state == State::Done, "rows before the prefix are finished");
    }
    require(deltas == n_deltas_, "deltas in the window");
  }

 private:
  enum class State : std::uint8_t { Waiting, Running, Done };

  struct Place {
    SharedMemory delta;
    std::int64_t next_waiting = -1;  // the next row that waits for the same version
    State state = State::Waiting;
    double factor = 1;
  };

  struct ClientPlace {
    SharedMemory state;
    std::int64_t follower = -1;  // the row of the same client that waits for this one
  };

  Place& place(std::int64_t row) { return places_[static_cast<std::size_t>(row) & (places_.size() - 1)]; }
  const Place& place(std::int64_t row) const { return places_[static_cast<std::size_t>(row) & (places_.size() - 1)]; }

  ClientPlace& of_client(std::int64_t row) { return of_clients_[static_cast<std::size_t>(row) & (places_.size() - 1)]; }

  const std::size_t bytes_;
  const std::int64_t max_bytes_;
  const bool has_states_;
  VectorPool& pool_;
  std::vector<Place> places_;
  std::vector<ClientPlace> of_clients_;  // as many, where there are states
  WindowBitset runnable_;                // rows that nobody has taken and whose version exists
  std::int64_t added_ = 0, prefix_ = 0, frontier_ = 0;
  std::int64_t n_deltas_ = 0, most_deltas_ = 0;
};

}  // namespace fedbuff
