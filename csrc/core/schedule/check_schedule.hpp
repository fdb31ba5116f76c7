// Whether columns are a schedule that a replay can follow, in one pass over the rows.
//
// A ScheduleCheck is given a schedule, or one chunk of it after the other. Of several faults it reports the one that
// comes first in ScheduleFault, at its first row, step or version. fedbuff/_schedule/check.py says the same in NumPy.
// Cost: about 3 ns a row. Memory: 8 bytes for each version from the oldest with tasks that have not ended.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/export.hpp"

namespace fedbuff {

enum class ScheduleFault : int {
  None = 0,
  // of a row
  Client,  // it is not one of n_clients
  Status,  // it is unknown
  NegativeVersion,
  StepOfStatus,  // a step is given where, and only where, the status is "used"
  StepRange,     // the step is not one of the chunk's
  ArriveNotFinite,
  ArriveOrder,  // it is below that of the row above
  // of a task in flight
  FlightClient,
  FlightVersion,
  // of a step
  StepNotFinite,
  StepOrder,  // its time is below that of the step above
  // of a row
  EarlierStep,  // than that of a row above
  LateArrival,  // after the step that it enters
  NegativeStaleness,
  Staleness,         // of a used row: not step - version
  VersionAtArrival,  // of an unused row: version + staleness is not the server's version when it arrives
  NewerVersion,      // than the server's when it arrives
  // of a version
  Started,  // fewer tasks than ended on it or are in flight
  Count_,
};

struct FoundFault {
  ScheduleFault fault = ScheduleFault::None;
  std::int64_t index = -1;  // of the row, task in flight or step, in the chunk; or the version
};

// The columns of fedbuff.Schedule, as far as a replay depends on them.
struct CheckedColumns {
  std::int64_t n_clients = 0, first_step = 0, started_on_first = 0;
  std::int64_t n_rows = 0;
  const std::int32_t* client = nullptr;
  const std::int64_t* version = nullptr;
  const std::int64_t* step = nullptr;
  const std::int64_t* staleness = nullptr;
  const double* arrive_time = nullptr;
  const std::uint8_t* status = nullptr;
  std::int64_t n_steps = 0;
  const double* step_time = nullptr;
  const std::int64_t* step_started =
      nullptr;  // on the version that the step made; the next chunk tells that of the last
  std::int64_t n_flying = 0;
  const std::int32_t* flying_client = nullptr;
  const std::int64_t* flying_version = nullptr;
};

class FB_CORE_API ScheduleCheck {
 public:
  // The next chunk, whose first_step is where the one before ended; the caller sees to that, and that first_step,
  // started_on_first and n_clients are not negative. A chunk with a fault leaves no trace.
  FoundFault add(const CheckedColumns& chunk);
  std::int64_t n_chunks() const { return n_chunks_; }

  // What the next chunk must know of those before it.
  struct State {
    std::int64_t known_from;  // of older versions nobody told how many tasks started on them
    std::int64_t oldest;      // version of left[0]; on those before it, as far as known, all tasks have ended
    // Tasks that started and have not ended; of the newest version: minus those that ended.
    std::vector<std::int64_t> left;
    double last_arrive, last_step_time;
    std::int64_t last_step;
  };

 private:
  std::int64_t n_chunks_ = 0;
  State state_{};
};

}  // namespace fedbuff
