// The machine's limits: a loop of the level in force, repeated, and how long it took.
#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "bindings.hpp"
#include "kernels/dispatch.hpp"
#include "gil.hpp"
#include "numpy_views.hpp"

namespace fedbuff::bind {

namespace {

template <class Body>
double seconds_of(std::int64_t repeats, Body body) {
  const GilReleased released;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < repeats; ++i) {
    body();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class T>
double read_seconds(const std::vector<py::object>& streams, std::int64_t repeats) {
  std::vector<const T*> x;
  py::ssize_t dim = kAny;
  for (const py::object& stream : streams) {
    x.push_back(input<T>(stream, "streams", {dim}));
    dim = py::reinterpret_borrow<py::array>(stream).size();
  }
  volatile T kept = 0;
  return seconds_of(repeats,
                    [&] { kept = kernels().of<T>().limits.read(dim, static_cast<std::int64_t>(x.size()), x.data()); });
}

template <class T>
double write_seconds(const py::object& out, bool past_caches, std::int64_t repeats) {
  T* to = output<T>(out, "out", {kAny});
  const py::ssize_t dim = py::reinterpret_borrow<py::array>(out).size();
  return seconds_of(repeats, [&] { kernels().of<T>().limits.write(dim, T(1), past_caches, to); });
}

template <class T>
double copy_seconds(const py::object& x, const py::object& out, bool past_caches, std::int64_t repeats) {
  const T* from = input<T>(x, "x", {kAny});
  const py::ssize_t dim = py::reinterpret_borrow<py::array>(x).size();
  T* to = output<T>(out, "out", {dim});
  return seconds_of(repeats, [&] { kernels().of<T>().limits.copy(dim, from, past_caches, to); });
}

// Seconds and operations; how many operations a round has depends on the level.
template <class T>
std::pair<double, double> multiply_add_seconds(std::int64_t rounds) {
  const Limits<T>& limits = kernels().of<T>().limits;
  volatile T kept = 0;
  const double seconds = seconds_of(1, [&] { kept = limits.multiply_add(rounds, T(0.5), T(1)); });
  return {seconds, static_cast<double>(rounds) * static_cast<double>(limits.flops_per_round)};
}

// Seconds and additions, each of which takes a clock cycle.
std::pair<double, double> dependent_additions_seconds(std::int64_t rounds) {
  const Limits<float>& limits = kernels().of<float>().limits;
  volatile std::uint64_t kept = 0;
  const double seconds = seconds_of(1, [&] { kept = limits.dependent_additions(rounds, 3); });
  return {seconds, static_cast<double>(rounds) * static_cast<double>(limits.additions_per_round)};
}

template <class T>
void bind_dtype(py::module_& module, const std::string& suffix) {
  const auto named = [&suffix](const char* name) { return name + suffix; };
  module.def(named("read_seconds_").c_str(), &read_seconds<T>, py::arg("streams"), whole("repeats"));
  module.def(named("write_seconds_").c_str(), &write_seconds<T>, py::arg("out"), py::arg("past_caches"),
             whole("repeats"));
  module.def(named("copy_seconds_").c_str(), &copy_seconds<T>, py::arg("x"), py::arg("out"), py::arg("past_caches"),
             whole("repeats"));
  module.def(named("multiply_add_seconds_").c_str(), &multiply_add_seconds<T>, whole("rounds"));
  module.def(named("lanes_").c_str(), [] { return kernels().of<T>().limits.lanes; });
}

}  // namespace

void bind_limits(py::module_& module) {
  bind_dtype<float>(module, "f32");
  bind_dtype<double>(module, "f64");
  module.def("dependent_additions_seconds", &dependent_additions_seconds, py::arg("rounds"));
}

}  // namespace fedbuff::bind
