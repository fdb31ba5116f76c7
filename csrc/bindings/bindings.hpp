#pragma once

#include <pybind11/pybind11.h>

namespace fedbuff::bind {

void bind_random(pybind11::module_& module);
void bind_schedule(pybind11::module_& module);
void bind_check_schedule(pybind11::module_& module);
void bind_problem(pybind11::module_& module);
void bind_aggregate(pybind11::module_& module);
void bind_limits(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_packed(pybind11::module_& module);

}  // namespace fedbuff::bind
