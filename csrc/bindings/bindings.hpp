#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace fedbuff::bind {

// An argument that is an int: nothing else is cut to one.
inline pybind11::arg whole(const char* name) { return std::move(pybind11::arg(name).noconvert()); }

void bind_random(pybind11::module_& module);
void bind_schedule(pybind11::module_& module);
void bind_problem(pybind11::module_& module);
void bind_aggregate(pybind11::module_& module);
void bind_limits(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_packed(pybind11::module_& module);

}  // namespace fedbuff::bind
