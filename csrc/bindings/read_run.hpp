// What a run evaluates and where it stops, read from Python.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "bindings.hpp"
#include "replay/run.hpp"

namespace fedbuff::bind {

// The fields of fedbuff.Stop; None is no limit.
inline RunLimits read_limits(const py::object& stop) {
  RunLimits limits;
  if (stop.is_none()) {
    return limits;
  }
  const auto read = [&](const char* name, auto& limit) {
    const py::object value = stop.attr(name);
    if (!value.is_none()) {
      limit = value.cast<std::decay_t<decltype(limit)>>();
    }
  };
  read("server_steps", limits.server_steps);
  read("time", limits.time);
  read("updates", limits.updates);
  read("loss", limits.loss);
  read("grad_norm_sq", limits.grad_norm_sq);
  read("accuracy", limits.accuracy);
  return limits;
}

inline std::vector<RunMetric> read_metrics(const std::vector<std::string>& names) {
  constexpr const char* kNames[] = {"loss", "grad_norm_sq", "accuracy", "distance", "step_norm"};
  std::vector<RunMetric> metrics;
  for (const std::string& name : names) {
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) {
      throw py::value_error("metrics: unknown value '" + name + "'");
    }
    metrics.push_back(static_cast<RunMetric>(found - std::begin(kNames)));
  }
  return metrics;
}

}  // namespace fedbuff::bind
