// Sorting events: by counting, without a branch that depends on the times, where they are few and their times differ.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compiler/always_inline.hpp"
#include "kernels/kernels.hpp"
#include "schedule/event.hpp"

namespace fedbuff {

using RankTimes = decltype(ScheduleKernels::rank_times);

// The events event_at(0) to event_at(n - 1), in their order.
template <class EventAt>
FB_ALWAYS_INLINE void sort_events(RankTimes rank_few, std::size_t n, const EventAt& event_at, Event* sorted_out) {
  double time[kMostRanked];
  std::uint32_t rank[kMostRanked];
  const bool few = n <= kMostRanked;
  for (std::size_t i = 0; few && i < n; ++i) {
    time[i] = event_at(i).time();
  }
  if (few && rank_few(time, n, rank)) {
    for (std::size_t i = 0; i < n; ++i) {
      sorted_out[rank[i]] = event_at(i);
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    sorted_out[i] = event_at(i);
  }
  std::sort(sorted_out, sorted_out + n, [](const Event& a, const Event& b) { return earlier(a, b); });
}

}  // namespace fedbuff
