// WeightedClients: clients drawn in proportion to their weights among those that may be drawn, at a cost that does not
// depend on how many those are.
//
// `candidate` finds the client at a place where the weights of all lie side by side by number; most draws end there. If
// that client may not be drawn, `draw` looks among those that may: they stand in classes, an array each, of weights
// between a bound and half of it. A place where the bounds lie side by side is on a client, or in the gap behind it:
// then it is nobody, which happens at most half of the time. The expressions are those of
// fedbuff/backends/python/weighted_clients.py. Memory: 24 bytes per client.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/huge_pages.hpp"

namespace fedbuff {

class WeightedClients {
 public:
  // Of n clients, none of which may be drawn yet; some weight is above 0. The weights must outlive this object.
  void set_weights(const double* weight, std::size_t n) {
    weight_ = weight;
    clients_.assign(n, Client{});
    member_.assign(n, 0);
    n_held_ = 0;
    make_classes(n);
    make_guide(n);
  }

  bool is_empty() const { return n_held_ == 0; }  // nobody may be drawn
  bool holds(std::size_t client) const { return clients_[client].place != kNoPlace; }
  void fetch(std::size_t client) const { __builtin_prefetch(&clients_[client]); }

  // The client may be drawn from now on, unless its weight is 0.
  void insert(std::uint32_t client) {
    Client& it = clients_[client];
    if (it.place == kNoPlace && it.class_number != kNoClass) {
      Class& its = classes_[it.class_number];
      it.place = its.first + its.count++;
      member_[it.place] = client;
      ++n_held_;
    }
  }
  void remove(std::uint32_t client) {
    Client& it = clients_[client];
    if (it.place != kNoPlace) {
      Class& its = classes_[it.class_number];
      const std::uint32_t last = member_[its.first + --its.count];
      member_[it.place] = last;
      clients_[last].place = it.place;
      it.place = kNoPlace;
      --n_held_;
    }
  }

  // Among all clients, by u in [0, 1).
  std::uint32_t candidate(double u) const {
    const double place = u * until_.back();
    std::size_t client = guide_[guide_at(place)];
    while (until_[client] <= place) {
      ++client;
    }
    return static_cast<std::uint32_t>(client);
  }

  // Among those that may be drawn, of which there must be some, by u in [0, 1); -1 for nobody.
  std::int64_t draw(double u) {
    add_up();
    const double place = u * sums_[0];
    std::size_t k = 0;
    while (place < sums_[k + 1]) {
      ++k;
    }
    const Class& its = classes_[k];
    const double at = (place - sums_[k + 1]) / its.bound;
    const auto index = static_cast<std::uint32_t>(std::min(at, static_cast<double>(its.count - 1)));
    const std::uint32_t client = member_[its.first + index];
    return (at - static_cast<double>(index)) * its.bound < weight_[client] ? std::int64_t{client} : -1;
  }

 private:
  static constexpr std::uint32_t kNoPlace = 0xFFFFFFFFu;
  static constexpr std::uint32_t kNoClass = 0xFFFFFFFFu;  // of weight 0
  struct Client {
    std::uint32_t place = kNoPlace;  // in member_
    std::uint32_t class_number = kNoClass;
  };
  struct Class {
    double bound;             // its weights are up to this and above half of it
    std::uint32_t first = 0;  // place in member_
    std::uint32_t count = 0;  // of its clients that may be drawn
  };

  void make_classes(std::size_t n) {
    const double largest = *std::max_element(weight_, weight_ + n);
    classes_.assign(1, Class{largest});
    std::vector<std::uint32_t> size(1, 0);
    for (std::size_t i = 0; i < n; ++i) {
      if (weight_[i] == 0.0) {
        continue;
      }
      // Two numbers whose exponents differ by k differ by a factor of 2^(k - 1) to 2^(k + 1).
      std::size_t k = static_cast<std::size_t>(std::max(0, std::ilogb(largest) - std::ilogb(weight_[i]) - 1));
      while (k + 1 >= classes_.size()) {
        classes_.push_back(Class{classes_.back().bound * 0.5});
        size.push_back(0);
      }
      while (classes_[k + 1].bound >= weight_[i]) {
        ++k;
        if (k + 1 >= classes_.size()) {
          classes_.push_back(Class{classes_.back().bound * 0.5});
          size.push_back(0);
        }
      }
      clients_[i].class_number = static_cast<std::uint32_t>(k);
      ++size[k];
    }
    for (std::size_t k = 1; k < classes_.size(); ++k) {
      classes_[k].first = classes_[k - 1].first + size[k - 1];
    }
    sums_.assign(classes_.size() + 1, 0.0);
  }

  void make_guide(std::size_t n) {
    until_.resize(n);
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      sum += weight_[i];
      until_[i] = sum;
    }
    per_place_ = static_cast<double>(n) / sum;
    guide_.assign(n + 1, static_cast<std::uint32_t>(n - 1));
    std::size_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (; at <= guide_at(until_[i]); ++at) {
        guide_[at] = static_cast<std::uint32_t>(i);
      }
    }
  }
  std::size_t guide_at(double place) const {
    return std::min(static_cast<std::size_t>(place * per_place_), guide_.size() - 1);
  }

  void add_up() {
    double sum = 0.0;
    for (std::size_t k = classes_.size(); k-- > 0;) {
      sum += static_cast<double>(classes_[k].count) * classes_[k].bound;
      sums_[k] = sum;
    }
  }

  const double* weight_ = nullptr;
  LargeVector<Client> clients_;
  LargeVector<std::uint32_t> member_;  // the clients of each class that may be drawn, behind its first place
  std::size_t n_held_ = 0;
  std::vector<Class> classes_;        // the largest bound first
  std::vector<double> sums_;          // of bounds, from this class to the last
  LargeVector<double> until_;         // of the weights up to this client
  LargeVector<std::uint32_t> guide_;  // the first client that may be at a place of this part of all, of equal parts
  double per_place_ = 0.0;
};

}  // namespace fedbuff
