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
// the first one after it. If max_wait is too small to be added to `now`, every time is a tick.
inline double next_tick(double base, double max_wait, double now, bool passed) {
  if (now + max_wait == now) {
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
    const auto n = static_cast<std::size_t>(trigger == Trigger::Buffer ? 0 : n_clients);
    clients_.assign(n, {});
  }

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

 private:
  struct Client {
    std::int64_t count = 0;        // arrivals in this round,
    std::int64_t round = -1;       // if this is its number
    std::int64_t stepped_in = -1;  // Ringleader: the last round in which the client made a step
  };

  void hear(std::uint32_t client) {
    Client& heard = clients_[client];
    if (heard.round != round_) {
      heard.round = round_;
      heard.count = 1;
      ++n_heard_;
      inverses_ += 1.0;
    } else {
      const std::int64_t count = ++heard.count;
      inverses_ -= 1.0 / (static_cast<double>(count) * static_cast<double>(count - 1));
    }
  }
  // Whether the harmonic mean over clients of their arrivals in this round is per_client or more.
  bool all_are_heard() const {
    return n_heard_ == n_clients_ && inverses_ * per_client_ <= static_cast<double>(n_clients_) * kMeanSlack;
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
  std::vector<Client> clients_;
};

}  // namespace fedbuff
