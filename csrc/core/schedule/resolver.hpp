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

#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/export.hpp"
#include "schedule/plan.hpp"

namespace fedbuff {

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
