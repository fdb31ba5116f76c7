#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "kernels/dispatch.hpp"
#include "numpy_views.hpp"
#include "read_plan.hpp"
#include "schedule/resolver.hpp"
#include "schedule/uniform_arrivals.hpp"

namespace fedbuff::bind {

namespace {

ScheduleColumns read_columns(const py::object& columns) {
  const py::ssize_t rows = py::len(columns.attr("client"));
  const py::ssize_t steps = py::len(columns.attr("step_time"));
  ScheduleColumns out;
  out.n_rows = rows;
  out.n_steps = steps;
  out.client = output<std::int32_t>(columns.attr("client"), "client", {rows});
  out.task = output<std::uint32_t>(columns.attr("task"), "task", {rows});
  out.version = output<std::int64_t>(columns.attr("version"), "version", {rows});
  out.step = output<std::int64_t>(columns.attr("step"), "step", {rows});
  out.staleness = output<std::int64_t>(columns.attr("staleness"), "staleness", {rows});
  out.start_time = output<double>(columns.attr("start_time"), "start_time", {rows});
  out.arrive_time = output<double>(columns.attr("arrive_time"), "arrive_time", {rows});
  out.status = output<std::uint8_t>(columns.attr("status"), "status", {rows});
  out.step_time = output<double>(columns.attr("step_time"), "step_time", {steps});
  out.started = output<std::int64_t>(columns.attr("started"), "started", {steps});
  out.step_rows = output<std::int64_t>(columns.attr("step_rows"), "step_rows", {steps});
  return out;
}

class Resolver {
 public:
  explicit Resolver(py::object plan) : plan_(std::move(plan)), resolver_(read_plan(plan_)) {}

  py::tuple run(const py::object& columns) {
    const ScheduleColumns out = read_columns(columns);
    ChunkEnd end{};
    {
      const GilReleased released;
      end = resolver_.run(out);
    }
    return py::make_tuple(end.n_rows, end.n_steps, static_cast<int>(end.reason));
  }

  // client, task, version, start_time
  py::tuple in_flight() const {
    const std::vector<TaskInFlight> tasks = resolver_.in_flight();
    const auto n = static_cast<py::ssize_t>(tasks.size());
    py::array_t<std::int32_t> client(n);
    py::array_t<std::uint32_t> task(n);
    py::array_t<std::int64_t> version(n);
    py::array_t<double> start_time(n);
    for (py::ssize_t i = 0; i < n; ++i) {
      const TaskInFlight& one = tasks[static_cast<std::size_t>(i)];
      client.mutable_at(i) = one.client;
      task.mutable_at(i) = one.task;
      version.mutable_at(i) = one.version;
      start_time.mutable_at(i) = one.start_time;
    }
    return py::make_tuple(client, task, version, start_time);
  }

  std::int64_t rows_needed() const { return resolver_.rows_needed(); }
  double time() const { return resolver_.time(); }
  std::int64_t started() const { return resolver_.started(); }

 private:
  py::object plan_;
  ScheduleResolver resolver_;
};

void bound_uniform_arrivals(std::int64_t n_clients, std::int64_t buffer_size, std::int64_t max_staleness, bool oldest,
                            std::uint64_t seed, const py::object& columns) {
  const ScheduleColumns out = read_columns(columns);
  if (n_clients < 1 || buffer_size < 1 || max_staleness < 0 || out.n_rows != out.n_steps * buffer_size) {
    throw py::value_error("columns: expected buffer_size rows for every step");
  }
  UniformArrivalsFill fill({n_clients, buffer_size, max_staleness, oldest, seed}, out);
  for (bool more = true; more;) {
    {
      const GilReleased released;
      more = fill.run();
    }
    hear_signals();
  }
}

// Draws of one component for clients and tasks, whole batches by the level in force and the rest one by one: what the
// tests compare with the other backends.
void draw_delays(const py::object& plan_object, int component, const py::object& client, const py::object& task,
                 const py::object& delay_out) {
  const SchedulePlan plan = read_plan(plan_object);
  const py::ssize_t n = py::len(client);
  const auto* c = input<std::uint32_t>(client, "client", {n});
  const auto* k = input<std::uint32_t>(task, "task", {n});
  auto* out = output<double>(delay_out, "delay_out", {n});
  const Distribution& law = plan.model.component[component];
  const auto part = static_cast<std::uint32_t>(component);
  py::ssize_t i = 0;
  for (; i + kDrawBatch <= n; i += kDrawBatch) {
    kernels().schedule.draw_law(law, plan.seed, c + i, k + i, part, out + i);
  }
  for (; i < n; ++i) {
    out[i] = draw(law, plan.seed, c[i], k[i], part);
  }
}

// log, exp, pow(x, 1.7), sin and cos (of 2 pi x): a row each.
void portable_math(const py::object& x, const py::object& values_out) {
  const py::ssize_t n = py::len(x);
  const auto* in = input<double>(x, "x", {n});
  auto* out = output<double>(values_out, "values_out", {5, n});
  for (py::ssize_t i = 0; i < n; ++i) {
    out[i] = portable::log(in[i]);
    out[n + i] = portable::exp(in[i]);
    out[2 * n + i] = portable::pow(in[i], 1.7);
    portable::sincos2pi(in[i], out[3 * n + i], out[4 * n + i]);
  }
}

}  // namespace

void bind_schedule(py::module_& module) {
  py::class_<Resolver>(module, "ScheduleResolver")
      .def(py::init<py::object>(), py::arg("plan"))
      .def("run", &Resolver::run, py::arg("columns"))
      .def("in_flight", &Resolver::in_flight)
      .def_property_readonly("rows_needed", &Resolver::rows_needed)
      .def_property_readonly("time", &Resolver::time)
      .def_property_readonly("started", &Resolver::started);
  module.def("uniform_arrivals", &bound_uniform_arrivals, whole("n_clients"), whole("buffer_size"),
             whole("max_staleness"), py::arg("oldest"), whole("seed"), py::arg("columns"));
  module.def("draw_delays", &draw_delays, py::arg("plan"), whole("component"), py::arg("client"), py::arg("task"),
             py::arg("delay_out"));
  module.def("portable_math", &portable_math, py::arg("x"), py::arg("values_out"));
}

}  // namespace fedbuff::bind
