// The state of clients in a replay: a vector each, that a task reads when it starts and changes when it ends.
//
// The state after a row lies in the window until the row is committed, and the next row of its client reads it there:
// so a row that is run again finds what it found before. What is saved is the state after the last whole step. A client
// has no memory until its first row is committed; its state is zero then. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "memory/index_ring.hpp"
#include "memory/vector_pool.hpp"

namespace fedbuff {

template <class T>
class ClientStates {
 public:
  // The pool must outlive it.
  ClientStates(std::int64_t dim, bool is_on, VectorPool& pool)
      : bytes_(static_cast<std::size_t>(dim) * sizeof(T)), is_on_(is_on), pool_(pool) {}

  bool is_on() const { return is_on_; }

  // ---- rows, in their order

  void add(std::int64_t row, std::int32_t client) {
    const std::int64_t before = std::exchange(at(client).last_row, row);
    if (previous_.size() == 0) {
      previous_.restart(row);
    }
    previous_.push_back(before);
  }
  // A row of a step that was made before a restore.
  void skip(std::int64_t row, std::int32_t client) { at(client).last_row = row; }
  void pop_row() { previous_.pop_front(); }
  // The row of the same client before this one; -1 where there is none.
  std::int64_t previous(std::int64_t row) const { return previous_[row]; }

  // ---- states

  // After all rows of the client that are committed, (dim); null: zeros.
  const T* state(std::int32_t client) const { return values(clients_[static_cast<std::size_t>(client)].now); }
  SharedMemory take() {
    if (spare_.empty()) {
      return pool_.take(bytes_);
    }
    SharedMemory memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }
  // A row of the client is committed, with this state after it. `after` gets memory that is free, or null.
  void commit(std::int32_t client, SharedMemory& after) {
    Client& of = at(client);
    if (of.now == of.saved) {
      changed_.push_back(client);
    }
    after.swap(of.now);
    if (after == of.saved) {
      after = nullptr;
    }
  }
  // The states as they are now are those of a whole step.
  void end_step() {
    for (const std::int32_t client : changed_) {
      Client& of = at(client);
      if (of.saved) {
        spare_.push_back(std::move(of.saved));
      }
      of.saved = of.now;
    }
    changed_.clear();
  }

  // ---- a saved replay

  // visit(client, state (dim)) for those that have one after the last whole step, in ascending order.
  template <class Visit>
  void visit_saved(Visit visit) const {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (clients_[i].saved) {
        visit(static_cast<std::int64_t>(i), values(clients_[i].saved));
      }
    }
  }
  void restore(std::int32_t client, const void* state) {
    Client& of = at(client);
    of.saved = take();
    std::memcpy(of.saved.get(), state, bytes_);
    of.now = of.saved;
  }

 private:
  struct Client {
    SharedMemory now, saved;
    std::int64_t last_row = -1;
  };

  static const T* values(const SharedMemory& memory) { return static_cast<const T*>(memory.get()); }
  Client& at(std::int32_t client) {
    const auto index = static_cast<std::size_t>(client);
    if (index >= clients_.size()) {
      clients_.resize(index + 1);
    }
    return clients_[index];
  }

  const std::size_t bytes_;
  const bool is_on_;
  VectorPool& pool_;
  std::vector<Client> clients_;
  std::vector<std::int32_t> changed_;  // clients whose state is not that of the last whole step
  IndexRing<std::int64_t> previous_;   // for each row that is kept
  std::vector<SharedMemory> spare_;
};

}  // namespace fedbuff
