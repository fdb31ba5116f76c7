// Whole runs for Python, many to a crossing: the GIL is released once for all of them.
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "bound_problem.hpp"
#include "gil.hpp"
#include "numpy_views.hpp"
#include "replay/packed_runs.hpp"
#include "read_plan.hpp"
#include "read_rule.hpp"
#include "read_run.hpp"

namespace fedbuff::bind {

namespace {

// The Python exception that an exception would become at the end of a bound function.
py::object translated(const std::exception_ptr& error) {
  if (error == nullptr) {
    return py::none();
  }
  try {
    py::cpp_function([&] { std::rethrow_exception(error); })();
  } catch (const py::error_already_set& raised) {
    return raised.value();
  }
  return py::none();
}

template <class T>
class BoundArm {
 public:
  BoundArm(const py::object& rule, BoundProblem<T>& problem, BoundProblem<T>* held_out, const py::object& local,
           const py::object& s, const py::object& e, std::int64_t window_bytes, std::int64_t eval_every,
           const std::vector<std::string>& metrics, const py::object& stop) {
    const py::ssize_t n = problem.problem().n_clients;
    arm_.rule = read_rule(rule);
    arm_.problem = &problem.workspace();
    arm_.held_out = held_out == nullptr ? nullptr : &held_out->workspace();
    arm_.local = read_options(local, n, 0);
    arm_.s = input<double>(s, "s", {kAny});
    arm_.n_s = py::len(s);
    arm_.e = input<double>(e, "e", {n});
    arm_.window_bytes = window_bytes;
    arm_.eval_every = eval_every;
    arm_.metrics = read_metrics(metrics);
    arm_.limits = read_limits(stop);
  }

  const PackedArm<T>& arm() const { return arm_; }

 private:
  PackedArm<T> arm_;
};

// The memory of a thread's runs; one thread at a time may use it.
class BoundRuns {
 public:
  BoundRuns(int threads, const py::object& cancel) : runs_(threads, input<std::uint8_t>(cancel, "cancel", {1})) {}
  PackedRuns& core() { return runs_; }

 private:
  PackedRuns runs_;
};

// Runs of several arms along each of several plans: for each, (what, end, version, updates, staleness, time, seconds,
// w, history, error), in the order of the plans and then of their arms. `w0` has a row per plan.
template <class T>
py::list run_all(BoundRuns& runs, const std::vector<py::object>& plans, std::int64_t expected_rows,
                 const py::object& w0, const std::vector<std::vector<const BoundArm<T>*>>& arms) {
  const auto n = static_cast<py::ssize_t>(plans.size());
  if (arms.size() != plans.size()) {
    throw py::value_error("arms: expected a list for every plan");
  }
  const T* starts = input<T>(w0, "w0", {n, kAny});
  const py::ssize_t dim = py::reinterpret_borrow<py::array>(w0).shape(1);
  std::vector<SchedulePlan> read;
  std::vector<std::vector<const PackedArm<T>*>> packed(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    read.push_back(read_plan(plans[i]));
    for (const BoundArm<T>* one : arms[i]) {
      if (one == nullptr) {
        throw py::value_error("arms: None is not an arm");
      }
      const Problem<T>& problem = one->arm().problem->problem();
      if (problem.dim != dim || problem.n_clients != read[i].n_clients) {
        throw py::value_error("arms: their problem has other clients than the plan, or another size than w0");
      }
      packed[i].push_back(&one->arm());
    }
  }
  std::vector<std::vector<PackedResult<T>>> results;
  {
    const GilReleased released;
    for (std::size_t i = 0; i < read.size(); ++i) {
      results.push_back(
          runs.core().run<T>(read[i], expected_rows, starts + static_cast<py::ssize_t>(i) * dim, packed[i]));
    }
  }
  py::list made;
  for (const auto& of_plan : results) {
    for (const PackedResult<T>& r : of_plan) {
      const py::ssize_t columns = r.n_columns;
      const py::ssize_t rows = columns == 0 ? 0 : static_cast<py::ssize_t>(r.history.size()) / columns;
      made.append(py::make_tuple(static_cast<int>(r.what), static_cast<int>(r.end), r.version, r.updates, r.staleness,
                                 r.time, r.seconds, py::array_t<T>(static_cast<py::ssize_t>(r.w.size()), r.w.data()),
                                 py::array_t<double>({rows, columns}, r.history.data()), translated(r.error)));
    }
  }
  return made;
}

template <class T>
void bind_arm(py::module_& module, const char* name) {
  using Bound = BoundArm<T>;
  py::class_<Bound>(module, name)
      .def(
          py::init<const py::object&, BoundProblem<T>&, BoundProblem<T>*, const py::object&, const py::object&,
                   const py::object&, std::int64_t, std::int64_t, const std::vector<std::string>&, const py::object&>(),
          py::arg("rule"), py::arg("problem"), py::arg("held_out").none(true), py::arg("local"), py::arg("s"),
          py::arg("e"), whole("window_bytes"), whole("eval_every"), py::arg("metrics"), py::arg("stop").none(true),
          py::keep_alive<1, 3>(), py::keep_alive<1, 4>(), py::keep_alive<1, 6>(), py::keep_alive<1, 7>());
}

}  // namespace

void bind_packed(py::module_& module) {
  bind_arm<float>(module, "PackedArmF32");
  bind_arm<double>(module, "PackedArmF64");
  py::class_<BoundRuns>(module, "PackedRuns")
      .def(py::init<int, const py::object&>(), whole("threads"), py::arg("cancel"), py::keep_alive<1, 3>())
      .def("run_f32", &run_all<float>, py::arg("plans"), py::arg("expected_rows"), py::arg("w0"), py::arg("arms"))
      .def("run_f64", &run_all<double>, py::arg("plans"), py::arg("expected_rows"), py::arg("w0"), py::arg("arms"));
}

}  // namespace fedbuff::bind
