// What stands between a client's update and the sum that a server sees: clipping, fixed point under masks, noise.
#pragma once

#include <cstdint>
#include <memory>

#include "clients/client_work.hpp"
#include "compiler/export.hpp"

namespace fedbuff {

struct SumConfig {
  // Fixed point; modulus 0: sums in floating point.
  int modulus = 0;   // bits of a word: 32 or 64
  double range = 0;  // numbers are cut to [-range, range]
  double step = 1;   // what one unit stands for
  bool stochastic = false;
  double weight_unit = 1;  // the integer that a weight of 1 stands for
  // Privacy; clip 0: none.
  double clip = 0;       // updates are scaled down to this L2 norm
  double deviation = 0;  // of the normal noise in each coordinate of a sum
  bool system_noise = false;
  std::uint64_t seed = 0;  // of roundings and noise
};

// A server step's sum in fixed point. It belongs to one thread at a time.
template <class T>
class SecureSum {
 public:
  virtual ~SecureSum() = default;
  // Adds weight times the row's update, scaled by factor. Returns how many numbers were out of range; one that is not
  // finite is among them.
  virtual std::int64_t add(const ReplayRow& row, const T* delta, std::uint64_t weight, double factor) = 0;
  // The sum of what was added since the last call, (dim), as numbers.
  virtual void finish(std::int64_t step, T* sum_out) = 0;
};

// The arithmetic alone: the bits of a sum under masks, which cancel.
template <class T>
FB_CORE_API std::unique_ptr<SecureSum<T>> make_simulated_sum(const SumConfig& config, std::int64_t dim);

// What an update is multiplied by so that its norm is at most clip, also where the products are rounded to T: a number
// of type T, rounded down. 0 where no larger one will do, and where a number is infinite; NaN where one is NaN.
template <class T>
FB_CORE_API double clip_factor(const SumConfig& config, std::int64_t dim, const T* delta);

// sum += deviation * normals: those of (step, PrivacyNoise), or of words from the operating system. Throws
// std::runtime_error where the system gives none.
template <class T>
FB_CORE_API void add_noise(const SumConfig& config, std::int64_t dim, std::int64_t step, T* sum);

}  // namespace fedbuff
