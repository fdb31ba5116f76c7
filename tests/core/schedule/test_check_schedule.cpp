// The check of schedules from elsewhere: what it finds, and that chunks count as the whole.
#include "check.hpp"
#include "schedule/check_schedule.hpp"

namespace {

using fedbuff::CheckedColumns;
using fedbuff::ScheduleCheck;
using fedbuff::ScheduleFault;

// Two clients, one arrival a step: client i % 2 arrives at i + 1, on the version there was at its start.
struct Columns {
  std::vector<std::int32_t> client;
  std::vector<std::int64_t> version, step, staleness, started;
  std::vector<double> arrive;
  std::vector<std::uint8_t> status;

  explicit Columns(std::int64_t n_steps) {
    for (std::int64_t i = 0; i < n_steps; ++i) {
      client.push_back(static_cast<std::int32_t>(i % 2));
      version.push_back(std::max<std::int64_t>(0, i - 1));
      step.push_back(i);
      staleness.push_back(i - version.back());
      arrive.push_back(static_cast<double>(i + 1));
      status.push_back(0);
      started.push_back(i + 1 < n_steps - 1 ? 1 : 0);
    }
  }

  CheckedColumns part(std::size_t begin, std::size_t end) const {
    CheckedColumns c;
    c.n_clients = 2;
    c.first_step = static_cast<std::int64_t>(begin);
    c.started_on_first = begin == 0 ? 2 : started[begin - 1];
    c.n_rows = c.n_steps = static_cast<std::int64_t>(end - begin);
    c.client = client.data() + begin;
    c.version = version.data() + begin;
    c.step = step.data() + begin;
    c.staleness = staleness.data() + begin;
    c.arrive_time = arrive.data() + begin;
    c.status = status.data() + begin;
    c.step_time = arrive.data() + begin;
    c.step_started = started.data() + begin;
    return c;
  }
};

TEST(check_schedule_passes_whole_and_in_chunks) {
  const Columns columns(20);
  for (const std::size_t size : {1U, 3U, 20U}) {
    ScheduleCheck check;
    for (std::size_t begin = 0; begin < 20; begin += size) {
      CHECK(check.add(columns.part(begin, std::min<std::size_t>(20, begin + size))).fault == ScheduleFault::None);
    }
  }
}

TEST(check_schedule_finds_faults_and_forgets_the_chunk) {
  const auto fault_of = [](const Columns& columns, std::int64_t index) {
    ScheduleCheck check;
    CHECK(check.add(columns.part(0, 10)).fault == ScheduleFault::None);
    const fedbuff::FoundFault found = check.add(columns.part(10, 20));
    CHECK_EQ(found.index, index);
    CHECK_EQ(check.n_chunks(), 1);
    CHECK(check.add(Columns(20).part(10, 20)).fault == ScheduleFault::None);  // the right one can still come
    return found.fault;
  };
  Columns columns(20);
  columns.client[15] = -1;
  CHECK(fault_of(columns, 5) == ScheduleFault::Client);
  columns = Columns(20);
  columns.step[15] = std::int64_t{1} << 40;
  CHECK(fault_of(columns, 5) == ScheduleFault::StepRange);
  columns = Columns(20);
  columns.staleness[15] = std::int64_t{1} << 40;
  CHECK(fault_of(columns, 5) == ScheduleFault::Staleness);
  columns = Columns(20);
  columns.version[15] = std::numeric_limits<std::int64_t>::max();
  CHECK(fault_of(columns, 5) == ScheduleFault::Staleness);
  columns = Columns(20);
  columns.version[15] = 12;  // on which the only task has ended
  columns.staleness[15] = 3;
  CHECK(fault_of(columns, 12) == ScheduleFault::Started);
  columns.version[15] = 2;  // ... in the chunk before
  columns.staleness[15] = 13;
  CHECK(fault_of(columns, 2) == ScheduleFault::Started);
  columns = Columns(20);
  columns.started[15] = std::numeric_limits<std::int64_t>::min();
  CHECK(fault_of(columns, 16) == ScheduleFault::Started);
}

}  // namespace
