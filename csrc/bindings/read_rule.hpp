// A rule and local options, from Python to the core.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
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
  fb_rule c = FB_RULE_INIT;
  const auto read = [&](auto... field) {
    ((*field.second = fields[field.first].template cast<std::decay_t<decltype(*field.second)>>()), ...);
  };
#define FB_FIELD(name) std::pair(#name, &c.name)
  read(FB_FIELD(base), FB_FIELD(norm), FB_FIELD(optimizer), FB_FIELD(buffer_size), FB_FIELD(n_clients), FB_FIELD(lr),
       FB_FIELD(momentum), FB_FIELD(beta1), FB_FIELD(beta2), FB_FIELD(epsilon), FB_FIELD(weight_decay), FB_FIELD(decay),
       FB_FIELD(delay_lr), FB_FIELD(tau_c), FB_FIELD(warm_up), FB_FIELD(decay_steps), FB_FIELD(decay_factor),
       FB_FIELD(decay_floor), FB_FIELD(period), FB_FIELD(activation), FB_FIELD(initial), FB_FIELD(table),
       FB_FIELD(table_seen), FB_FIELD(table_wait), FB_FIELD(weight_by), FB_FIELD(weight_epsilon), FB_FIELD(weight_clip),
       FB_FIELD(table_own), FB_FIELD(table_mean), FB_FIELD(table_keeps), FB_FIELD(trigger), FB_FIELD(per_client),
       FB_FIELD(weight_shared), FB_FIELD(hidden_levels), FB_FIELD(hidden_seed), FB_FIELD(stop_stale), FB_FIELD(control),
       FB_FIELD(control_pull));
#undef FB_FIELD
  const py::object own = rule.attr("own");
  if (!own.is_none()) {
    c.own_step = reinterpret_cast<fb_step_function>(own.attr("address").cast<std::uintptr_t>());
    c.own_context = reinterpret_cast<void*>(own.attr("context_address").cast<std::uintptr_t>());
    c.own_state = own.attr("n_state").cast<std::int64_t>();
  }
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
          py::len(factors) == 0 ? nullptr : input<double>(factors, "lr_factors", {kAny}),
          number("scale")};
}

template <class Number>
std::vector<Number> read_vector(const py::object& array, const char* name) {
  const Number* first = input<Number>(array, name, {kAny});
  return {first, first + py::len(array)};
}

// fedbuff.backends.spec.CompressNumbers, or None.
inline Compression read_compression(const py::object& numbers) {
  Compression how;
  if (!numbers.is_none()) {
    how.kind = static_cast<Compressor>(numbers.attr("kind").cast<std::int32_t>());
    how.kept = numbers.attr("kept").cast<std::int64_t>();
    how.levels = numbers.attr("levels").cast<double>();
    how.error_feedback = numbers.attr("feedback").cast<bool>();
  }
  return how;
}

inline Method read_method(const std::string& name) {
  return name == "scaffold"  ? Method::Scaffold
         : name == "feddyn"  ? Method::Feddyn
         : name == "fednova" ? Method::Fednova
                             : Method::Sgd;
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
  options.scale = check(ByClient<double>(read_vector<double>(plan.attr("scale"), "scale")), "scale");
  options.steps_per_pass = whole("steps_per_pass");
  options.momentum = number("momentum");
  options.weight_decay = number("weight_decay");
  options.prox = number("prox");
  options.method = read_method(plan.attr("method").cast<std::string>());
  options.compress = read_compression(plan.attr("compress"));
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
