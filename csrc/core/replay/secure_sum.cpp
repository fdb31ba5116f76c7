#include "replay/secure_sum.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/dispatch.hpp"
#include "numbers/normal.hpp"

namespace fedbuff {

namespace {

template <class T, class W>
class SimulatedSum final : public SecureSum<T> {
 public:
  SimulatedSum(const SumConfig& config, std::int64_t dim)
      : config_(config), dim_(dim), total_(static_cast<std::size_t>(dim)) {}

  std::int64_t add(const ReplayRow& row, const T* delta, std::uint64_t weight, double factor) override {
    const FixedPointConfig config{
        config_.range, config_.step, factor, config_.stochastic, config_.seed, static_cast<std::uint32_t>(row.client),
        row.task};
    const W* before = empty_ ? nullptr : total_.data();
    empty_ = false;
    const Kernels<T>& k = kernels().of<T>();
    if constexpr (sizeof(W) == 4) {
      return k.encode_add_32(dim_, before, delta, static_cast<W>(weight), config, total_.data());
    } else {
      return k.encode_add_64(dim_, before, delta, weight, config, total_.data());
    }
  }

  void finish(std::int64_t, T* sum_out) override {
    const double scale = config_.step / config_.weight_unit;
    if constexpr (sizeof(W) == 4) {
      kernels().of<T>().decode_32(dim_, total_.data(), scale, sum_out);
    } else {
      kernels().of<T>().decode_64(dim_, total_.data(), scale, sum_out);
    }
    empty_ = true;
  }

 private:
  const SumConfig config_;
  const std::int64_t dim_;
  std::vector<W> total_;
  bool empty_ = true;
};

template <class T>
void add_pair(const PhiloxBlock& block, double deviation, std::int64_t left, T* sum) {
  double pair[2];
  normal_pair(block, pair);
  sum[0] += static_cast<T>(deviation * pair[0]);
  if (left > 1) {
    sum[1] += static_cast<T>(deviation * pair[1]);
  }
}

// At least the L2 norm of finite numbers; infinite or NaN where one of them is not finite.
template <class T>
double norm_bound(std::int64_t dim, const T* x) {
  const double squares = kernels().of<T>().dot(dim, x, x);
  // A sum of n squares of doubles, added in any order, misses by less than n + 1 roundings.
  const double slack = 1.0 + static_cast<double>(dim + 8) * std::numeric_limits<double>::epsilon();
  double norm = std::sqrt(squares);
  if (!(squares > 1e-280 && squares < 1e300)) {
    double largest = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      const double size = std::fabs(static_cast<double>(x[j]));
      if (!std::isfinite(size)) {
        return size;
      }
      largest = std::max(largest, size);
    }
    if (largest == 0) {
      return 0;
    }
    // The squares of what is left of 1 neither overflow nor vanish.
    const int exponent = std::ilogb(largest);
    double scaled = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      const double size = std::scalbn(static_cast<double>(x[j]), -exponent);
      scaled += size * size;
    }
    norm = std::scalbn(std::sqrt(scaled), exponent);
  }
  return std::nextafter(norm * slack, std::numeric_limits<double>::infinity());
}

}  // namespace

template <class T>
std::unique_ptr<SecureSum<T>> make_simulated_sum(const SumConfig& config, std::int64_t dim) {
  if (config.modulus == 32) {
    return std::make_unique<SimulatedSum<T, std::uint32_t>>(config, dim);
  }
  return std::make_unique<SimulatedSum<T, std::uint64_t>>(config, dim);
}

template <class T>
double clip_factor(const SumConfig& config, std::int64_t dim, const T* delta) {
  const double norm = norm_bound(dim, delta);
  if (norm <= config.clip) {
    return 1.0;
  }
  // A product is rounded by half a unit in its last place, or by half of the smallest number where it is subnormal.
  using Limits = std::numeric_limits<T>;
  const double lost = std::sqrt(static_cast<double>(dim)) * static_cast<double>(Limits::denorm_min());
  const double longest = norm * (1.0 + static_cast<double>(Limits::epsilon()));
  double most = (config.clip - lost) / longest * (1.0 - 4 * std::numeric_limits<double>::epsilon());
  most = std::nextafter(std::nextafter(most, 0.0), 0.0);  // for one that is subnormal
  if (most <= 0 || longest > std::numeric_limits<double>::max()) {
    return 0.0;
  }
  const T factor = static_cast<T>(most);
  return static_cast<double>(static_cast<double>(factor) > most ? std::nextafter(factor, T(0)) : factor);
}

template <class T>
void add_noise(const SumConfig& config, std::int64_t dim, std::int64_t step, T* sum) {
  if (!config.system_noise) {
    const auto at = static_cast<std::uint64_t>(step);
    for (std::int64_t j = 0; j < dim; j += 2) {
      const std::int64_t block = j / 2;
      const PhiloxBlock words =
          philox4x32(config.seed, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                     static_cast<std::uint32_t>(block >> 28),
                     stream_word(Stream::PrivacyNoise, static_cast<std::uint32_t>(block & 0xFFFFFFF)));
      add_pair(words, config.deviation, dim - j, sum + j);
    }
    return;
  }
  constexpr std::int64_t kBlocks = 4096;
  std::vector<PhiloxBlock> words(static_cast<std::size_t>(std::min(kBlocks, (dim + 1) / 2)));
  std::ifstream system("/dev/urandom", std::ios::binary);
  for (std::int64_t j = 0; j < dim; j += 2) {
    const auto at = static_cast<std::size_t>(j / 2 % kBlocks);
    if (at == 0) {
      const auto bytes = static_cast<std::streamsize>(words.size() * sizeof(PhiloxBlock));
      if (!system.read(reinterpret_cast<char*>(words.data()), bytes)) {
        throw std::runtime_error("privacy: the operating system gives no random numbers, /dev/urandom cannot be read");
      }
    }
    add_pair(words[at], config.deviation, dim - j, sum + j);
  }
}

template std::unique_ptr<SecureSum<float>> make_simulated_sum<float>(const SumConfig&, std::int64_t);
template std::unique_ptr<SecureSum<double>> make_simulated_sum<double>(const SumConfig&, std::int64_t);
template double clip_factor<float>(const SumConfig&, std::int64_t, const float*);
template double clip_factor<double>(const SumConfig&, std::int64_t, const double*);
template void add_noise<float>(const SumConfig&, std::int64_t, std::int64_t, float*);
template void add_noise<double>(const SumConfig&, std::int64_t, std::int64_t, double*);

}  // namespace fedbuff
