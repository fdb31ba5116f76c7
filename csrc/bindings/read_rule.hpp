// A rule and local options, from Python to the core.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"

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
       FB_FIELD(table_own), FB_FIELD(table_mean));
#undef FB_FIELD
  return c;
}

// The fields of fedbuff.backends.spec.LocalSpec.
inline LocalConfig read_local(const py::object& local) {
  const auto number = [&](const char* name) { return local.attr(name).cast<double>(); };
  return {local.attr("steps").cast<std::int64_t>(), number("lr"), number("momentum"), number("weight_decay"),
          number("prox")};
}

}  // namespace fedbuff::bind
