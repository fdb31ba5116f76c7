// Assumption 1 of the paper as a schedule: clients uniform, independent and with replacement; staleness bounded.
//
// Arrival k of step t comes from a uniform client; its version is uniform between the newest of 0, t - max_staleness
// and the version just after that client's previous arrival, and t, or the lowest of them. Time counts arrivals. The
// same rows as the NumPy of fedbuff/_schedule/resolve.py. Cost: one Philox block per arrival; memory: two words per
// client.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/export.hpp"
#include "schedule/plan.hpp"

namespace fedbuff {

struct UniformArrivals {
  std::int64_t n_clients;
  std::int64_t buffer_size;
  std::int64_t max_staleness;
  bool oldest;  // the lowest version, instead of a uniform one
  std::uint64_t seed;
};

// Fills columns.n_steps server steps, and buffer_size rows for each, which columns.n_rows must be; some of them at
// every call, so that the caller can look for signals in between.
class FB_CORE_API UniformArrivalsFill {
 public:
  UniformArrivalsFill(const UniformArrivals& plan, const ScheduleColumns& columns);

  // Whether rows are left.
  bool run();

 private:
  struct Last {
    std::int64_t row = -1;     // of the client's previous arrival
    std::int64_t version = 0;  // just after it
    std::uint32_t tasks = 0;
  };

  UniformArrivals plan_;
  ScheduleColumns columns_;
  std::vector<Last> last_;
  std::int64_t row_ = 0;
  std::int64_t step_ = 0;
  std::int64_t in_step_ = 0;  // rows of the step at hand
};

}  // namespace fedbuff
