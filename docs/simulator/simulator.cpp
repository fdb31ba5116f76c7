// The event loop of schedules for a browser, compiled by Emscripten: one call makes a schedule, and the page reads it
// where it lies. The bits are those of fb.schedule with the same numbers.
#include <emscripten/emscripten.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dispatch.hpp"
#include "kernels/level_includes.hpp"
#include "schedule/resolver.hpp"

// Of the portable level, the kernels of schedules alone: the others are most of the library.
namespace fedbuff {

namespace baseline {

#include "kernels/level/arithmetic.inl"
#include "kernels/level/simd_baseline.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_baseline.hpp"
#include "kernels/level/schedule.inl"

const KernelTable table = {"baseline", {}, {}, make_schedule_kernels()};

}  // namespace baseline

const KernelTable& kernels() { return baseline::table; }

}  // namespace fedbuff

namespace {

struct Rows {
  std::vector<std::int32_t> client;
  std::vector<std::uint32_t> task;
  std::vector<std::int64_t> version, step, staleness;
  std::vector<double> start_time, arrive_time;
  std::vector<std::uint8_t> status;
  std::vector<double> step_time;
  std::vector<std::int64_t> started, step_rows;
};

Rows rows;
std::vector<double> staleness;  // of used rows, as JavaScript reads numbers
std::int64_t n_rows = 0, n_steps = 0;
double time_of_end = 0;

void make_room(std::int64_t most_rows, std::int64_t most_steps) {
  const auto r = static_cast<std::size_t>(most_rows), s = static_cast<std::size_t>(most_steps);
  rows.client.resize(r), rows.task.resize(r), rows.version.resize(r), rows.step.resize(r), rows.staleness.resize(r);
  rows.start_time.resize(r), rows.arrive_time.resize(r), rows.status.resize(r);
  rows.step_time.resize(s), rows.started.resize(s), rows.step_rows.resize(s);
}

fedbuff::ScheduleColumns columns_from(std::int64_t row, std::int64_t step) {
  const auto r = static_cast<std::size_t>(row), s = static_cast<std::size_t>(step);
  fedbuff::ScheduleColumns out;
  out.n_rows = static_cast<std::int64_t>(rows.client.size()) - row;
  out.n_steps = static_cast<std::int64_t>(rows.step_time.size()) - step;
  out.client = rows.client.data() + r, out.task = rows.task.data() + r, out.version = rows.version.data() + r;
  out.step = rows.step.data() + r, out.staleness = rows.staleness.data() + r;
  out.start_time = rows.start_time.data() + r, out.arrive_time = rows.arrive_time.data() + r;
  out.status = rows.status.data() + r, out.step_time = rows.step_time.data() + s;
  out.started = rows.started.data() + s, out.step_rows = rows.step_rows.data() + s;
  return out;
}

}  // namespace

extern "C" {

// kind, a, b: the law of the compute time, as fb_law has it. Returns how many rows there are.
EMSCRIPTEN_KEEPALIVE int simulate(int n_clients, int concurrency, int buffer_size, int server_steps, std::uint32_t seed,
                                  int kind, double a, double b) {
  fedbuff::SchedulePlan plan;
  plan.mode = fedbuff::Mode::Pool;
  plan.n_clients = n_clients;
  plan.n_slots = concurrency;
  plan.seed = plan.model.seed = seed;
  plan.buffer_size = buffer_size;
  plan.server_steps = server_steps;
  plan.stall_limit = 10'000'000;
  plan.model.component[fedbuff::kCompute].kind = static_cast<fedbuff::DistributionKind>(kind);
  plan.model.component[fedbuff::kCompute].p[0] = a;
  plan.model.component[fedbuff::kCompute].p[1] = b;
  fedbuff::ScheduleResolver resolver(plan);
  make_room(std::int64_t{server_steps} * buffer_size + resolver.rows_needed() + 2, std::int64_t{server_steps} + 2);
  n_rows = n_steps = 0;
  for (bool more = true; more;) {
    const fedbuff::ChunkEnd part = resolver.run(columns_from(n_rows, n_steps));
    n_rows += part.n_rows;
    n_steps += part.n_steps;
    more = part.reason == fedbuff::StopReason::Full;
  }
  time_of_end = resolver.time();
  staleness.clear();
  for (std::int64_t i = 0; i < n_rows; ++i) {
    if (rows.status[static_cast<std::size_t>(i)] == static_cast<std::uint8_t>(fedbuff::TaskStatus::Used)) {
      staleness.push_back(static_cast<double>(rows.staleness[static_cast<std::size_t>(i)]));
    }
  }
  return static_cast<int>(n_rows);
}

EMSCRIPTEN_KEEPALIVE int steps() { return static_cast<int>(n_steps); }
EMSCRIPTEN_KEEPALIVE double end_time() { return time_of_end; }
EMSCRIPTEN_KEEPALIVE const std::int32_t* client() { return rows.client.data(); }
EMSCRIPTEN_KEEPALIVE const double* start_time() { return rows.start_time.data(); }
EMSCRIPTEN_KEEPALIVE const double* arrive_time() { return rows.arrive_time.data(); }
EMSCRIPTEN_KEEPALIVE const double* step_time() { return rows.step_time.data(); }
EMSCRIPTEN_KEEPALIVE int used() { return static_cast<int>(staleness.size()); }
EMSCRIPTEN_KEEPALIVE const double* used_staleness() { return staleness.data(); }

}  // extern "C"
