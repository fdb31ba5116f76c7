// When the server steps although its buffer is not full, or not although it is: ticks, and which clients were heard.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/plan.hpp"

namespace fedbuff {

// The first tick, base + k max_wait with k = 1, 2, ..., that is not before `now`; if the tick at `now` has `passed`,
// the first one after it. If max_wait is too small to be added to `now`, or for k to be counted, every time is a tick.
inline double next_tick(double base, double max_wait, double now, bool passed) {
  constexpr double kMostTicks = 4503599627370496.0;  // 2^52
  if (now + max_wait == now || (now - base) / max_wait >= kMostTicks) {
    return now;
  }
  double k = std::max(1.0, std::floor((now - base) / max_wait) - 1.0);
  while (base + k * max_wait < now || (passed && base + k * max_wait == now)) {
    k += 1.0;
  }
  return base + k * max_wait;
}

// Which clients were heard, for the triggers that ask for all of them.
class Hearing {
 public:
  Hearing(Trigger trigger, std::int64_t n_clients, double per_client)
      : trigger_(trigger), n_clients_(n_clients), per_client_(per_client) {
    clients_.assign(static_cast<std::size_t>(trigger == Trigger::Buffer ? 0 : n_clients), Heard{});
  }

  // What is known of one client.
  struct Heard {
    std::int64_t count = 0;        // arrivals in this round,
    std::int64_t round = -1;       // if this is its number
    std::int64_t stepped_in = -1;  // Ringleader: the last round in which the client made a step
  };
  const Heard* clients() const { return clients_.data(); }  // null where the trigger asks for none

  // An arrival enters a buffer that holds `fill` with it; whether the server steps.
  bool enter(std::uint32_t client, std::int64_t fill, std::int64_t buffer_size) {
    if (trigger_ == Trigger::EveryClient) {
      hear(client);
      return fill >= buffer_size && all_are_heard();
    }
    // Phase one ends, without a step, when all are heard. In phase two each client's next arrival makes a step.
    const bool steps = n_to_step_ > 0 && clients_[client].stepped_in != round_;
    if (steps) {
      clients_[client].stepped_in = round_;
      --n_to_step_;
    } else {
      hear(client);
    }
    if (n_to_step_ == 0 && all_are_heard()) {
      n_to_step_ = n_clients_;
      new_round();
    }
    return steps;
  }
  void on_step() {
    if (trigger_ == Trigger::EveryClient) {
      new_round();
    }
  }

  // Whether `enter` would say so.
  bool would_step(std::uint32_t client, std::int64_t fill, std::int64_t buffer_size) const {
    if (trigger_ == Trigger::Ringleader) {
      return n_to_step_ > 0 && clients_[client].stepped_in != round_;
    }
    const bool first = clients_[client].round != round_;
    const double inverses = first ? inverses_ + 1.0 : inverses_ - lost_inverse(clients_[client].count + 1);
    return fill >= buffer_size && are_heard(n_heard_ + (first ? 1 : 0), inverses);
  }

  // The arrivals of each client in this round; and 1 where its next arrival makes a step, else 0.
  std::vector<std::int64_t> heard() const {
    std::vector<std::int64_t> counts(clients_.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = clients_[i].round == round_ ? clients_[i].count : 0;
    }
    return counts;
  }
  std::vector<std::int64_t> to_step() const {
    std::vector<std::int64_t> flags(trigger_ == Trigger::Ringleader ? clients_.size() : 0);
    for (std::size_t i = 0; i < flags.size(); ++i) {
      flags[i] = n_to_step_ > 0 && clients_[i].stepped_in != round_ ? 1 : 0;
    }
    return flags;
  }
  // What these two gave. The sum of inverses may differ in its last bits, of which no decision is made (kMeanSlack).
  void restore_heard(const std::int64_t* counts) {
    n_heard_ = 0;
    inverses_ = 0.0;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      clients_[i].round = -1;
      if (counts[i] > 0) {
        hear(static_cast<std::uint32_t>(i));
        clients_[i].count = counts[i];
        inverses_ += 1.0 / static_cast<double>(counts[i]) - 1.0;
      }
    }
  }
  void restore_to_step(const std::int64_t* flags) {
    n_to_step_ = 0;
    for (std::size_t i = 0; i < (trigger_ == Trigger::Ringleader ? clients_.size() : 0); ++i) {
      clients_[i].stepped_in = flags[i] != 0 ? -1 : round_;
      n_to_step_ += flags[i] != 0 ? 1 : 0;
    }
  }
  std::int64_t round() const { return round_; }

 private:
  static double lost_inverse(std::int64_t count) {
    return 1.0 / (static_cast<double>(count) * static_cast<double>(count - 1));
  }
  void hear(std::uint32_t client) {
    Heard& it = clients_[client];
    if (it.round != round_) {
      it.round = round_;
      it.count = 1;
      ++n_heard_;
      inverses_ += 1.0;
    } else {
      inverses_ -= lost_inverse(++it.count);
    }
  }
  // Whether the harmonic mean over clients of their arrivals in this round is per_client or more.
  bool all_are_heard() const { return are_heard(n_heard_, inverses_); }
  bool are_heard(std::int64_t n_heard, double inverses) const {
    return n_heard == n_clients_ && inverses * per_client_ <= static_cast<double>(n_clients_) * kMeanSlack;
  }
  void new_round() {
    ++round_;
    n_heard_ = 0;
    inverses_ = 0.0;
  }

  static constexpr double kMeanSlack = 1.0 + 1e-9;  // of the mean, whose sum is kept in doubles
  Trigger trigger_;
  std::int64_t n_clients_;
  double per_client_;
  std::int64_t round_ = 0;
  std::int64_t n_heard_ = 0;
  std::int64_t n_to_step_ = 0;  // Ringleader: clients without their step in this round's second phase
  double inverses_ = 0.0;       // sum over the clients heard of 1 / arrivals
  std::vector<Heard> clients_;
};

}  // namespace fedbuff
