// Sums in fixed point, clipping and noise.
#include "replay/secure_sum.hpp"

#include <cmath>
#include <limits>

#include "check.hpp"
#include "replay/replay.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

constexpr std::int64_t kDims[] = {1, 3, 16, 17, 130};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

SumConfig fixed_point(int modulus) {
  SumConfig config;
  config.modulus = modulus;
  config.range = 4.0;
  config.step = 1.0 / 1024;
  config.weight_unit = 8;
  config.seed = 5;
  return config;
}

// Sums of multiples of the step are exact, in any order and after an earlier sum.
template <class T>
void exact_sums() {
  for (const int modulus : {32, 64}) {
    for (const std::int64_t dim : kDims) {
      const auto sum = make_simulated_sum<T>(fixed_point(modulus), dim);
      Numbers numbers(9);
      std::vector<std::vector<T>> deltas;
      for (int k = 0; k < 3; ++k) {
        auto delta = numbers.vector<T>(dim);
        for (T& number : delta) {
          number = std::nearbyint(number * 1024) / 1024;
        }
        deltas.push_back(delta);
      }
      const std::uint64_t weight[] = {8, 16, 3};
      std::vector<T> first(at(dim)), second(at(dim));
      for (const bool forward : {true, false}) {
        for (std::size_t i = 0; i < 3; ++i) {
          const std::size_t k = forward ? i : 2 - i;
          const ReplayRow row{static_cast<std::int32_t>(k), 0, 0, 0, 1.0, 1.0};
          CHECK_EQ(sum->add(row, deltas[k].data(), weight[k], 1.0), 0);
        }
        sum->finish(0, (forward ? first : second).data());
      }
      for (std::int64_t j = 0; j < dim; ++j) {
        const double want = static_cast<double>(deltas[0][at(j)]) + 2.0 * static_cast<double>(deltas[1][at(j)]) +
                            3.0 / 8.0 * static_cast<double>(deltas[2][at(j)]);
        CHECK_EQ(static_cast<double>(first[at(j)]), want);
        CHECK_EQ(second[at(j)], first[at(j)]);
      }
    }
  }
}

// Numbers out of range are cut and counted; a factor is applied before.
template <class T>
void numbers_out_of_range() {
  for (const int modulus : {32, 64}) {
    const auto sum = make_simulated_sum<T>(fixed_point(modulus), 6);
    const std::vector<T> delta = {
        T(4), T(-4), T(5), T(-1e30), std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()};
    const ReplayRow row{1, 2, 0, 0, 1.0, 1.0};
    CHECK_EQ(sum->add(row, delta.data(), 8, 1.0), 4);
    std::vector<T> out(6);
    sum->finish(0, out.data());
    CHECK(out[0] == T(4) && out[1] == T(-4) && out[2] == T(4) && out[3] == T(-4));
    CHECK_EQ(sum->add(row, delta.data(), 8, 0.5), 3);
    sum->finish(0, out.data());
    CHECK(out[0] == T(2) && out[2] == T(2.5));
  }
}

// By chance a number goes to one of its two neighbours, with the right mean; the same row gives the same words.
template <class T>
void stochastic_rounding() {
  SumConfig config = fixed_point(32);
  config.stochastic = true;
  config.step = 1.0;
  constexpr std::int64_t kDim = 20000;
  const std::vector<T> delta(kDim, T(0.25));
  std::vector<T> once(kDim), again(kDim), other(kDim);
  const auto sum = make_simulated_sum<T>(config, kDim);
  for (auto* out : {&once, &again, &other}) {
    const ReplayRow row{3, out == &other ? 8u : 7u, 0, 0, 1.0, 1.0};
    CHECK_EQ(sum->add(row, delta.data(), 8, 1.0), 0);
    sum->finish(0, out->data());
  }
  double mean = 0;
  for (const T number : once) {
    CHECK(number == T(0) || number == T(1));
    mean += static_cast<double>(number) / kDim;
  }
  CHECK(std::abs(mean - 0.25) < 5 * std::sqrt(0.25 * 0.75 / kDim));
  CHECK(once == again && once != other);
}

template <class T>
void clipping() {
  SumConfig config;
  config.clip = 0.75;
  for (const std::int64_t dim : kDims) {
    const auto delta = Numbers(21).vector<T>(dim);
    double square = 0;
    for (const T number : delta) {
      square += static_cast<double>(number) * static_cast<double>(number);
    }
    const double norm = std::sqrt(square), factor = clip_factor<T>(config, dim, delta.data());
    if (norm <= config.clip) {
      CHECK_EQ(factor, 1.0);
    } else {
      CHECK(factor * norm <= config.clip * (1 + 1e-6) && factor * norm > config.clip * (1 - 1e-5));
    }
  }
}

template <class T>
void noise() {
  SumConfig config;
  config.deviation = 2.0;
  config.seed = 77;
  constexpr std::int64_t kDim = 20001;  // odd: half a pair is left over
  std::vector<T> first(kDim + 1), again(kDim + 1), next(kDim + 1), system(kDim + 1), other(kDim + 1);
  add_noise<T>(config, kDim, 4, first.data());
  add_noise<T>(config, kDim, 4, again.data());
  add_noise<T>(config, kDim, 5, next.data());
  CHECK(first == again && first != next);
  CHECK(first[kDim] == T(0) && next[kDim] == T(0));
  config.system_noise = true;
  add_noise<T>(config, kDim, 4, system.data());
  add_noise<T>(config, kDim, 4, other.data());
  CHECK(system != first && system != other && system[kDim] == T(0));
  for (const auto& values : {first, next, system}) {
    double mean = 0, square = 0;
    for (std::int64_t j = 0; j < kDim; ++j) {
      const auto x = static_cast<double>(values[at(j)]);
      mean += x / kDim;
      square += x * x / kDim;
    }
    CHECK(std::abs(mean) < 7 * 2.0 / std::sqrt(kDim));
    CHECK(std::abs(square / 4.0 - 1.0) < 7 * std::sqrt(2.0 / kDim));
  }
}

}  // namespace

TEST(secure_sum_is_exact) {
  check::on_every_level([] { exact_sums<float>(), exact_sums<double>(); });
}

TEST(secure_sum_counts_what_is_out_of_range) {
  check::on_every_level([] { numbers_out_of_range<float>(), numbers_out_of_range<double>(); });
}

TEST(secure_sum_rounds_by_chance) {
  check::on_every_level([] { stochastic_rounding<float>(), stochastic_rounding<double>(); });
}

TEST(secure_sum_clips) {
  check::on_every_level([] { clipping<float>(), clipping<double>(); });
}

TEST(secure_sum_noise) {
  noise<float>();
  noise<double>();
}
