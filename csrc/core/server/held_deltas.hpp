// Deltas of a buffer whose weights are known at its step only: kept, with what their weights are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "server/placed_vector.hpp"

namespace fedbuff {

template <class T>
class HeldDeltas {
 public:
  std::int64_t size() const { return static_cast<std::int64_t>(delta_.size()); }
  const T* delta(std::int64_t i) const { return delta_[at(i)].data(); }
  std::int64_t client(std::int64_t i) const { return client_[at(i)]; }
  std::int64_t staleness(std::int64_t i) const { return staleness_[at(i)]; }
  double s(std::int64_t i) const { return s_[at(i)]; }
  double e(std::int64_t i) const { return e_[at(i)]; }

  // A copy of the delta (dim), at the end. Throws std::bad_alloc, and has then changed nothing.
  void push(std::int64_t dim, const T* delta, std::int64_t client, std::int64_t staleness, double s, double e) {
    const std::size_t n = delta_.size() + 1;
    client_.reserve(n);
    staleness_.reserve(n);
    s_.reserve(n);
    e_.reserve(n);
    delta_.emplace_back(delta, delta + dim);
    client_.push_back(client);
    staleness_.push_back(staleness);
    s_.push_back(s);
    e_.push_back(e);
  }
  void pop() {
    delta_.pop_back();
    client_.pop_back();
    staleness_.pop_back();
    s_.pop_back();
    e_.pop_back();
  }
  void clear() {
    delta_.clear();
    client_.clear();
    staleness_.clear();
    s_.clear();
    e_.clear();
  }

  // How many of the deltas are of each of n clients.
  std::vector<std::int64_t> count(std::int64_t n_clients) const {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(n_clients), 0);
    for (const std::int64_t client : client_) {
      ++counts[at(client)];
    }
    return counts;
  }

  // As fedbuff.h names them; nothing where there is none.
  void list(std::int64_t dim, std::vector<fb_array>& found) const {
    if (delta_.empty()) {
      return;
    }
    const fb_dtype dtype = sizeof(T) == 4 ? FB_F32 : FB_F64;
    for (std::int64_t i = 0; i < size(); ++i) {
      found.push_back({"held", i, dim, dtype, delta(i)});
    }
    found.push_back({"held_client", -1, size(), FB_I64, client_.data()});
    found.push_back({"held_staleness", -1, size(), FB_I64, staleness_.data()});
    found.push_back({"held_s", -1, size(), FB_F64, s_.data()});
    found.push_back({"held_e", -1, size(), FB_F64, e_.data()});
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  std::vector<PlacedVector<T>> delta_;
  std::vector<std::int64_t> client_, staleness_;
  std::vector<double> s_, e_;
};

}  // namespace fedbuff
