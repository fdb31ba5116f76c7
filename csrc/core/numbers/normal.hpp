// Standard normals from a Philox block, the same bits on every level and machine.
#pragma once

#include <cmath>

#include "numbers/philox.hpp"
#include "numbers/portable_math.hpp"

namespace fedbuff {

// Box-Muller: two independent normals from the four words of a block.
inline void normal_pair(const PhiloxBlock& block, double* pair_out) {
  const double radius = std::sqrt(-2.0 * portable::log(1.0 - unit_double(block.word[0], block.word[1])));
  double sine;
  double cosine;
  portable::sincos2pi(unit_double(block.word[2], block.word[3]), sine, cosine);
  pair_out[0] = radius * cosine;
  pair_out[1] = radius * sine;
}

// The pairs of the N blocks (c0, c1, c2, c3) .. (c0, c1, c2, c3 + N - 1) side by side: normals_out (2 N), the same
// bits. There is no branch in it, so that its loops vectorise.
template <int N>
inline __attribute__((always_inline)) void normal_pairs(std::uint64_t seed, std::uint32_t c0, std::uint32_t c1,
                                                        std::uint32_t c2, std::uint32_t c3, double* normals_out) {
  std::uint32_t w0[N], w1[N], w2[N], w3[N];
  for (int i = 0; i < N; ++i) {
    w0[i] = c0;
    w1[i] = c1;
    w2[i] = c2;
    w3[i] = c3 + static_cast<std::uint32_t>(i);
  }
  philox_rounds<N>(seed, w0, w1, w2, w3);
  double u[N], v[N], radius[N], sine[N], cosine[N];
  for (int i = 0; i < N; ++i) {
    u[i] = unit_double_signed(w0[i], w1[i]);
    v[i] = unit_double_signed(w2[i], w3[i]);
  }
  for (int i = 0; i < N; ++i) {
    radius[i] = std::sqrt(-2.0 * portable::detail::log_positive(1.0 - u[i]));  // 1 - u >= 2^-53: a normal number
  }
  for (int i = 0; i < N; ++i) {
    portable::sincos2pi(v[i], sine[i], cosine[i]);
  }
  for (int i = 0; i < N; ++i) {
    normals_out[2 * i] = radius[i] * cosine[i];
    normals_out[2 * i + 1] = radius[i] * sine[i];
  }
}

}  // namespace fedbuff
