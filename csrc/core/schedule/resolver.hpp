// The event loop that turns delays and a strategy into a schedule: who arrives when, on which version, in which step.
//
// The rules are those of fedbuff/backends/python/resolver.py, which gives the same rows. `run` fills the columns that
// it is given and returns why it stopped. Full means that the schedule goes on: call `run` again, with the rest of the
// columns or with new ones. The sizes of the columns do not change the rows. A call handles a bounded number of events,
// so that its caller can look for signals in between. Memory: O(clients + slots + windows); the rows belong to the
// caller. The arrays that a plan points to must outlive the resolver.
//
// Errors: std::length_error for more than 2^26 - 2 tasks in flight or 2^36 events; std::invalid_argument for columns
// without room. Cost of an event: O(1) touches of memory for the queues, and a draw of the delays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "export.hpp"
#include "schedule/availability_windows.hpp"
#include "schedule/delays.hpp"

namespace fedbuff {

enum class Mode : int { SlotIsClient, Pool, OpenLoop, Rounds };
enum class IfBusy : int { Redraw, Skip, Overlap };
enum class TaskStatus : std::uint8_t { Used, LeftInBuffer, TooStale, Discarded, TimedOut, Failed };
enum class StopReason : int { Full, ServerSteps, MaxTime, Arrivals, Exhausted, Stalled };

struct SchedulePlan {
  Mode mode = Mode::Pool;
  std::int64_t n_clients = 0;
  std::int64_t n_slots = 0;
  std::uint64_t seed = 0;
  double rate = 1.0;
  bool poisson = false;
  IfBusy if_busy = IfBusy::Redraw;

  bool recorded = false;
  DelayModel model;
  const std::int64_t* row_offsets = nullptr;  // (n_clients + 1,)
  const double* row_wait = nullptr;
  const double* row_duration = nullptr;
  const std::uint8_t* row_ok = nullptr;
  bool wrap = true;

  WindowPolicy window_policy = WindowPolicy::None;
  const std::int64_t* window_offsets = nullptr;  // (n_clients + 1,)
  const double* window_begin = nullptr;
  const double* window_end = nullptr;
  const double* period = nullptr;  // (n_clients,), or null where the windows do not repeat

  std::int64_t buffer_size = 1;
  std::int64_t max_staleness = -1;
  double max_wait = std::numeric_limits<double>::infinity();
  double timeout = std::numeric_limits<double>::infinity();
  bool distinct_clients = false;  // an arrival whose client is already in the buffer waits for the next buffer

  std::int64_t server_steps = -1;
  double max_time = std::numeric_limits<double>::infinity();
  std::int64_t arrivals = -1;
  std::int64_t stall_limit = 0;
};

struct ScheduleColumns {
  std::int64_t n_rows = 0;   // room for rows
  std::int64_t n_steps = 0;  // room for steps
  std::int32_t* client = nullptr;
  std::uint32_t* task = nullptr;
  std::int64_t* version = nullptr;
  std::int64_t* step = nullptr;
  std::int64_t* staleness = nullptr;
  double* start_time = nullptr;
  double* arrive_time = nullptr;
  std::uint8_t* status = nullptr;
  double* step_time = nullptr;
  std::int64_t* started = nullptr;    // tasks started on the version that this step ended
  std::int64_t* step_rows = nullptr;  // rows written when the step was made, over the whole run
};

struct ChunkEnd {
  std::int64_t n_rows;
  std::int64_t n_steps;
  StopReason reason;
};

struct TaskInFlight {
  std::int32_t client;
  std::uint32_t task;
  std::int64_t version;
  double start_time;
};

class EventLoop;

class FB_CORE_API ScheduleResolver {
 public:
  explicit ScheduleResolver(const SchedulePlan& plan);
  ~ScheduleResolver();
  ScheduleResolver(const ScheduleResolver&) = delete;
  ScheduleResolver& operator=(const ScheduleResolver&) = delete;

  // `out` must have room for `rows_needed` rows and two steps.
  ChunkEnd run(const ScheduleColumns& out);
  std::int64_t rows_needed() const { return rows_needed_; }
  double time() const;           // of the last event
  std::int64_t started() const;  // tasks started on the current version
  std::vector<TaskInFlight> in_flight() const;

 private:
  std::unique_ptr<EventLoop> loop_;
  std::int64_t rows_needed_;
};

}  // namespace fedbuff
