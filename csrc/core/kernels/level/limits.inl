// Loops that only read, write, copy or multiply and add, as fast as this level can.

template <class T>
T read_streams(std::int64_t dim, std::int64_t n_streams, const T* const* x) {
  using V = Vec<T>;
  constexpr int kVecs = 8;
  V sum[kVecs];
#pragma GCC unroll 8
  for (int n = 0; n < kVecs; ++n) {
    sum[n] = V::zero();
  }
  std::int64_t j = 0;
  for (; j + kVecs * V::kLanes <= dim; j += kVecs * V::kLanes) {
    for (std::int64_t k = 0; k < n_streams; ++k) {
      const T* from = x[k] + j;
#pragma GCC unroll 8
      for (int n = 0; n < kVecs; ++n) {
        sum[n] = sum[n] + V::load(from + n * V::kLanes);
      }
    }
  }
  for (; j < dim; j += V::kLanes) {
    const int n = static_cast<int>(dim - j < V::kLanes ? dim - j : V::kLanes);
    for (std::int64_t k = 0; k < n_streams; ++k) {
      sum[0] = sum[0] + V::load_part(x[k] + j, n);
    }
  }
  for (int n = 1; n < kVecs; ++n) {
    sum[0] = sum[0] + sum[n];
  }
  return sum_lanes(sum[0]);
}

template <class T>
void write_stream(std::int64_t dim, T value, bool past_caches, T* out) {
  using V = Vec<T>;
  const V all = V::set(value);
  std::int64_t j = past_caches ? until_aligned(dim, out) : 0;
  all.store_part(out, static_cast<int>(j));
  if (past_caches) {
#pragma GCC unroll 4
    for (; j + V::kLanes <= dim; j += V::kLanes) {
      all.stream(out + j);
    }
    V::end_streams();
  }
#pragma GCC unroll 4
  for (; j + V::kLanes <= dim; j += V::kLanes) {
    all.store(out + j);
  }
  all.store_part(out + j, static_cast<int>(dim - j));
}

template <class T>
void copy_stream(std::int64_t dim, const T* x, bool past_caches, T* out) {
  using V = Vec<T>;
  std::int64_t j = past_caches ? until_aligned(dim, out) : 0;
  V::load_part(x, static_cast<int>(j)).store_part(out, static_cast<int>(j));
  if (past_caches) {
#pragma GCC unroll 4
    for (; j + V::kLanes <= dim; j += V::kLanes) {
      V::load(x + j).stream(out + j);
    }
    V::end_streams();
  }
#pragma GCC unroll 4
  for (; j + V::kLanes <= dim; j += V::kLanes) {
    V::load(x + j).store(out + j);
  }
  V::load_part(x + j, static_cast<int>(dim - j)).store_part(out + j, static_cast<int>(dim - j));
}

inline constexpr int kChains = 12;  // more than latency times units, fewer than registers

template <class T>
T multiply_add(std::int64_t rounds, T factor, T addend) {
  using V = Vec<T>;
  const V a = V::set(factor), b = V::set(addend);
  // Every number starts differently: the compiler would compute equal chains once.
  T start[kChains * V::kLanes];
  for (int j = 0; j < kChains * V::kLanes; ++j) {
    start[j] = static_cast<T>(j);
  }
  V chain[kChains];
#pragma GCC unroll 12
  for (int n = 0; n < kChains; ++n) {
    chain[n] = V::load(start + n * V::kLanes);
  }
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int n = 0; n < kChains; ++n) {
      chain[n] = madd(chain[n], a, b);
    }
  }
  for (int n = 1; n < kChains; ++n) {
    chain[0] = chain[0] + chain[n];
  }
  return sum_lanes(chain[0]);
}

inline constexpr int kAdditions = 16;

// The empty assembly keeps the compiler from adding two steps at once; the step is in a register, since some CPUs fold
// additions of constants. So each addition waits for the one before it, one clock cycle on every CPU.
inline std::uint64_t dependent_additions(std::int64_t rounds, std::uint64_t step) {
  std::uint64_t sum = 0;
  __asm__ volatile("" : "+r"(step));
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int n = 0; n < kAdditions; ++n) {
      sum += step;
      __asm__ volatile("" : "+r"(sum));
    }
  }
  return sum;
}

template <class T>
constexpr Limits<T> make_limits() {
  return {&read_streams<T>,     &write_stream<T>, &copy_stream<T>, &multiply_add<T>, 2 * kChains * Vec<T>::kLanes,
          &dependent_additions, kAdditions,       Vec<T>::kLanes};
}
