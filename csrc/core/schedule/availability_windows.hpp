// AvailabilityWindows: when clients are available, and what a window does to a task.
//
// The windows of client c are [begin[i], end[i]) for i from offsets[c] to offsets[c + 1]; with periods they repeat
// every periods[c] seconds. Cycle k starts at k * period, a product and not a sum, so every query computes the same
// bounds. The arrays belong to the caller. Times are >= 0. The bits are those of fedbuff/backends/python/resolver.py.
// Cost: O(log windows of the client) for a query, O(windows of the client) for work_until.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fedbuff {

enum class WindowPolicy : int { None, Wait, Pause, Abort };

struct AvailabilityWindows {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  WindowPolicy policy = WindowPolicy::None;
  const std::int64_t* offsets = nullptr;  // (n_clients + 1,) into begin and end
  const double* begin = nullptr;          // ascending for each client; its windows do not overlap
  const double* end = nullptr;
  const double* periods = nullptr;  // (n_clients,), or null where the windows do not repeat

  struct Position {
    std::int64_t window;  // the client's first window that ends after the time; offsets[client + 1] where none does
    double cycle;         // the number of the period, a whole number
  };

  double period_of(std::uint32_t client) const { return periods != nullptr ? periods[client] : 0.0; }

  // When this window of this cycle ends. A window that ends with the period ends at the exact start of the next cycle.
  double end_of(double period, std::int64_t window, double cycle) const {
    return end[window] == period ? (cycle + 1.0) * period : cycle * period + end[window];
  }

  // Where the client is at a finite time.
  Position at(std::uint32_t client, double time) const {
    double cycle = 0.0;
    const double period = period_of(client);
    if (period > 0.0) {
      cycle = std::floor(time / period);
      if (cycle * period > time) {
        cycle -= 1.0;
      } else if ((cycle + 1.0) * period <= time) {
        cycle += 1.0;
      }
    }
    std::int64_t low = offsets[client];
    std::int64_t high = offsets[client + 1];
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (end_of(period, middle, cycle) > time) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return {low, cycle};
  }

  // The earliest time, not before `time`, at which the client is available; infinity if there is none.
  double next_open(std::uint32_t client, double time) const {
    if (time == kInfinity) {
      return time;
    }
    const Position found = at(client, time);
    const double period = period_of(client);
    if (found.window < offsets[client + 1]) {
      return std::max(time, found.cycle * period + begin[found.window]);
    }
    if (periods != nullptr && offsets[client] < offsets[client + 1]) {
      return std::max(time, (found.cycle + 1.0) * period + begin[offsets[client]]);
    }
    return kInfinity;
  }

  // When the window that contains `time` closes. The last window of a cycle and the first of the next count as one
  // window if they touch.
  double close(std::uint32_t client, double time) const {
    const std::int64_t first = offsets[client];
    const std::int64_t last = offsets[client + 1] - 1;
    const Position found = at(client, time);
    if (found.window > last) {
      return kInfinity;  // doubles of this size cannot resolve the windows: it stays open
    }
    const double period = period_of(client);
    if (found.window == last && period > 0.0 && end[last] == period && begin[first] == 0.0) {
      return first == last ? kInfinity : end_of(period, first, found.cycle + 1.0);
    }
    return end_of(period, found.window, found.cycle);
  }

  // When work of this duration that starts inside a window is done, if it pauses outside the windows. Whole cycles are
  // skipped at once by an exact remainder (fmod).
  double work_until(std::uint32_t client, double start, double duration) const {
    const double first_close = close(client, start);
    if (start + duration <= first_close) {
      return start + duration;
    }
    double left = duration - (first_close - start);
    if (left <= 0.0) {
      return first_close;
    }
    const std::int64_t first = offsets[client];
    const std::int64_t after = offsets[client + 1];
    const double period = period_of(client);
    auto [window, cycle] = at(client, first_close);
    for (bool in_last_cycle = false;; in_last_cycle = true) {
      for (std::int64_t w = window; w < after; ++w) {
        const double length = end[w] - begin[w];
        if (left <= length || (in_last_cycle && w == after - 1)) {
          const double done = (cycle * period + begin[w]) + left;
          return std::max(first_close, std::min(done, end_of(period, w, cycle)));
        }
        left -= length;
      }
      if (period == 0.0) {
        return kInfinity;
      }
      double per_cycle = 0.0;
      for (std::int64_t w = first; w < after; ++w) {
        per_cycle += end[w] - begin[w];
      }
      double rest = std::fmod(left, per_cycle);
      if (rest == 0.0) {
        rest = per_cycle;
      }
      cycle += 1.0 + std::rint((left - rest) / per_cycle);
      left = rest;
      window = first;
    }
  }
};

}  // namespace fedbuff
