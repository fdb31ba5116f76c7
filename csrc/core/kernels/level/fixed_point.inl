// Fixed-point numbers modulo 2^32 or 2^64: what a sum under masks is made of.
//
// One product is rounded, that of an update with its factor; all else is exact arithmetic on floats, doubles and words.
// So every level and backend gives the same bits.

// 1.5 * 2^52: added to |x| < 2^51 it rounds x to the nearest whole number, ties to even, and leaves that number in the
// low bits.
constexpr double kRounder = 6755399441055744.0;
constexpr std::uint64_t kRounderBits = 0x4338000000000000u;

// The nearest whole number as a word, ties to even. |x| is below 2^31 for words of 32 bits and 2^51 for 64.
template <class W>
inline __attribute__((always_inline)) W nearest_word(double x) {
  const double shifted = x + kRounder;
  std::uint64_t bits;
  __builtin_memcpy(&bits, &shifted, 8);
  return static_cast<W>(bits - kRounderBits);
}
template <class W>
inline __attribute__((always_inline)) W nearest_word(float x) {
#if defined(__GNUC__) && !defined(__clang__)
  if constexpr (sizeof(W) == 4) {
    return static_cast<W>(__builtin_irintf(x));  // one instruction, at every level
  }
#endif
  return nearest_word<W>(static_cast<double>(x));
}

// An update's numbers in units of the encoding's step, within its range. A NaN is out of range, and counts as the
// lowest.
template <class T>
struct InUnits {
  T factor, clip, scale;

  inline __attribute__((always_inline)) T operator()(T value, bool& outside) const {
    const T x = factor * value;
    outside = !((x < 0 ? -x : x) <= clip);
    const T low = x > -clip ? x : -clip;
    return (low < clip ? low : clip) * scale;
  }
};

constexpr std::int64_t kCounted = 1 << 20;  // numbers that a 32-bit counter takes before it is emptied

// kSum: there is something to add to. kWeighted: the weight is not 1.
template <class T, class W, bool kSum, bool kWeighted>
std::int64_t encode_nearest(std::int64_t dim, const W* total, const T* delta, W weight, InUnits<T> units,
                            W* total_out) {
  std::int64_t outside = 0;
  for (std::int64_t first = 0; first < dim; first += kCounted) {
    const std::int64_t end = dim - first < kCounted ? dim : first + kCounted;
    std::uint32_t here = 0;
    for (std::int64_t j = first; j < end; ++j) {
      bool out;
      const W word = nearest_word<W>(units(delta[j], out));
      total_out[j] = (kSum ? total[j] : W(0)) + (kWeighted ? weight * word : word);
      here += out ? 1u : 0u;
    }
    outside += here;
  }
  return outside;
}

// A double in (0, 1): (word + 1/2) / 2^32.
inline __attribute__((always_inline)) double chance_of(std::uint32_t word) {
  return (static_cast<double>(static_cast<std::int32_t>(word ^ 0x80000000u)) + 2147483648.5) * (1.0 / 4294967296.0);
}

// The nearest whole number, or, with its distance as the probability, the one on the other side of x: the mean is x.
template <class T, class W, bool kSum, bool kWeighted>
std::int64_t encode_stochastic(std::int64_t dim, const W* total, const T* delta, W weight, InUnits<T> units,
                               const FixedPointConfig& config, W* total_out) {
  constexpr int kBlocks = 16;
  constexpr int kNumbers = 4 * kBlocks;
  const std::uint64_t seed = config.seed;
  const std::uint32_t client = config.client, task = config.task;
  std::int64_t outside = 0;
  for (std::int64_t first = 0; first < dim; first += kNumbers) {
    std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks], word[kNumbers];
    for (int i = 0; i < kBlocks; ++i) {
      const std::int64_t block = first / 4 + i;
      c0[i] = client;
      c1[i] = task;
      c2[i] = static_cast<std::uint32_t>(block >> 28);
      c3[i] = stream_word(Stream::Rounding, static_cast<std::uint32_t>(block & 0xFFFFFFF));
    }
    philox_rounds<kBlocks>(seed, c0, c1, c2, c3);
    for (int i = 0; i < kBlocks; ++i) {
      word[4 * i] = c0[i];
      word[4 * i + 1] = c1[i];
      word[4 * i + 2] = c2[i];
      word[4 * i + 3] = c3[i];
    }
    const int n = static_cast<int>(dim - first < kNumbers ? dim - first : kNumbers);
    std::uint32_t here = 0;
    for (int i = 0; i < n; ++i) {
      bool out;
      const double x = static_cast<double>(units(delta[first + i], out));
      here += out ? 1u : 0u;
      const double nearest = (x + kRounder) - kRounder;
      const double away = x - nearest;
      const double distance = away < 0 ? -away : away;
      const double side = away < 0 ? -1.0 : 1.0;
      const double rounded = nearest + (chance_of(word[i]) < distance ? side : 0.0);
      const W encoded = nearest_word<W>(rounded);
      total_out[first + i] = (kSum ? total[first + i] : W(0)) + (kWeighted ? weight * encoded : encoded);
    }
    outside += here;
  }
  return outside;
}

template <class T, class W, bool kSum, bool kWeighted>
std::int64_t encode_with(std::int64_t dim, const W* total, const T* delta, W weight, const FixedPointConfig& config,
                         W* total_out) {
  const InUnits<T> units{static_cast<T>(config.factor), static_cast<T>(config.clip), static_cast<T>(1.0 / config.step)};
  return config.stochastic
             ? encode_stochastic<T, W, kSum, kWeighted>(dim, total, delta, weight, units, config, total_out)
             : encode_nearest<T, W, kSum, kWeighted>(dim, total, delta, weight, units, total_out);
}

template <class T, class W>
std::int64_t encode_add(std::int64_t dim, const W* total, const T* delta, W weight, const FixedPointConfig& config,
                        W* total_out) {
  const auto encode = total == nullptr
                          ? (weight == 1 ? &encode_with<T, W, false, false> : &encode_with<T, W, false, true>)
                          : (weight == 1 ? &encode_with<T, W, true, false> : &encode_with<T, W, true, true>);
  return encode(dim, total, delta, weight, config, total_out);
}

template <class W>
void add_words(std::int64_t dim, const W* total, const W* words, W weight, W* total_out) {
  if (weight == 1) {
    for (std::int64_t j = 0; j < dim; ++j) {
      total_out[j] = total[j] + words[j];
    }
    return;
  }
  for (std::int64_t j = 0; j < dim; ++j) {
    total_out[j] = total[j] + weight * words[j];
  }
}

template <class T, class W>
void decode(std::int64_t dim, const W* words, double scale, T* values_out) {
  for (std::int64_t j = 0; j < dim; ++j) {
    if constexpr (sizeof(W) == 4) {
      values_out[j] = static_cast<T>(static_cast<double>(static_cast<std::int32_t>(words[j])) * scale);
    } else {
      values_out[j] = static_cast<T>(static_cast<double>(static_cast<std::int64_t>(words[j])) * scale);
    }
  }
}
