// The server's side of the kernels: the buffer and the step.
#include <pybind11/stl.h>

#include <vector>

#include "bindings.hpp"
#include "dispatch.hpp"
#include "numpy_views.hpp"

namespace fedbuff::bind {

namespace {

// Calls body with a null pointer of the array's dtype, float32 or float64.
template <class Body>
auto with_dtype_of(const py::object& array, const char* name, Body body) {
  if (py::isinstance<py::array>(array)) {
    const py::dtype dtype = py::reinterpret_borrow<py::array>(array).dtype();
    if (dtype.equal(py::dtype::of<float>())) {
      return body(static_cast<float*>(nullptr));
    }
    if (dtype.equal(py::dtype::of<double>())) {
      return body(static_cast<double*>(nullptr));
    }
  }
  throw py::type_error(std::string(name) + ": expected a NumPy array of float32 or float64");
}

py::ssize_t length(const py::object& array) { return py::reinterpret_borrow<py::array>(array).size(); }

bool accumulate(const py::object& total, const py::object& delta, double weight, const py::object& current,
                const py::object& start, const py::object& out) {
  return with_dtype_of(delta, "delta", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(delta);
    const T* sum = input<T>(total, "total", {dim});
    const T* add = input<T>(delta, "delta", {dim});
    const T* from = start.is_none() ? nullptr : input<T>(start, "start", {dim});
    const T* now = start.is_none() ? nullptr : input<T>(current, "current", {dim});
    T* to = output<T>(out, "out", {dim});
    const py::gil_scoped_release released;
    return kernels().of<T>().accumulate(dim, sum, add, static_cast<T>(weight), now, from, to);
  });
}

void aggregate(const py::object& w, const std::vector<py::object>& deltas, const py::object& weights, double scale,
               const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    const T* from = input<T>(w, "w", {dim});
    std::vector<const T*> delta;
    for (const py::object& one : deltas) {
      delta.push_back(input<T>(one, "deltas", {dim}));
    }
    const auto n = static_cast<py::ssize_t>(delta.size());
    const T* weight = input<T>(weights, "weights", {n});
    T* to = output<T>(out, "out", {dim});
    const py::gil_scoped_release released;
    kernels().of<T>().aggregate(dim, from, n, delta.data(), weight, static_cast<T>(scale), to);
  });
}

void sgd_step(const py::object& w, const py::object& total, double lr, double norm, double momentum,
              const py::object& velocity, const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    StepConfig config{};
    config.lr = lr;
    config.norm = norm;
    config.momentum = momentum;
    const T* from = input<T>(w, "w", {dim});
    const T* sum = input<T>(total, "total", {dim});
    T* moving = momentum == 0 ? nullptr : output<T>(velocity, "velocity", {dim});
    T* to = output<T>(out, "out", {dim});
    const py::gil_scoped_release released;
    kernels().of<T>().sgd_step(dim, from, sum, config, moving, to);
  });
}

void adam_step(const py::object& w, const py::object& total, double lr, double norm, std::pair<double, double> betas,
               double epsilon, double weight_decay, std::int64_t step, const py::object& first,
               const py::object& second, const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    const StepConfig config{lr, norm, 0, betas.first, betas.second, epsilon, weight_decay, step};
    const T* from = input<T>(w, "w", {dim});
    const T* sum = input<T>(total, "total", {dim});
    T* m = output<T>(first, "first", {dim});
    T* v = output<T>(second, "second", {dim});
    T* to = output<T>(out, "out", {dim});
    const py::gil_scoped_release released;
    kernels().of<T>().adam_step(dim, from, sum, config, m, v, to);
  });
}

double dot(const py::object& x, const py::object& y) {
  return with_dtype_of(x, "x", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(x);
    const T* a = input<T>(x, "x", {dim});
    const T* b = input<T>(y, "y", {dim});
    const py::gil_scoped_release released;
    return kernels().of<T>().dot(dim, a, b);
  });
}

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const char* const* name = available_levels(); *name != nullptr; ++name) {
    names.emplace_back(*name);
  }
  return names;
}

}  // namespace

void bind_aggregate(py::module_& module) {
  module.def("accumulate", &accumulate, py::arg("total"), py::arg("delta"), py::arg("weight"),
             py::arg("current").none(true), py::arg("start").none(true), py::arg("out"));
  module.def("aggregate", &aggregate, py::arg("w"), py::arg("deltas"), py::arg("weights"), py::arg("scale"),
             py::arg("out"));
  module.def("sgd_step", &sgd_step, py::arg("w"), py::arg("total"), py::arg("lr"), py::arg("norm"), py::arg("momentum"),
             py::arg("velocity").none(true), py::arg("out"));
  module.def("adam_step", &adam_step, py::arg("w"), py::arg("total"), py::arg("lr"), py::arg("norm"), py::arg("betas"),
             py::arg("epsilon"), py::arg("weight_decay"), py::arg("step"), py::arg("first"), py::arg("second"),
             py::arg("out"));
  module.def("dot", &dot, py::arg("x"), py::arg("y"));
  module.def("level", [] { return kernels().name; });
  module.def("available_levels", &levels);
  module.def("force_level", [](const std::string& name) { return force_level(name.c_str()); }, py::arg("name"));
}

}  // namespace fedbuff::bind
