// Sums of whole numbers that do not depend on the order of their terms.
//
// A weight is rounded to a multiple of 2^-24 (kWeightStep), so that sums of weights are exact in double while they stay
// below 2^29; a product of a weight and a number to the nearest whole number, ties to even. Every term is rounded by
// itself and added exactly, or refused.
#pragma once

#include <cmath>
#include <cstdint>

namespace fedbuff {

inline constexpr double kWeightStep = 1.0 / 16777216.0;
inline constexpr double kMostFixedWeight = 536870912.0;

inline double fixed_weight(double weight) { return std::nearbyint(weight / kWeightStep) * kWeightStep; }

// sum_out = sum + weight * delta over n numbers (sum null: zero; may be sum_out); false where a term or a sum does not
// fit 64 bits: then sum_out holds nothing of use. The weight is one that fixed_weight gave.
template <class Int>
bool fixed_accumulate(std::int64_t n, const std::int64_t* sum, const Int* delta, double weight, std::int64_t* sum_out) {
  constexpr double kBound = 9223372036854775808.0;  // 2^63
  bool fits = true;
  for (std::int64_t j = 0; j < n; ++j) {
    std::int64_t term = delta[j];
    if (weight != 1.0) {
      const double product = std::nearbyint(weight * static_cast<double>(delta[j]));
      const bool inside = product >= -kBound && product < kBound;
      fits = fits && inside;
      term = inside ? static_cast<std::int64_t>(product) : 0;
    }
    const std::int64_t before = sum == nullptr ? 0 : sum[j];
    // Wraps around where it does not fit: then both terms have one sign and the result the other.
    const auto total = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) + static_cast<std::uint64_t>(term));
    fits = fits && ((before ^ total) & (term ^ total)) >= 0;
    sum_out[j] = total;
  }
  return fits;
}

}  // namespace fedbuff
