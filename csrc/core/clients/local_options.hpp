// What LocalSGD is for every client: the numbers of a task, by its client and the version that it starts from.
#pragma once

#include <cstdint>
#include <vector>

#include "clients/compression.hpp"
#include "kernels/problem.hpp"
#include "numbers/learning_rate.hpp"

namespace fedbuff {

// A number of each client, or one of all.
template <class Number>
class ByClient {
 public:
  ByClient(Number all) : values_(1, all) {}
  explicit ByClient(std::vector<Number> values) : values_(std::move(values)) {}

  bool is_one() const { return values_.size() == 1; }
  const Number& operator[](std::int64_t client) const {
    return values_[is_one() ? 0 : static_cast<std::size_t>(client)];
  }
  const std::vector<Number>& values() const { return values_; }

 private:
  std::vector<Number> values_;  // one at least
};

// fb_method.
enum class Method : std::int32_t { Sgd = 0, Fednova = 1, Scaffold = 2, Feddyn = 3 };

struct LocalOptions {
  ByClient<std::int64_t> steps = 1;
  ByClient<double> lr = 0.0;
  ByClient<std::int64_t> batch = 0;           // 0 for all rows
  ByClient<std::int64_t> steps_per_pass = 0;  // 0: rows are drawn with replacement
  double momentum = 0;
  double weight_decay = 0;
  double prox = 0;
  bool by_version = false;  // whether lr is multiplied by version_rate
  LearningRate version_rate;
  std::vector<double> lr_factors;  // of local steps, for as many as any client makes; empty: 1
  ByClient<double> scale = 1.0;    // of deltas
  Method method = Method::Sgd;     // Feddyn: alpha is prox
  Compression compress;
  std::uint64_t seed = 0;

  LocalConfig config(std::int64_t client, std::int64_t version) const {
    return {steps[client], by_version ? lr[client] * version_rate.at(version) : lr[client],
            momentum,      weight_decay,
            prox,          lr_factors.empty() ? nullptr : lr_factors.data(),
            scale[client]};
  }
  Task task(std::int64_t client, std::uint32_t number) const {
    return {seed, client, number, batch[client], nullptr, steps_per_pass[client]};
  }
  // Whether tasks read and change a state of their client (control_variates.hpp, or what compression has left).
  bool has_control_variates() const { return method == Method::Scaffold || method == Method::Feddyn; }
  bool keeps_state() const { return has_control_variates() || compress.error_feedback; }
  CompressionKey compression_key(std::int64_t client, std::uint32_t task) const {
    return {seed, static_cast<std::uint32_t>(client), task};
  }
  // Whether config() is the same for all tasks.
  bool has_one_config() const { return steps.is_one() && lr.is_one() && scale.is_one() && !by_version; }
};

}  // namespace fedbuff
