// fedbuff._core: whole-chunk work for Python. One bind_<topic>.cpp for each topic.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Compiled kernels of fedbuff. Private: use the names in fedbuff.";
  fedbuff::bind::bind_random(module);
  fedbuff::bind::bind_schedule(module);
  fedbuff::bind::bind_check_schedule(module);
  fedbuff::bind::bind_problem(module);
  fedbuff::bind::bind_aggregate(module);
  fedbuff::bind::bind_limits(module);
  fedbuff::bind::bind_replay(module);
  fedbuff::bind::bind_packed(module);
}
