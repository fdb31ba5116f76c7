// Problems: a problem's own work, with the GIL released around the core.
#include "bindings.hpp"
#include "bound_problem.hpp"

namespace fedbuff::bind {

namespace {

template <class T>
void bind_one(py::module_& module, const char* name) {
  using Bound = BoundProblem<T>;
  py::class_<Bound>(module, name)
      .def(py::init<py::object>(), py::arg("spec"))
      .def("local_sgd", &Bound::local_sgd, py::arg("local"), py::arg("w"), whole("client"), whole("task"),
           whole("seed"), whole("batch"), py::arg("rows").none(true), py::arg("delta_out"), py::arg("shift").none(true))
      .def("client_gradient", &Bound::client_gradient, whole("client"), py::arg("w"),
           py::arg("gradient_out").none(true))
      .def("gradient", &Bound::gradient, py::arg("w"), py::arg("gradient_out").none(true), whole("threads"))
      .def("count_correct", &Bound::count_correct, whole("begin"), whole("end"), py::arg("w"))
      .def("local_handle", &Bound::local_handle, py::arg("plan"), whole("seed"));
}

}  // namespace

void bind_problem(py::module_& module) {
  bind_one<float>(module, "ProblemF32");
  bind_one<double>(module, "ProblemF64");
}

}  // namespace fedbuff::bind
