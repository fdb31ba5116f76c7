// A step size that follows a count: of server steps, or of a task's local steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace fedbuff {

enum class Decay : std::int32_t { None = 0, Step = 1, Cosine = 2, InverseSqrt = 3 };

// As fedbuff.LearningRate says.
struct LearningRate {
  double lr = 1;
  Decay decay = Decay::None;
  std::int64_t steps = 1;
  double factor = 1;
  double floor = 0;
  std::int64_t warm_up = 0;

  double at(std::int64_t t) const {
    double rate = lr;
    const double after = static_cast<double>(std::max<std::int64_t>(0, t - warm_up));
    const auto n = static_cast<double>(steps);
    if (decay == Decay::Step) {
      rate *= std::pow(factor, std::floor(after / n));
    } else if (decay == Decay::Cosine) {
      constexpr double kPi = 3.14159265358979323846;
      rate *= floor + (1.0 - floor) * (1.0 + std::cos(kPi * std::min(after / n, 1.0))) / 2.0;
    } else if (decay == Decay::InverseSqrt) {
      rate *= 1.0 / std::sqrt(1.0 + after / n);
    }
    if (t + 1 < warm_up) {
      rate *= static_cast<double>(t + 1) / static_cast<double>(warm_up);
    }
    return rate;
  }
};

}  // namespace fedbuff
