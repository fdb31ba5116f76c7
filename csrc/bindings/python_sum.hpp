// A secure sum that Python objects make, and the numbers of any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bindings.hpp"
#include "gil.hpp"
#include "replay/secure_sum.hpp"

namespace fedbuff::bind {

// The fields of fedbuff.backends.spec.SumSpec.
inline SumConfig read_sums(const py::object& sums) {
  SumConfig c;
  c.modulus = sums.attr("modulus").cast<int>();
  c.range = sums.attr("range").cast<double>();
  c.step = sums.attr("step").cast<double>();
  c.stochastic = sums.attr("stochastic").cast<bool>();
  c.weight_unit = sums.attr("weight_unit").cast<double>();
  c.clip = sums.attr("clip").cast<double>();
  c.deviation = sums.attr("deviation").cast<double>();
  c.system_noise = sums.attr("system_noise").cast<bool>();
  c.seed = sums.attr("seed").cast<std::uint64_t>();
  return c;
}

// Python objects that make a sum: add(client, task, version, step, weight, factor, delta) and finish(step, sum_out).
template <class T>
class PythonSum final : public SecureSum<T> {
 public:
  PythonSum(py::object roles, py::ssize_t dim) : roles_(std::move(roles)), dim_(dim) {}
  ~PythonSum() override {
    const GilHeld held;
    roles_ = py::object();
  }

  std::int64_t add(const ReplayRow& row, const T* delta, std::uint64_t weight, double factor) override {
    const GilHeld held;
    const py::array_t<T> update(dim_, delta);  // a copy: a role, or an error's traceback, may keep it
    return call(roles_.attr("add"), row.client, row.task, row.version, row.step, weight, factor, update)
        .template cast<std::int64_t>();
  }

  void finish(std::int64_t step, T* sum_out) override {
    const GilHeld held;
    const py::array_t<T> sum(dim_);
    call(roles_.attr("finish"), step, sum);
    std::copy_n(sum.data(), dim_, sum_out);
  }

 private:
  py::object roles_;
  py::ssize_t dim_;
};

}  // namespace fedbuff::bind
