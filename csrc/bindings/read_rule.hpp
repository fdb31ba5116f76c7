// A rule and local options, from Python to the core.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"

namespace fedbuff::bind {

namespace py = pybind11;

// The fields as Rule.c_fields gives them; what was too stale is not in the rows.
inline fb_rule read_rule(const py::object& rule) {
  const py::dict fields = rule.attr("c_fields")();
  const auto whole = [&](const char* name) { return fields[name].cast<std::int64_t>(); };
  const auto number = [&](const char* name) { return fields[name].cast<double>(); };
  fb_rule c = FB_RULE_INIT;
  c.base = static_cast<std::int32_t>(whole("base"));
  c.norm = static_cast<std::int32_t>(whole("norm"));
  c.optimizer = static_cast<std::int32_t>(whole("optimizer"));
  c.buffer_size = whole("buffer_size");
  c.n_clients = whole("n_clients");
  c.lr = number("lr");
  c.momentum = number("momentum");
  c.beta1 = number("beta1");
  c.beta2 = number("beta2");
  c.epsilon = number("epsilon");
  c.weight_decay = number("weight_decay");
  c.decay = static_cast<std::int32_t>(whole("decay"));
  c.delay_lr = static_cast<std::int32_t>(whole("delay_lr"));
  c.tau_c = whole("tau_c");
  c.warm_up = whole("warm_up");
  c.decay_steps = whole("decay_steps");
  c.decay_factor = number("decay_factor");
  c.decay_floor = number("decay_floor");
  c.period = whole("period");
  c.activation = number("activation");
  c.initial = number("initial");
  c.table = static_cast<std::int32_t>(whole("table"));
  c.table_seen = static_cast<std::int32_t>(whole("table_seen"));
  c.table_wait = static_cast<std::int32_t>(whole("table_wait"));
  c.weight_by = static_cast<std::int32_t>(whole("weight_by"));
  c.weight_epsilon = number("weight_epsilon");
  c.weight_clip = number("weight_clip");
  c.table_own = number("table_own");
  c.table_mean = number("table_mean");
  return c;
}

// The fields of fedbuff.backends.spec.LocalSpec.
inline LocalConfig read_local(const py::object& local) {
  const auto number = [&](const char* name) { return local.attr(name).cast<double>(); };
  return {local.attr("steps").cast<std::int64_t>(), number("lr"), number("momentum"), number("weight_decay"),
          number("prox")};
}

}  // namespace fedbuff::bind
