// Loops over whole models: the buffer, the server's step, the pieces of a local step.

// A loop over a model, whole vectors first: body(j, Whole{}) and then, where something is left, body(j, Part{n}).
struct Whole {};
struct Part {
  int n;
};
template <class T>
Vec<T> load(const T* p, Whole) {
  return Vec<T>::load(p);
}
template <class T>
Vec<T> load(const T* p, Part part) {
  return Vec<T>::load_part(p, part.n);
}
template <class T>
void store(Vec<T> v, T* p, Whole) {
  v.store(p);
}
template <class T>
void store(Vec<T> v, T* p, Part part) {
  v.store_part(p, part.n);
}

template <class T, class Body>
inline __attribute__((always_inline)) void for_each_vec(std::int64_t dim, Body body) {
  std::int64_t j = 0;
  for (; j + Vec<T>::kLanes <= dim; j += Vec<T>::kLanes) {
    body(j, Whole{});
  }
  if (j < dim) {
    body(j, Part{static_cast<int>(dim - j)});
  }
}

// Elements before the first address that holds a whole vector within one line of the cache.
template <class T>
std::int64_t until_aligned(std::int64_t dim, const T* p) {
  constexpr std::uintptr_t kBytes = Vec<T>::kLanes * sizeof(T);
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(p) % kBytes;
  const auto n = static_cast<std::int64_t>((beyond == 0 ? 0 : kBytes - beyond) / sizeof(T));
  return n < dim ? n : dim;
}

// Whether some number was not finite: 0 * x stays 0 otherwise.
template <class T>
struct Poison {
  Vec<T> sum = Vec<T>::zero();

  Vec<T> see(Vec<T> x) {
    sum = madd(x, Vec<T>::zero(), sum);
    return x;
  }
  bool is_none() const { return sum_lanes(sum) == T(0); }
};

template <class T>
void fill_zero(std::int64_t n, T* to) {
  __builtin_memset(to, 0, static_cast<std::size_t>(n) * sizeof(T));
}

// How `count` things are cut into groups of at most `most`, as equal as they can be.
struct Groups {
  std::int64_t count, groups;
  Groups(std::int64_t n, int most) : count(n), groups((n + most - 1) / most) {}
  std::int64_t begin(std::int64_t group) const { return count * group / groups; }
};

// The buffer in one pass. Per element the deltas are added in their order, whichever way the pass is cut:
//
//   groups   up to kDeltasAtOnce deltas side by side, their addresses and weights in registers. A core follows so many
//            streams of memory and no more.
//   blocks   where there are more groups than one, a block of partial sums stays in the first cache between them.
//   edges    deltas that begin alike, as arrays of one allocator do, are read by whole lines of the cache.
inline constexpr int kDeltasAtOnce = 10;
template <class T>
inline constexpr std::int64_t kAggregateBlock = 16384 / sizeof(T);

template <class T>
struct AggregateArgs {
  const T* w;
  const T* const* delta;
  const T* weight;
  T minus_scale;
  T* w_out;
  T* part;  // partial sums of the block that begins at `block`, where there are several groups
  std::int64_t block;
};

// N vectors, whole or a single one of Part{n} lanes, at j: G deltas added to nothing and taken into the model, where
// kOnly says that there are no others; else added to the partial sums.
template <class T, int G, bool kOnly, int N, class Lanes>
inline __attribute__((always_inline)) void aggregate_vecs(const AggregateArgs<T>& a, const T* const (&delta)[G],
                                                          const Vec<T> (&factor)[G], std::int64_t j, Lanes lanes) {
  using V = Vec<T>;
  V sum[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    sum[n] = kOnly ? V::zero() : load(a.part + (j - a.block) + n * V::kLanes, lanes);
  }
#pragma GCC unroll 10
  for (int k = 0; k < G; ++k) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      sum[n] = madd(factor[k], load(delta[k] + j + n * V::kLanes, lanes), sum[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    if constexpr (kOnly) {
      const V at = load(a.w + j + n * V::kLanes, lanes);
      store(madd(V::set(a.minus_scale), sum[n], at), a.w_out + j + n * V::kLanes, lanes);
    } else {
      store(sum[n], a.part + (j - a.block) + n * V::kLanes, lanes);
    }
  }
}

// Elements j .. end of G deltas from the first on.
template <class T, int G, bool kOnly>
void aggregate_group(const AggregateArgs<T>& a, std::int64_t first, std::int64_t j, std::int64_t end) {
  using V = Vec<T>;
  constexpr int kVecs = 4;
  const T* delta[G];
  V factor[G];
  for (int k = 0; k < G; ++k) {
    delta[k] = a.delta[first + k];
    factor[k] = V::set(a.weight[first + k]);
  }
  const std::int64_t head = until_aligned(end - j, delta[0] + j);
  if (head > 0) {
    aggregate_vecs<T, G, kOnly, 1>(a, delta, factor, j, Part{static_cast<int>(head)});
    j += head;
  }
  for (; j + kVecs * V::kLanes <= end; j += kVecs * V::kLanes) {
    aggregate_vecs<T, G, kOnly, kVecs>(a, delta, factor, j, Whole{});
  }
  for (; j + V::kLanes <= end; j += V::kLanes) {
    aggregate_vecs<T, G, kOnly, 1>(a, delta, factor, j, Whole{});
  }
  if (j < end) {
    aggregate_vecs<T, G, kOnly, 1>(a, delta, factor, j, Part{static_cast<int>(end - j)});
  }
}

template <class T, bool kOnly>
void aggregate_deltas(const AggregateArgs<T>& a, std::int64_t first, std::int64_t n, std::int64_t j, std::int64_t end) {
  switch (n) {
    case 1: aggregate_group<T, 1, kOnly>(a, first, j, end); break;
    case 2: aggregate_group<T, 2, kOnly>(a, first, j, end); break;
    case 3: aggregate_group<T, 3, kOnly>(a, first, j, end); break;
    case 4: aggregate_group<T, 4, kOnly>(a, first, j, end); break;
    case 5: aggregate_group<T, 5, kOnly>(a, first, j, end); break;
    case 6: aggregate_group<T, 6, kOnly>(a, first, j, end); break;
    case 7: aggregate_group<T, 7, kOnly>(a, first, j, end); break;
    case 8: aggregate_group<T, 8, kOnly>(a, first, j, end); break;
    case 9: aggregate_group<T, 9, kOnly>(a, first, j, end); break;
    default: aggregate_group<T, kDeltasAtOnce, kOnly>(a, first, j, end); break;
  }
}

template <class T>
void aggregate(std::int64_t begin, std::int64_t end, const T* w, std::int64_t n_deltas, const T* const* delta,
               const T* weight, T scale, T* w_out) {
  using V = Vec<T>;
  AggregateArgs<T> a{w, delta, weight, -scale, w_out, nullptr, begin};
  if (n_deltas > 0 && n_deltas <= kDeltasAtOnce) {
    aggregate_deltas<T, true>(a, 0, n_deltas, begin, end);
    return;
  }
  alignas(64) T part[kAggregateBlock<T>];
  a.part = part;
  const Groups groups(n_deltas, kDeltasAtOnce);
  for (; a.block < end; a.block += kAggregateBlock<T>) {
    const std::int64_t n = end - a.block < kAggregateBlock<T> ? end - a.block : kAggregateBlock<T>;
    fill_zero(n, part);
    for (std::int64_t g = 0; g < groups.groups; ++g) {
      const std::int64_t first = groups.begin(g);
      aggregate_deltas<T, false>(a, first, groups.begin(g + 1) - first, a.block, a.block + n);
    }
    const std::int64_t at = a.block;
    for_each_vec<T>(n, [=](std::int64_t j, auto lanes) {
      store(madd(V::set(-scale), load(part + j, lanes), load(w + at + j, lanes)), w_out + at + j, lanes);
    });
  }
}

template <class T>
bool accumulate(std::int64_t dim, const T* sum, const T* delta, T weight, const T* current, const T* start,
                T* sum_out) {
  using V = Vec<T>;
  const V factor = V::set(weight);
  Poison<T> poison;
  const auto pass = [=, &poison](auto contribution, auto before) {
    for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
      store(poison.see(madd(factor, contribution(load(delta + j, n), j, n), before(j, n))), sum_out + j, n);
    });
  };
  const auto plain = [](V d, std::int64_t, auto) { return d; };
  const auto moved = [=](V d, std::int64_t j, auto n) { return d + (load(current + j, n) - load(start + j, n)); };
  const auto zero = [](std::int64_t, auto) { return V::zero(); };
  const auto so_far = [=](std::int64_t j, auto n) { return load(sum + j, n); };
  if (start == nullptr) {
    sum == nullptr ? pass(plain, zero) : pass(plain, so_far);
  } else {
    sum == nullptr ? pass(moved, zero) : pass(moved, so_far);
  }
  return poison.is_none();
}

// kVecs vectors from element j on.
template <class T, int kVecs, class Lanes>
inline __attribute__((always_inline)) void accumulate_models_at(std::int64_t j, Lanes lanes, const T* sum,
                                                                std::int64_t n_models, const T* const* start,
                                                                const T* const* model, const T* weight, T* sum_out,
                                                                Poison<T>& poison) {
  using V = Vec<T>;
  V total[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    total[v] = sum == nullptr ? V::zero() : load(sum + j + v * V::kLanes, lanes);
  }
  for (std::int64_t k = 0; k < n_models; ++k) {
    const T *from = start[k] + j, *to = model[k] + j;
    const V factor = V::set(weight[k]);
    for (int v = 0; v < kVecs; ++v) {
      total[v] = madd(factor, load(from + v * V::kLanes, lanes) - load(to + v * V::kLanes, lanes), total[v]);
    }
  }
  for (int v = 0; v < kVecs; ++v) {
    store(poison.see(total[v]), sum_out + j + v * V::kLanes, lanes);
  }
}

template <class T>
bool accumulate_models(std::int64_t dim, const T* sum, std::int64_t n_models, const T* const* start,
                       const T* const* model, const T* weight, T* sum_out) {
  constexpr int kVecs = 4;
  constexpr std::int64_t kStep = kVecs * Vec<T>::kLanes;
  Poison<T> poison;
  std::int64_t j = 0;
  for (; j + kStep <= dim; j += kStep) {
    accumulate_models_at<T, kVecs>(j, Whole{}, sum, n_models, start, model, weight, sum_out, poison);
  }
  for_each_vec<T>(dim - j, [=, &poison](std::int64_t i, auto lanes) {
    accumulate_models_at<T, 1>(j + i, lanes, sum, n_models, start, model, weight, sum_out, poison);
  });
  return poison.is_none();
}

template <class T>
bool sgd_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* velocity, T* w_out) {
  using V = Vec<T>;
  Poison<T> poison;
  if (config.momentum == 0) {
    const V scale = V::set(static_cast<T>(-(config.lr / config.norm)));
    for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
      store(poison.see(madd(scale, load(sum + j, n), load(w + j, n))), w_out + j, n);
    });
    return poison.is_none();
  }
  const V keep = V::set(static_cast<T>(config.momentum));
  const V inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V minus_lr = V::set(static_cast<T>(-config.lr));
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
    const V v = madd(inverse, load(sum + j, n), keep * load(velocity + j, n));
    store(v, velocity + j, n);
    store(poison.see(madd(minus_lr, v, load(w + j, n))), w_out + j, n);
  });
  return poison.is_none();
}

template <class T>
bool adam_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second, T* w_out) {
  using V = Vec<T>;
  const double t = static_cast<double>(config.step);
  const V inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V decay = V::set(static_cast<T>(config.weight_decay));
  const V b1 = V::set(static_cast<T>(config.beta1)), b2 = V::set(static_cast<T>(config.beta2));
  const V c1 = V::set(static_cast<T>(1.0 - config.beta1)), c2 = V::set(static_cast<T>(1.0 - config.beta2));
  const V minus_lr = V::set(static_cast<T>(-(config.lr / (1.0 - ::pow(config.beta1, t)))));
  const V unbias = V::set(static_cast<T>(1.0 / (1.0 - ::pow(config.beta2, t))));
  const V epsilon = V::set(static_cast<T>(config.epsilon));
  Poison<T> poison;
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
    const V at = load(w + j, n);
    const V g = madd(decay, at, inverse * load(sum + j, n));
    const V m = madd(c1, g, b1 * load(first + j, n));
    const V s = madd(c2 * g, g, b2 * load(second + j, n));
    store(m, first + j, n);
    store(s, second + j, n);
    store(poison.see(madd(minus_lr, m / (sqrt(s * unbias) + epsilon), at)), w_out + j, n);
  });
  return poison.is_none();
}

template <class T>
bool all_finite(std::int64_t dim, const T* x) {
  Poison<T> poison;
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) { poison.see(load(x + j, n)); });
  return poison.is_none();
}

template <class T>
void subtract(std::int64_t n, const T* a, const T* b, T* out) {
  for_each_vec<T>(n, [=](std::int64_t j, auto k) { store(load(a + j, k) - load(b + j, k), out + j, k); });
}

// Products into eight sums of doubles in a fixed order, whatever the level: number j of the whole goes to sum j % 8.
template <class T>
inline __attribute__((always_inline)) void add_products(std::int64_t n, const T* x, const T* y, double* part) {
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    for (int i = 0; i < 8; ++i) {
      part[i] += static_cast<double>(x[j + i]) * static_cast<double>(y[j + i]);
    }
  }
  for (int i = 0; j < n; ++j, ++i) {
    part[i] += static_cast<double>(x[j]) * static_cast<double>(y[j]);
  }
}

inline double sum_of_eight(const double* part) {
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

template <class T>
double dot(std::int64_t dim, const T* x, const T* y) {
  double part[8] = {};
  add_products(dim, x, y, part);
  return sum_of_eight(part);
}

inline constexpr std::int64_t kDotBlock = 2048;  // stays in the first cache; a multiple of 8

template <class T>
double squared_distance(std::int64_t dim, const T* x, const T* y) {
  double part[8] = {};
  T way[kDotBlock];
  for (std::int64_t begin = 0; begin < dim; begin += kDotBlock) {
    const std::int64_t n = dim - begin < kDotBlock ? dim - begin : kDotBlock;
    subtract(n, x + begin, y + begin, way);
    add_products(n, way, way, part);
  }
  return sum_of_eight(part);
}

template <class T>
void copy(std::int64_t n, const T* from, T* to) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}
