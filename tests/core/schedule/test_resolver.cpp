// The event loop of schedules: rows worked out by hand, ends, and the same rows for any sizes of columns and any level.
#include "schedule/resolver.hpp"

#include "check.hpp"
#include "kernels/dispatch.hpp"

using namespace fedbuff;

namespace {

struct Rows {
  std::vector<std::int32_t> client;
  std::vector<std::uint32_t> task;
  std::vector<std::int64_t> version, step, staleness, started, step_rows;
  std::vector<double> start, arrive, step_time;
  std::vector<std::uint8_t> status;
  StopReason reason = StopReason::Full;
  double time = 0;
  std::vector<TaskInFlight> in_flight;

  bool operator==(const Rows& other) const {
    return client == other.client && task == other.task && version == other.version && step == other.step &&
           staleness == other.staleness && started == other.started && step_rows == other.step_rows &&
           start == other.start && arrive == other.arrive && step_time == other.step_time && status == other.status &&
           reason == other.reason && time == other.time;
  }
};

template <class T>
T* grow(std::vector<T>& column, std::int64_t n) {
  column.resize(column.size() + static_cast<std::size_t>(n));
  return column.data() + column.size() - static_cast<std::size_t>(n);
}
template <class T>
void shrink(std::vector<T>& column, std::int64_t n) {
  column.resize(column.size() - static_cast<std::size_t>(n));
}

// Runs to the end, in columns of so many rows more than are needed.
Rows resolve(const SchedulePlan& plan, std::int64_t more_rows = 1000, std::int64_t n_steps = 500) {
  ScheduleResolver resolver(plan);
  Rows rows;
  for (;;) {
    ScheduleColumns out;
    out.n_rows = resolver.rows_needed() + more_rows;
    out.n_steps = n_steps;
    out.client = grow(rows.client, out.n_rows);
    out.task = grow(rows.task, out.n_rows);
    out.version = grow(rows.version, out.n_rows);
    out.step = grow(rows.step, out.n_rows);
    out.staleness = grow(rows.staleness, out.n_rows);
    out.start_time = grow(rows.start, out.n_rows);
    out.arrive_time = grow(rows.arrive, out.n_rows);
    out.status = grow(rows.status, out.n_rows);
    out.step_time = grow(rows.step_time, out.n_steps);
    out.started = grow(rows.started, out.n_steps);
    out.step_rows = grow(rows.step_rows, out.n_steps);
    const ChunkEnd end = resolver.run(out);
    const std::int64_t rows_left = out.n_rows - end.n_rows, steps_left = out.n_steps - end.n_steps;
    shrink(rows.client, rows_left);
    shrink(rows.task, rows_left);
    shrink(rows.version, rows_left);
    shrink(rows.step, rows_left);
    shrink(rows.staleness, rows_left);
    shrink(rows.start, rows_left);
    shrink(rows.arrive, rows_left);
    shrink(rows.status, rows_left);
    shrink(rows.step_time, steps_left);
    shrink(rows.started, steps_left);
    shrink(rows.step_rows, steps_left);
    if (end.reason != StopReason::Full) {
      rows.reason = end.reason;
      rows.time = resolver.time();
      rows.in_flight = resolver.in_flight();
      return rows;
    }
  }
}

// Two clients, always at work, that need 1 and 2.5 seconds for a task.
struct TwoSpeeds {
  std::vector<double> speed = {1.0, 2.5};
  SchedulePlan plan;
  TwoSpeeds() {
    plan.mode = Mode::SlotIsClient;
    plan.n_clients = plan.n_slots = 2;
    plan.model.component[kCompute].p[0] = 1.0;
    plan.model.speed = speed.data();
    plan.buffer_size = 2;
    plan.stall_limit = 1000;
  }
};

SchedulePlan exponential_pool(std::int64_t n_clients, std::int64_t n_slots) {
  SchedulePlan plan;
  plan.n_clients = n_clients;
  plan.n_slots = n_slots;
  plan.seed = plan.model.seed = 6;
  plan.model.component[kCompute].kind = DistributionKind::Exponential;
  plan.model.component[kCompute].p[0] = 1.0;
  plan.buffer_size = 3;
  plan.stall_limit = 1000;
  return plan;
}

}  // namespace

TEST(resolver_two_speeds_by_hand) {
  TwoSpeeds two;
  two.plan.server_steps = 3;
  const Rows rows = resolve(two.plan);
  // Client 0 arrives at 1, 2, 3, 4; client 1 at 2.5 and 5, before client 0's fifth task, which began later.
  CHECK(rows.client == std::vector<std::int32_t>({0, 0, 1, 0, 0, 1}));
  CHECK(rows.task == std::vector<std::uint32_t>({0, 1, 0, 2, 3, 1}));
  CHECK(rows.start == std::vector<double>({0, 1, 0, 2, 3, 2.5}));
  CHECK(rows.arrive == std::vector<double>({1, 2, 2.5, 3, 4, 5}));
  CHECK(rows.version == std::vector<std::int64_t>({0, 0, 0, 1, 2, 1}));
  CHECK(rows.step == std::vector<std::int64_t>({0, 0, 1, 1, 2, 2}));
  CHECK(rows.staleness == std::vector<std::int64_t>({0, 0, 1, 0, 0, 1}));
  CHECK(rows.step_time == std::vector<double>({2, 3, 5}));
  CHECK(rows.step_rows == std::vector<std::int64_t>({2, 4, 6}));
  CHECK(rows.reason == StopReason::ServerSteps);
  for (const std::uint8_t status : rows.status) {
    CHECK(status == static_cast<std::uint8_t>(TaskStatus::Used));
  }
}

TEST(resolver_ends_where_it_is_told_to) {
  TwoSpeeds two;
  two.plan.max_time = 2.75;
  Rows rows = resolve(two.plan);
  CHECK(rows.reason == StopReason::MaxTime);
  CHECK(rows.arrive == std::vector<double>({1, 2, 2.5}));
  CHECK(rows.step_time == std::vector<double>({2}));
  CHECK_EQ(rows.step[2], 1);  // the step that would have been next: it is left in the buffer
  CHECK_EQ(rows.in_flight.size(), std::size_t{2});
  two.plan.max_time = std::numeric_limits<double>::infinity();
  two.plan.arrivals = 4;
  rows = resolve(two.plan);
  CHECK(rows.reason == StopReason::Arrivals);
  CHECK(rows.arrive == std::vector<double>({1, 2, 2.5, 3}));
  two.plan.arrivals = -1;
  two.plan.server_steps = 4;
  two.plan.max_staleness = 0;
  rows = resolve(two.plan);
  CHECK(rows.reason == StopReason::ServerSteps);
  CHECK(rows.status[2] == static_cast<std::uint8_t>(TaskStatus::TooStale) && rows.step[2] == -1);
}

TEST(resolver_gives_the_same_rows_in_any_columns_and_on_every_level) {
  for (const std::int64_t n_slots : {1, 40, 300, 2000}) {  // each kind of queue
    SchedulePlan plan = exponential_pool(5000, n_slots);
    plan.server_steps = 700;
    const Rows whole = resolve(plan, 10000, 1000);
    CHECK_EQ(whole.client.size(), std::size_t{2100});
    for (const std::int64_t more : {0, 1, 777}) {
      CHECK(resolve(plan, more, 2) == whole);
    }
    for (const char* const* level = available_levels(); *level != nullptr; ++level) {
      CHECK(force_level(*level));
      CHECK(resolve(plan, 10000, 1000) == whole);
    }
    CHECK(force_level(available_levels()[0]));
  }
}

// With C slots always at work: sum of staleness + ages of what is in flight = (C - 1) V.
TEST(resolver_staleness_identity) {
  for (const std::int64_t n_slots : {2, 9, 250}) {
    SchedulePlan plan = exponential_pool(1000, n_slots);
    plan.server_steps = 500;
    const Rows rows = resolve(plan);
    std::int64_t sum = 0;
    for (const std::int64_t one : rows.staleness) {
      sum += one;
    }
    for (const TaskInFlight& task : rows.in_flight) {
      sum += 500 - task.version;
    }
    CHECK_EQ(rows.in_flight.size(), static_cast<std::size_t>(n_slots - 1));  // the last arrival has not restarted
    CHECK_EQ(sum, (n_slots - 1) * 500);
  }
}
