// Parts of what compresses an upload: its largest numbers, its signs, its numbers in half the bits.
//
// Numbers are compared by their bits without the sign, as whole numbers: that is the order of their sizes, and what is
// not finite is larger than all others. The loops are plain, for the compiler to vectorise.

template <class T>
inline __attribute__((always_inline)) SizeKey<T> size_key(T x) {
  constexpr SizeKey<T> kMask = sizeof(T) == 4 ? SizeKey<T>(0x7FFFFFFF) : static_cast<SizeKey<T>>(0x7FFFFFFFFFFFFFFF);
  SizeKey<T> bits;
  __builtin_memcpy(&bits, &x, sizeof(x));
  return bits & kMask;
}

template <class T>
std::int64_t gather_sizes(std::int64_t dim, const T* x, SizeKey<T> least, SizeKey<T>* sizes_out) {
  std::int64_t n = 0;
  const auto gather = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {  // without a branch, which could not be foreseen
      const SizeKey<T> size = size_key(x[j]);
      sizes_out[n] = size;
      n += size >= least ? 1 : 0;
    }
  };
  std::int64_t begin = 0;
  if constexpr (Vec<T>::kPicks) {
    constexpr std::int64_t kTogether = Vec<T>::kLanes;
    for (; begin + kTogether <= dim; begin += kTogether) {
      n += Vec<T>::pick_sizes(x + begin, least, sizes_out + n);
    }
  } else {
    constexpr std::int64_t kTogether = 16;
    for (; begin + kTogether <= dim; begin += kTogether) {
      SizeKey<T> largest = 0;
      for (std::int64_t j = begin; j < begin + kTogether; ++j) {
        const SizeKey<T> size = size_key(x[j]);
        largest = size > largest ? size : largest;
      }
      if (largest >= least) {
        gather(begin, begin + kTogether);
      }
    }
  }
  gather(begin, dim);
  return n;
}

template <class T>
void keep_sizes(std::int64_t dim, const T* x, SizeKey<T> least, std::int64_t n_least, T* out) {
  constexpr std::int64_t kTogether = 256;
  for (std::int64_t begin = 0; begin < dim; begin += kTogether) {
    const std::int64_t end = begin + kTogether < dim ? begin + kTogether : dim;
    std::int64_t n_equal = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      n_equal += size_key(x[j]) == least ? 1 : 0;
    }
    if (n_equal <= n_least) {
      n_least -= n_equal;
      for (std::int64_t j = begin; j < end; ++j) {
        out[j] = size_key(x[j]) >= least ? x[j] : T(0);
      }
      continue;
    }
    for (std::int64_t j = begin; j < end; ++j) {
      const SizeKey<T> size = size_key(x[j]);
      const bool kept = size > least || (size == least && n_least > 0);
      n_least -= size == least && n_least > 0 ? 1 : 0;
      out[j] = kept ? x[j] : T(0);
    }
  }
}

// Eight sums in double in turn, added by halves: the same bits at every level.
template <class T>
double sum_of_sizes(std::int64_t dim, const T* x) {
  constexpr int kSums = 8;
  double sum[kSums] = {};
  std::int64_t j = 0;
  for (; j + kSums <= dim; j += kSums) {
    for (int i = 0; i < kSums; ++i) {
      const double value = static_cast<double>(x[j + i]);
      sum[i] += value < 0 ? -value : value;
    }
  }
  for (int i = 0; j < dim; ++j, ++i) {
    const double value = static_cast<double>(x[j]);
    sum[i] += value < 0 ? -value : value;
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

template <class T>
void take_signs(std::int64_t dim, const T* x, T size, T* out) {
  for (std::int64_t j = 0; j < dim; ++j) {
    out[j] = x[j] < T(0) ? -size : size;
  }
}

template <class T>
void round_to_half(std::int64_t dim, const T* x, T* out) {
  for (std::int64_t j = 0; j < dim; ++j) {
    const auto narrow = static_cast<float>(x[j]);
    std::uint32_t bits;
    __builtin_memcpy(&bits, &narrow, sizeof(bits));
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
    const std::uint32_t exponent = bits & 0x7F800000u;
    bits = exponent == 0x7F800000u ? bits : rounded;  // what is not finite stays as it is
    float half;
    __builtin_memcpy(&half, &bits, sizeof(half));
    out[j] = static_cast<T>(half);
  }
}
