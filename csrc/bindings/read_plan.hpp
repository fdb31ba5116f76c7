// A schedule's plan, from Python to the core.
#pragma once

#include <cstring>
#include <limits>
#include <utility>

#include "numpy_views.hpp"
#include "schedule/resolver.hpp"

namespace fedbuff::bind {

// Reads the plan's fields (fedbuff.backends.spec.Plan); the arrays stay those of the Python object.
class PlanReader {
 public:
  explicit PlanReader(const py::object& plan) : plan_(plan) {}

  template <class T>
  T number(const char* name) const {
    return plan_.attr(name).cast<T>();
  }
  template <class T>
  const T* array(const char* name, std::initializer_list<py::ssize_t> shape) const {
    return input<T>(plan_.attr(name), name, shape);
  }
  py::ssize_t length(const char* name) const { return py::len(plan_.attr(name)); }

 private:
  const py::object& plan_;
};

// The law at this place: wait, download, compute, upload or server.
inline Distribution read_law(const PlanReader& in, int i) {
  Distribution d;
  const auto* offsets = in.array<std::int64_t>("sample_offsets", {6});
  d.kind = static_cast<DistributionKind>(in.array<std::int64_t>("kinds", {5})[i]);
  std::memcpy(d.p, in.array<double>("params", {5, 4}) + 4 * i, sizeof d.p);
  d.samples = in.array<double>("samples", {kAny}) + offsets[i];
  d.n_samples = static_cast<std::uint64_t>(offsets[i + 1] - offsets[i]);
  return d;
}

inline SchedulePlan read_plan(const py::object& object) {
  const PlanReader in(object);
  SchedulePlan plan;
  plan.mode = static_cast<Mode>(in.number<int>("mode"));
  plan.n_clients = in.number<std::int64_t>("n_clients");
  plan.n_slots = in.number<std::int64_t>("n_slots");
  plan.seed = in.number<std::uint64_t>("seed_low") | in.number<std::uint64_t>("seed_high") << 32;
  plan.rate = in.number<double>("rate");
  plan.poisson = in.number<bool>("poisson");
  plan.if_busy = static_cast<IfBusy>(in.number<int>("if_busy"));
  plan.recorded = in.number<bool>("recorded");
  plan.uplink = in.number<double>("uplink");
  plan.needs_server = in.number<bool>("server_time");
  plan.server_time = read_law(in, 4);
  const py::ssize_t n = plan.n_clients;
  plan.selection = static_cast<Selection>(in.number<int>("selection"));
  if (plan.selection == Selection::Weighted) {
    plan.probability = in.array<double>("probability", {n});
  }
  plan.max_uses = in.number<std::int64_t>("max_uses");
  plan.queues = in.number<bool>("queues");
  if (plan.recorded) {
    const py::ssize_t rows = in.length("row_wait");
    plan.row_offsets = in.array<std::int64_t>("row_offsets", {n + 1});
    plan.row_wait = in.array<double>("row_wait", {rows});
    plan.row_duration = in.array<double>("row_duration", {rows});
    plan.row_ok = in.array<std::uint8_t>("row_ok", {rows});
    plan.wrap = in.number<bool>("wrap");
    if (plan.uplink < std::numeric_limits<double>::infinity()) {
      plan.row_upload = in.array<double>("row_upload", {rows});
    }
  } else {
    plan.model.seed = plan.seed;
    for (int i = 0; i < 4; ++i) {
      plan.model.component[i] = read_law(in, i);
    }
    if (plan.uplink < std::numeric_limits<double>::infinity()) {
      plan.upload = std::exchange(plan.model.component[kUpload], Distribution());
    }
    if (in.length("speed") > 0) {
      plan.model.speed = in.array<double>("speed", {n});
    }
  }
  plan.window_policy = static_cast<WindowPolicy>(in.number<int>("availability_policy"));
  if (plan.window_policy != WindowPolicy::None) {
    const py::ssize_t windows = in.length("window_begin");
    plan.window_offsets = in.array<std::int64_t>("window_offsets", {n + 1});
    plan.window_begin = in.array<double>("window_begin", {windows});
    plan.window_end = in.array<double>("window_end", {windows});
    if (in.length("period") > 0) {
      plan.period = in.array<double>("period", {n});
    }
  }
  plan.buffer_size = in.number<std::int64_t>("buffer_size");
  plan.max_staleness = in.number<std::int64_t>("max_staleness");
  plan.max_wait = in.number<double>("max_wait");
  plan.timeout = in.number<double>("timeout");
  plan.distinct_clients = in.number<bool>("distinct_clients");
  plan.trigger = static_cast<Trigger>(in.number<int>("trigger"));
  plan.per_client = in.number<double>("per_client");
  plan.step_period = in.number<double>("step_period");
  plan.refill = in.number<std::int64_t>("refill");
  plan.stop_stale = in.number<std::int64_t>("stop_stale");
  plan.restart = in.number<bool>("restart");
  plan.server_steps = in.number<std::int64_t>("server_steps");
  plan.max_time = in.number<double>("max_time");
  plan.arrivals = in.number<std::int64_t>("arrivals");
  plan.stall_limit = in.number<std::int64_t>("stall_limit");
  return plan;
}

}  // namespace fedbuff::bind
