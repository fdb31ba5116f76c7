// Loops over whole models: the buffer, the server's step, the pieces of a local step.

template <class T, int N>
inline __attribute__((always_inline)) void aggregate_block(const T* w, std::int64_t n_deltas, const T* const* delta,
                                                           const T* weight, Vec<T> scale, std::int64_t j, T* w_out) {
  using V = Vec<T>;
  V acc[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    acc[n] = V::zero();
  }
  for (std::int64_t k = 0; k < n_deltas; ++k) {
    const V factor = V::set(weight[k]);
    const T* d = delta[k] + j;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      acc[n] = madd(factor, V::load(d + n * V::kLanes), acc[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    madd(scale, acc[n], V::load(w + j + n * V::kLanes)).store(w_out + j + n * V::kLanes);
  }
}

template <class T>
void aggregate(std::int64_t dim, const T* w, std::int64_t n_deltas, const T* const* delta, const T* weight, T scale,
               T* w_out) {
  using V = Vec<T>;
  constexpr int kVecs = 4;
  const V minus_scale = V::set(-scale);
  std::int64_t j = 0;
  for (; j + kVecs * V::kLanes <= dim; j += kVecs * V::kLanes) {
    aggregate_block<T, kVecs>(w, n_deltas, delta, weight, minus_scale, j, w_out);
  }
  for (; j < dim; j += V::kLanes) {
    const int n = static_cast<int>(dim - j < V::kLanes ? dim - j : V::kLanes);
    V acc = V::zero();
    for (std::int64_t k = 0; k < n_deltas; ++k) {
      acc = madd(V::set(weight[k]), V::load_part(delta[k] + j, n), acc);
    }
    madd(minus_scale, acc, V::load_part(w + j, n)).store_part(w_out + j, n);
  }
}

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

template <class T>
bool accumulate(std::int64_t dim, const T* sum, const T* delta, T weight, const T* current, const T* start,
                T* sum_out) {
  using V = Vec<T>;
  const V factor = V::set(weight);
  V poison = V::zero();  // 0 * x stays 0 unless some x is not finite
  const auto pass = [=, &poison](auto contribution, auto before) {
    for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
      const V d = load(delta + j, n);
      poison = madd(d, V::zero(), poison);
      store(madd(factor, contribution(d, j, n), before(j, n)), sum_out + j, n);
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
  return sum_lanes(poison) == T(0);
}

template <class T>
void sgd_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* velocity, T* w_out) {
  using V = Vec<T>;
  if (config.momentum == 0) {
    const V scale = V::set(static_cast<T>(-(config.lr / config.norm)));
    for_each_vec<T>(
        dim, [=](std::int64_t j, auto n) { store(madd(scale, load(sum + j, n), load(w + j, n)), w_out + j, n); });
    return;
  }
  const V keep = V::set(static_cast<T>(config.momentum));
  const V inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V minus_lr = V::set(static_cast<T>(-config.lr));
  for_each_vec<T>(dim, [=](std::int64_t j, auto n) {
    const V v = madd(inverse, load(sum + j, n), keep * load(velocity + j, n));
    store(v, velocity + j, n);
    store(madd(minus_lr, v, load(w + j, n)), w_out + j, n);
  });
}

template <class T>
void adam_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second, T* w_out) {
  using V = Vec<T>;
  const double t = static_cast<double>(config.step);
  const V inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V decay = V::set(static_cast<T>(config.weight_decay));
  const V b1 = V::set(static_cast<T>(config.beta1)), b2 = V::set(static_cast<T>(config.beta2));
  const V c1 = V::set(static_cast<T>(1.0 - config.beta1)), c2 = V::set(static_cast<T>(1.0 - config.beta2));
  const V minus_lr = V::set(static_cast<T>(-(config.lr / (1.0 - ::pow(config.beta1, t)))));
  const V unbias = V::set(static_cast<T>(1.0 / (1.0 - ::pow(config.beta2, t))));
  const V epsilon = V::set(static_cast<T>(config.epsilon));
  for_each_vec<T>(dim, [=](std::int64_t j, auto n) {
    const V at = load(w + j, n);
    const V g = madd(decay, at, inverse * load(sum + j, n));
    const V m = madd(c1, g, b1 * load(first + j, n));
    const V s = madd(c2 * g, g, b2 * load(second + j, n));
    store(m, first + j, n);
    store(s, second + j, n);
    store(madd(minus_lr, m / (sqrt(s * unbias) + epsilon), at), w_out + j, n);
  });
}

template <class T>
bool all_finite(std::int64_t dim, const T* x) {
  using V = Vec<T>;
  V poison = V::zero();  // 0 * x stays 0 unless some x is not finite
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) { poison = madd(load(x + j, n), V::zero(), poison); });
  return sum_lanes(poison) == T(0);
}

template <class T>
double dot(std::int64_t dim, const T* x, const T* y) {
  // Eight sums of doubles in a fixed order, whatever the level.
  double part[8] = {};
  std::int64_t j = 0;
  for (; j + 8 <= dim; j += 8) {
    for (int i = 0; i < 8; ++i) {
      part[i] += static_cast<double>(x[j + i]) * static_cast<double>(y[j + i]);
    }
  }
  for (int i = 0; j < dim; ++j, ++i) {
    part[i] += static_cast<double>(x[j]) * static_cast<double>(y[j]);
  }
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

template <class T>
void copy(std::int64_t n, const T* from, T* to) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

template <class T>
void fill_zero(std::int64_t n, T* to) {
  __builtin_memset(to, 0, static_cast<std::size_t>(n) * sizeof(T));
}

template <class T>
void subtract(std::int64_t n, const T* a, const T* b, T* out) {
  for_each_vec<T>(n, [=](std::int64_t j, auto k) { store(load(a + j, k) - load(b + j, k), out + j, k); });
}
