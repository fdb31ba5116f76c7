// Checks of schedules that come from elsewhere.
#include <utility>

#include "bindings.hpp"
#include "schedule/check_schedule.hpp"
#include "numpy_views.hpp"

namespace fedbuff::bind {

namespace {

// The attributes of fedbuff.Schedule, or of anything with the same names; arrays are C-contiguous.
CheckedColumns read_checked(const py::object& chunk) {
  const py::ssize_t rows = py::len(chunk.attr("client"));
  const py::ssize_t steps = py::len(chunk.attr("step_time"));
  const py::ssize_t flying = py::len(chunk.attr("in_flight_client"));
  CheckedColumns c;
  c.n_clients = chunk.attr("n_clients").cast<std::int64_t>();
  c.first_step = chunk.attr("first_step").cast<std::int64_t>();
  c.started_on_first = chunk.attr("started_on_0").cast<std::int64_t>();
  if (c.n_clients < 0 || c.first_step < 0 || c.started_on_first < 0) {
    throw py::value_error("n_clients, first_step and started_on_0: expected no negative number");
  }
  c.n_rows = rows;
  c.client = input<std::int32_t>(chunk.attr("client"), "client", {rows});
  c.version = input<std::int64_t>(chunk.attr("version"), "version", {rows});
  c.step = input<std::int64_t>(chunk.attr("step"), "step", {rows});
  c.staleness = input<std::int64_t>(chunk.attr("staleness"), "staleness", {rows});
  c.arrive_time = input<double>(chunk.attr("arrive_time"), "arrive_time", {rows});
  c.status = input<std::uint8_t>(chunk.attr("status"), "status", {rows});
  c.n_steps = steps;
  c.step_time = input<double>(chunk.attr("step_time"), "step_time", {steps});
  c.step_started = input<std::int64_t>(chunk.attr("step_started"), "step_started", {steps});
  c.n_flying = flying;
  c.flying_client = input<std::int32_t>(chunk.attr("in_flight_client"), "in_flight_client", {flying});
  c.flying_version = input<std::int64_t>(chunk.attr("in_flight_version"), "in_flight_version", {flying});
  return c;
}

// (fault, index): a number of ScheduleFault, 0 for none.
std::pair<int, std::int64_t> add(ScheduleCheck& check, const py::object& chunk) {
  const CheckedColumns columns = read_checked(chunk);
  FoundFault found;
  {
    const py::gil_scoped_release released;
    found = check.add(columns);
  }
  return {static_cast<int>(found.fault), found.index};
}

}  // namespace

void bind_check_schedule(py::module_& module) {
  py::class_<ScheduleCheck>(module, "ScheduleCheck")
      .def(py::init<>())
      .def("add", &add, py::arg("chunk"))
      .def_property_readonly("n_chunks", &ScheduleCheck::n_chunks);
}

}  // namespace fedbuff::bind
