// The models of a replay: the current version, and the older ones that later rows need.
//
// A version counts references: the tasks that started on it, minus those that have ended. The number of started tasks
// is known when the version is closed, so the count is negative before. The model is freed when the version is closed,
// no longer current, and its count is zero. Its memory is used again for a later model.
//
// Every operation is O(1) amortised. Not thread-safe. Errors name the row that was given when they were found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memory/index_ring.hpp"
#include "memory/vector_pool.hpp"

namespace fedbuff {

// Rows that wait for a version, linked by the places of the window.
struct RowList {
  std::int64_t first = -1, last = -1;
};

template <class T>
class VersionStore {
 public:
  // Version 0 is a copy of w0 (dim). The pool must outlive the store.
  VersionStore(std::int64_t dim, const T* w0, VectorPool& pool)
      : bytes_(static_cast<std::size_t>(dim) * sizeof(T)), pool_(pool) {
    put(0, w0);
    most_live_ = 1;
  }

  std::int64_t current() const { return current_; }
  std::int64_t begin() const { return versions_.begin(); }
  std::int64_t end() const { return versions_.end(); }
  std::int64_t n_live() const { return n_live_; }
  std::int64_t most_live() const { return most_live_; }

  const T* model(std::int64_t version) const { return values(versions_[version].model); }  // begin() <= version < end()
  const T* find(std::int64_t version) const { return is_known(version) ? model(version) : nullptr; }
  std::vector<std::int64_t> live() const {
    std::vector<std::int64_t> live;
    for (std::int64_t v = begin(); v < end(); ++v) {
      if (versions_[v].model) {
        live.push_back(v);
      }
    }
    return live;
  }

  // Shares the memory of a model, which is then not used for another one.
  std::shared_ptr<const void> keep(std::int64_t version) {
    versions_[version].kept = true;
    return versions_[version].model;
  }

  RowList& waiting(std::int64_t version) { return entry(version, -1).waiting; }
  void clear_waiting() {
    for (std::int64_t v = begin(); v < end(); ++v) {
      versions_[v].waiting = {};
    }
  }

  // ---- references

  // A row on this version is kept until commit_row. Throws std::invalid_argument where its model is gone.
  void hold(std::int64_t version, std::int64_t row) {
    Version& wanted = entry(version, row);
    if (version <= current_ && !wanted.model && !passing_) {
      throw_gone(version, row);
    }
    ++wanted.pending;
    require_covered(wanted, version, row);
  }

  // A task on this version has ended; the second one: that of a row, which is not kept any more.
  void release(std::int64_t version, std::int64_t row) { drop_reference(entry(version, row), version, row); }
  void commit_row(std::int64_t version, std::int64_t row) {
    Version& old = entry(version, row);
    --old.pending;
    drop_reference(old, version, row);
  }

  // No task starts on this version any more; `started` did.
  void close(std::int64_t version, std::int64_t started, std::int64_t row) {
    Version& ended = entry(version, row);
    ended.references += started;
    ended.closed = true;
    require_covered(ended, version, row);
    free_if_unused(version);
  }

  // ---- the next version

  SharedMemory take() {
    if (spare_.empty()) {
      return pool_.take(bytes_);
    }
    SharedMemory memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }
  void give_back(SharedMemory memory) { spare_.push_back(std::move(memory)); }

  // Makes current() + 1 the current version, with the model in `next`. The caller frees the old one after commit_row of
  // its rows, by free_if_unused.
  void push(SharedMemory next) {
    entry(current_ + 1, -1).model = std::move(next);
    ++current_;
    ++n_live_;
    most_live_ = std::max(most_live_, n_live_);
  }

  void free_if_unused(std::int64_t version) {
    if (version < begin() || version >= current_) {
      return;
    }
    Version& old = versions_[version];
    if (old.closed && old.references == 0 && old.model) {
      if (old.kept) {
        old.model = nullptr;
      } else {
        give_back(std::move(old.model));
      }
      --n_live_;
    }
    while (begin() < current_ && versions_[begin()].closed && versions_[begin()].references == 0 &&
           !versions_[begin()].model) {
      versions_.pop_front();
    }
  }

  // ---- a replay that is restored

  // Begins at this version, without any model; rows of earlier steps are released as they are given.
  void pass_over(std::int64_t version) {
    passing_ = true;
    current_ = version;
    give_back(std::move(entry(0, -1).model));
    n_live_ = 0;
  }
  bool is_passing() const { return passing_; }

  // The models as Replay::restore takes them. Returns how many of `live` are kept: those that later rows may need.
  std::int64_t restore(const T* w, const std::vector<std::int64_t>& live, const T* models) {
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (live[i] < (i == 0 ? 0 : live[i - 1] + 1) || live[i] >= current_) {
        throw std::invalid_argument("live: version " + std::to_string(live[i]) + " at place " + std::to_string(i) +
                                    ", expected ascending ones below " + std::to_string(current_));
      }
    }
    std::int64_t n_needed = 0;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (is_known(live[i]) && versions_[live[i]].references != 0) {
        put(live[i], models + i * (bytes_ / sizeof(T)));
        ++n_needed;
      }
    }
    put(current_, w);
    for (std::int64_t v = begin(); v < current_; ++v) {
      if (versions_[v].pending > 0 && !versions_[v].model) {
        throw std::invalid_argument("live: the model of version " + std::to_string(v) +
                                    " is not there, and a later row needs it");
      }
    }
    passing_ = false;
    most_live_ = n_live_;
    return n_needed;
  }

  // Throws std::logic_error unless counts and models are those that the kept rows need.
  template <class Rows>
  void check(const Rows& rows) const {
    const auto require = [](bool holds, const char* what) {
      if (!holds) {
        throw std::logic_error(std::string("replay: ") + what);
      }
    };
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(versions_.size()));
    for (std::int64_t i = rows.begin(); i < rows.end(); ++i) {
      const std::int64_t v = rows[i].version;
      require(v > current_ || (v >= begin() && versions_[v].model), "a needed version is there");
      if (v < end()) {
        ++wanted[static_cast<std::size_t>(v - begin())];
      }
    }
    std::int64_t n_live = 0;
    for (std::int64_t v = begin(); v < end(); ++v) {
      n_live += versions_[v].model ? 1 : 0;
      require(versions_[v].pending == wanted[static_cast<std::size_t>(v - begin())], "rows of a version");
      require(!versions_[v].closed || versions_[v].references >= versions_[v].pending, "references cover the rows");
    }
    require(n_live == n_live_, "live versions");
    require(versions_[current_].model != nullptr, "the current model is there");
  }

 private:
  struct Version {
    SharedMemory model;
    std::int64_t references = 0;  // tasks that end on it and are not committed; below zero while open
    std::int64_t pending = 0;     // of them, rows that are kept; at most `references` once it is closed
    RowList waiting;
    bool closed = false;  // no task can start on it any more
    bool kept = false;    // keep() has shared its memory
  };

  static const T* values(const SharedMemory& memory) { return static_cast<const T*>(memory.get()); }
  bool is_known(std::int64_t version) const { return version >= begin() && version < end(); }

  Version& entry(std::int64_t version, std::int64_t row) {
    if (!is_known(version)) {
      append_up_to(version, row);
    }
    return versions_[version];
  }
  void append_up_to(std::int64_t version, std::int64_t row) {  // apart, so that entry() is inlined
    if (version < begin()) {
      throw_gone(version, row);
    }
    while (version >= end()) {
      versions_.push_back({});
    }
  }

  void drop_reference(Version& old, std::int64_t version, std::int64_t row) {
    --old.references;
    require_covered(old, version, row);
    if (old.references == 0 && old.closed) {
      free_if_unused(version);
    }
  }

  void put(std::int64_t version, const T* from) {
    SharedMemory model = take();
    std::memcpy(model.get(), from, bytes_);
    entry(version, -1).model = std::move(model);
    ++n_live_;
  }

  void require_covered(const Version& version, std::int64_t number, std::int64_t row) const {
    if (version.closed && version.pending > version.references) {
      throw_gone(number, row);
    }
  }

  [[noreturn]] static void throw_gone(std::int64_t version, std::int64_t row) {
    throw std::invalid_argument("row " + std::to_string(row) + ": the model of version " + std::to_string(version) +
                                " is gone: more tasks end on it than were started");
  }

  const std::size_t bytes_;
  VectorPool& pool_;
  IndexRing<Version> versions_;
  std::vector<SharedMemory> spare_;  // models that are free
  std::int64_t current_ = 0;
  std::int64_t n_live_ = 0, most_live_ = 0;
  bool passing_ = false;
};

}  // namespace fedbuff
