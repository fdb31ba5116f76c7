#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace fedbuff::bind {

// Raises what the handler of a signal raises; with the GIL held or not. Long calls do this several times a second.
inline void hear_signals() {
  const pybind11::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

// An argument that takes an int only: floats are refused, not truncated.
inline pybind11::arg whole(const char* name) { return std::move(pybind11::arg(name).noconvert()); }

void bind_random(pybind11::module_& module);
void bind_schedule(pybind11::module_& module);
void bind_check_schedule(pybind11::module_& module);
void bind_problem(pybind11::module_& module);
void bind_aggregate(pybind11::module_& module);
void bind_limits(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_packed(pybind11::module_& module);

}  // namespace fedbuff::bind
