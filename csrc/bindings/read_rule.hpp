// A rule and local options, from Python to the core.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "clients/local_options.hpp"
#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"
#include "numpy_views.hpp"

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

// One task's numbers, of fedbuff.backends.spec.LocalSpec; its lr_factors are read where they lie.
inline LocalConfig read_local(const py::object& local) {
  const auto number = [&](const char* name) { return local.attr(name).cast<double>(); };
  const py::object factors = local.attr("lr_factors");
  const auto steps = local.attr("steps").cast<std::int64_t>();
  return {steps,
          number("lr"),
          number("momentum"),
          number("weight_decay"),
          number("prox"),
          py::len(factors) == 0 ? nullptr : input<double>(factors, "lr_factors", {kAny})};
}

template <class Number>
std::vector<Number> read_vector(const py::object& array, const char* name) {
  const Number* first = input<Number>(array, name, {kAny});
  return {first, first + py::len(array)};
}

// All clients' numbers, of fedbuff.backends.spec.LocalPlan.
inline LocalOptions read_options(const py::object& plan, std::int64_t n_clients, std::uint64_t seed) {
  const auto number = [&](const char* name) { return plan.attr(name).cast<double>(); };
  const auto check = [&](const auto& values, const char* name) {
    if (values.values().size() != 1 && values.values().size() != static_cast<std::size_t>(n_clients)) {
      throw py::value_error(std::string(name) + ": expected one number, or one per client");
    }
    return values;
  };
  const auto whole = [&](const char* name) {
    return check(ByClient<std::int64_t>(read_vector<std::int64_t>(plan.attr(name), name)), name);
  };
  LocalOptions options;
  options.steps = whole("steps");
  options.lr = check(ByClient<double>(read_vector<double>(plan.attr("lr"), "lr")), "lr");
  options.batch = whole("batch");
  options.steps_per_pass = whole("steps_per_pass");
  options.momentum = number("momentum");
  options.weight_decay = number("weight_decay");
  options.prox = number("prox");
  const py::object rate = plan.attr("version_rate");
  if (!rate.is_none()) {
    const py::dict fields = rate.attr("fields")();
    const auto of = [&](const char* name) { return fields[name].cast<double>(); };
    options.by_version = true;
    options.version_rate = {rate.attr("lr").cast<double>(),
                            static_cast<Decay>(fields["decay"].cast<std::int32_t>()),
                            fields["decay_steps"].cast<std::int64_t>(),
                            of("decay_factor"),
                            of("decay_floor"),
                            fields["warm_up"].cast<std::int64_t>()};
  }
  options.lr_factors = read_vector<double>(plan.attr("lr_factors"), "lr_factors");
  options.seed = seed;
  return options;
}

}  // namespace fedbuff::bind
