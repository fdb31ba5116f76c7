// Server steps of the optimizers that keep moments: Nesterov's, and Adam's relatives without bias correction.

template <class T>
bool nesterov_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* velocity, T* w_out) {
  using V = Vec<T>;
  const V keep = V::set(static_cast<T>(config.momentum)), inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V minus_lr = V::set(static_cast<T>(-config.lr));
  Poison<T> poison;
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
    const V g = inverse * load(sum + j, n);
    const V v = madd(keep, load(velocity + j, n), g);
    store(v, velocity + j, n);
    store(poison.see(madd(minus_lr, madd(keep, v, g), load(w + j, n))), w_out + j, n);
  });
  return poison.is_none();
}

// `pending` holds the directions since the last change of the momentum.
template <class T>
bool delayed_nesterov_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* momentum,
                           T* pending, T* w_out) {
  using V = Vec<T>;
  const auto period = static_cast<double>(config.period);
  const bool last = config.step % config.period == 0;
  const double active = last ? 1.0 - config.activation * (period - 1) : config.activation;
  const V inverse = V::set(static_cast<T>(1.0 / config.norm)), part = V::set(static_cast<T>(1.0 / period));
  const V keep = V::set(static_cast<T>(config.momentum)), share = V::set(static_cast<T>(active * config.momentum));
  const V minus_lr = V::set(static_cast<T>(-config.lr));
  Poison<T> poison;
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
    const V g = inverse * load(sum + j, n);
    const V all = g + load(pending + j, n);
    V m = load(momentum + j, n);
    if (last) {
      m = madd(part, all, keep * m);
      store(m, momentum + j, n);
    }
    store(last ? V::zero() : all, pending + j, n);
    store(poison.see(madd(minus_lr, madd(part, g, share * m), load(w + j, n))), w_out + j, n);
  });
  return poison.is_none();
}

// The relatives of Adam: second_of(v, g^2, j, n) is the next second moment, and root_of(v, j, n) what its root divides.
template <class T, class SecondOf, class RootOf>
bool adaptive_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second, T* w_out,
                   SecondOf second_of, RootOf root_of) {
  using V = Vec<T>;
  const V inverse = V::set(static_cast<T>(1.0 / config.norm));
  const V decay = V::set(static_cast<T>(config.weight_decay));
  const V b1 = V::set(static_cast<T>(config.beta1)), c1 = V::set(static_cast<T>(1.0 - config.beta1));
  const V minus_lr = V::set(static_cast<T>(-config.lr)), epsilon = V::set(static_cast<T>(config.epsilon));
  Poison<T> poison;
  for_each_vec<T>(dim, [=, &poison](std::int64_t j, auto n) {
    const V at = load(w + j, n);
    const V g = madd(decay, at, inverse * load(sum + j, n));
    const V m = madd(c1, g, b1 * load(first + j, n));
    const V s = second_of(load(second + j, n), g * g);
    store(m, first + j, n);
    store(s, second + j, n);
    store(poison.see(madd(minus_lr, m / (sqrt(root_of(s, j, n)) + epsilon), at)), w_out + j, n);
  });
  return poison.is_none();
}

template <class T>
bool optimizer_step(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second, T* third,
                    T* w_out) {
  using V = Vec<T>;
  const V b2 = V::set(static_cast<T>(config.beta2)), c2 = V::set(static_cast<T>(1.0 - config.beta2));
  const auto mean = [=](V v, V square) { return madd(c2, square, b2 * v); };
  const auto itself = [](V v, std::int64_t, auto) { return v; };
  switch (config.optimizer) {
    case Optimizer::Nesterov: return nesterov_step(dim, w, sum, config, first, w_out);
    case Optimizer::DelayedNesterov: return delayed_nesterov_step(dim, w, sum, config, first, second, w_out);
    case Optimizer::AdamUncorrected: return adaptive_step(dim, w, sum, config, first, second, w_out, mean, itself);
    case Optimizer::Adagrad:
      return adaptive_step(dim, w, sum, config, first, second, w_out, [](V v, V square) { return v + square; }, itself);
    case Optimizer::Yogi: {
      // v - c2 g^2 sign(v - g^2): towards g^2 by a share of it, whichever way that is; equal ones stay.
      const auto towards = [=](V v, V square) {
        const V change = c2 * square;
        return if_less(v, square, v + change, if_less(square, v, v - change, v));
      };
      return adaptive_step(dim, w, sum, config, first, second, w_out, towards, itself);
    }
    case Optimizer::AmsGrad: {
      const auto largest = [=](V v, std::int64_t j, auto n) {
        const V most = max(load(third + j, n), v);
        store(most, third + j, n);
        return most;
      };
      return adaptive_step(dim, w, sum, config, first, second, w_out, mean, largest);
    }
  }
  return false;
}
