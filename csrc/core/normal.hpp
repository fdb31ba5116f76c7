// Standard normals from a Philox block, the same bits on every level and machine.
#pragma once

#include <cmath>

#include "philox.hpp"
#include "portable_math.hpp"

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

}  // namespace fedbuff
