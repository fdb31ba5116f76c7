// QSGD: numbers as whole multiples of the vector's length over a number of levels, rounded by chance so that the mean
// is the number itself.
//
// In double but for the last rounding to T, so that every level and backend gives the same bits.

// The quantised number. `bound` is config.levels; NaNs and infinities stay what is not finite.
template <class T>
inline __attribute__((always_inline)) T quantized(T x, double to_levels, double from_levels, double bound,
                                                  std::uint32_t word) {
  const double value = static_cast<double>(x);
  const double units = (value < 0 ? -value : value) * to_levels;
  const double nearest = (units + kRounder) - kRounder;
  const double below = nearest > units ? nearest - 1.0 : nearest;
  const double up = below + (chance_of(word) < units - below ? 1.0 : 0.0);
  const double size = (up > bound ? bound : up) * from_levels;
  return static_cast<T>(value < 0 ? -size : size);
}

template <class T>
void quantize(std::int64_t begin, std::int64_t end, const T* x, const QuantizeConfig& config, T* out) {
  constexpr int kBlocks = 16;
  constexpr int kNumbers = 4 * kBlocks;
  const double to_levels = config.norm > 0 ? config.levels / config.norm : config.norm;
  const double from_levels = config.norm / config.levels;
  for (std::int64_t first = begin; first < end; first += kNumbers) {
    std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks], word[kNumbers];
    for (int i = 0; i < kBlocks; ++i) {
      const std::int64_t block = first / 4 + i;
      c0[i] = config.counter[0];
      c1[i] = config.counter[1];
      c2[i] = static_cast<std::uint32_t>(block >> 28);
      c3[i] = stream_word(config.stream, static_cast<std::uint32_t>(block & 0xFFFFFFF));
    }
    philox_rounds<kBlocks>(config.seed, c0, c1, c2, c3);
    for (int i = 0; i < kBlocks; ++i) {
      word[4 * i] = c0[i];
      word[4 * i + 1] = c1[i];
      word[4 * i + 2] = c2[i];
      word[4 * i + 3] = c3[i];
    }
    const int n = static_cast<int>(end - first < kNumbers ? end - first : kNumbers);
    for (int i = 0; i < n; ++i) {
      out[first + i] = quantized(x[first + i], to_levels, from_levels, config.levels, word[i]);
    }
  }
}
