// The server's fused pass over a buffer, cut between threads. The pass works element by element, so the bits are those
// of one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/dispatch.hpp"
#include "threads/parallel.hpp"

namespace fedbuff {

inline constexpr std::int64_t kAggregateStretch = std::int64_t{1} << 16;  // elements that are worth handing out

// w_out = w - scale * sum_k weight[k] * delta[k] for vectors of dim elements, on up to `threads` threads. w_out may be
// w.
template <class T>
void aggregate_in_threads(std::int64_t dim, const T* w, std::int64_t n_deltas, const T* const* delta, const T* weight,
                          T scale, T* w_out, std::int64_t threads) {
  const Kernels<T>& k = kernels().of<T>();
  const std::int64_t n = threads == 1 ? 1 : std::max<std::int64_t>(1, dim / kAggregateStretch);
  run_parallel(n, static_cast<int>(std::min(threads, n)), [&](std::int64_t i) {
    const std::int64_t end = i + 1 < n ? (i + 1) * kAggregateStretch : dim;
    k.aggregate(i * kAggregateStretch, end, w, n_deltas, delta, weight, scale, w_out);
  });
}

}  // namespace fedbuff
