// What a resolver is given and gives back: the plan of a schedule, its columns, and how a call ended. Plain values; the
// arrays belong to the caller. The fields are those of Plan and Columns in fedbuff/backends/spec.py.
#pragma once

#include <cstdint>
#include <limits>

#include "schedule/availability_windows.hpp"
#include "schedule/delays.hpp"

namespace fedbuff {

enum class Mode : int { SlotIsClient, Pool, OpenLoop, Rounds };
enum class IfBusy : int { Redraw, Skip, Overlap };
enum class Trigger : int { Buffer, EveryClient, Ringleader };
enum class Selection : int { Uniform, RoundRobin, LongestIdle, Weighted };
enum class TaskStatus : std::uint8_t { Used, LeftInBuffer, TooStale, Discarded, TimedOut, Failed, Stopped };
enum class StopReason : int { Full, ServerSteps, MaxTime, Arrivals, Exhausted, Stalled };

struct SchedulePlan {
  Mode mode = Mode::Pool;
  std::int64_t n_clients = 0;
  std::int64_t n_slots = 0;
  std::uint64_t seed = 0;
  double rate = 1.0;
  bool poisson = false;
  IfBusy if_busy = IfBusy::Redraw;

  Selection selection = Selection::Uniform;
  const double* probability = nullptr;  // (n_clients,), where it is Weighted
  std::int64_t max_uses = -1;           // tasks that a client may start
  bool queues = false;                  // a task sent to a busy client waits there

  bool recorded = false;
  DelayModel model;
  const std::int64_t* row_offsets = nullptr;  // (n_clients + 1,)
  const double* row_wait = nullptr;
  const double* row_duration = nullptr;  // without the upload where there is an uplink
  const double* row_upload = nullptr;    // where there is an uplink
  const std::uint8_t* row_ok = nullptr;
  bool wrap = true;

  WindowPolicy window_policy = WindowPolicy::None;
  const std::int64_t* window_offsets = nullptr;  // (n_clients + 1,)
  const double* window_begin = nullptr;
  const double* window_end = nullptr;
  const double* period = nullptr;  // (n_clients,), or null where the windows do not repeat

  double uplink = std::numeric_limits<double>::infinity();  // transfers at full speed; infinite: uploads share nothing
  Distribution upload;                                      // where there is an uplink; the model's own is then 0
  bool needs_server = false;                                // the server needs time for an upload
  Distribution server_time;                                 // which is drawn from this

  std::int64_t buffer_size = 1;
  std::int64_t max_staleness = -1;
  double max_wait = std::numeric_limits<double>::infinity();
  double timeout = std::numeric_limits<double>::infinity();
  bool distinct_clients = false;  // an arrival whose client is already in the buffer waits for the next buffer
  Trigger trigger = Trigger::Buffer;
  double per_client = 1.0;  // the harmonic mean of arrivals at which all clients count as heard
  double step_period = std::numeric_limits<double>::infinity();
  std::int64_t refill = 1;      // open slots that are refilled together; 0: those that are open at a server step
  std::int64_t stop_stale = 0;  // the staleness at which a running task is stopped; 0: none is
  bool restart = false;         // running tasks are stopped at every server step and tick: stop_stale is 1

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

}  // namespace fedbuff
