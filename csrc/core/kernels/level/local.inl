// The client's side: Q local steps.

// sum += the gradient of the regularisers at w; returns their value.
template <class T>
double regularise(const Problem<T>& p, const T* w, bool want_loss, T* sum) {
  using V = Vec<T>;
  if (sum != nullptr && (p.l2 != 0 || p.nonconvex != 0)) {
    const V l2 = V::set(static_cast<T>(p.l2)), twice = V::set(static_cast<T>(2 * p.nonconvex)), one = V::set(T(1));
    for_each_vec<T>(p.dim, [=](std::int64_t j, auto n) {
      const V at = load(w + j, n);
      const V q = madd(at, at, one);
      store(madd(at, l2 + twice / (q * q), load(sum + j, n)), sum + j, n);
    });
  }
  double value = 0;
  if (want_loss && p.l2 != 0) {
    value += 0.5 * p.l2 * dot(p.dim, w, w);
  }
  if (want_loss && p.nonconvex != 0) {
    double total = 0;
    for (std::int64_t j = 0; j < p.dim; ++j) {
      const double square = static_cast<double>(w[j]) * static_cast<double>(w[j]);
      total += square / (1 + square);
    }
    value += p.nonconvex * total;
  }
  return value;
}

// Whether a row drawn twice may be visited once: not with dropout, where each draw has a mask of its own.
template <class T>
bool merges(const Problem<T>& p) {
  return p.max_rows <= kMostRowsMerged && (p.family != Family::Layers || p.network->n_draws == 0);
}

// Says where the next block begins in the batch of a task's step.
template <class T>
void set_place(const Problem<T>& p, const Scratch<T>& s, const Task& task, std::int64_t step, std::int64_t begin) {
  if (p.family == Family::Layers) {
    *s.layers.place = {true,
                       task.seed,
                       static_cast<std::uint32_t>(task.client),
                       task.number,
                       static_cast<std::uint32_t>(step),
                       static_cast<std::uint32_t>(begin)};
  }
}

// The gradient over all rows of a task's client, added to sum.
template <class T>
void rows_gradient(const Problem<T>& p, const Scratch<T>& s, const Task& task, std::int64_t step, const T* w, T* sum) {
  const std::int64_t client = task.client;
  const std::int64_t n_rows = p.rows(client);
  const T share = static_cast<T>(1.0 / static_cast<double>(n_rows));
  const std::int64_t most = most_rows(p);
  for (std::int64_t begin = 0; begin < n_rows; begin += most) {
    const std::int64_t n = n_rows - begin < most ? n_rows - begin : most;
    for (std::int64_t r = 0; r < n; ++r) {
      s.row[r] = static_cast<std::uint32_t>(begin + r);
      s.scale[r] = share;
    }
    set_place(p, s, task, step, begin);
    block_gradient(p, s, w, p.offsets[client], n, {}, sum);
  }
}

// Draws part of a step's batch into s.row and s.scale, merged where it pays; each draw counts `share`.
template <class T>
std::int64_t prepare_batch(const Problem<T>& p, const Scratch<T>& s, const Task& task, std::int64_t step,
                           std::int64_t begin, T share) {
  const std::int64_t n_rows = p.rows(task.client);
  const std::int64_t most = most_rows(p);
  const std::int64_t left = task.batch_at(step, n_rows) - begin;
  std::int64_t n = left < most ? left : most;
  draw_rows(task, step, begin, n, n_rows, s.row);
  set_place(p, s, task, step, begin);
  if (merges(p) && task.steps_per_pass == 0) {
    n = merge_repeats(s.row, n, s.seen, s.row, s.scale);
    for (std::int64_t r = 0; r < n; ++r) {
      s.scale[r] *= share;
    }
  } else {
    for (std::int64_t r = 0; r < n; ++r) {
      s.scale[r] = share;
    }
  }
  return n;
}

// The gradient of one local step's objective, into gradient_out.
template <class T>
void step_gradient(const Problem<T>& p, const Scratch<T>& s, const Task& task, std::int64_t step, const T* w,
                   T* gradient_out) {
  if (p.family == Family::Quadratic) {
    quadratic_gradient(p, s, task.client, w, gradient_out == s.gradient ? s.velocity : s.gradient, gradient_out);
    if (p.noise_variance != 0 && task.batch > 0) {
      add_noise(p, task, step, gradient_out);
    }
    return;
  }
  fill_zero(p.dim, gradient_out);
  if (task.batch == 0) {
    rows_gradient(p, s, task, step, w, gradient_out);
  } else {
    const std::int64_t batch = task.batch_at(step, p.rows(task.client));
    const T share = static_cast<T>(1.0 / static_cast<double>(batch));
    for (std::int64_t begin = 0; begin < batch; begin += most_rows(p)) {
      const std::int64_t n = prepare_batch(p, s, task, step, begin, share);
      block_gradient(p, s, w, p.offsets[task.client], n, {}, gradient_out);
    }
  }
  regularise(p, w, false, gradient_out);
}

template <class T>
void local_sgd_one(const Problem<T>& p, const LocalConfig& config, const LocalTask<T>& one, void* memory) {
  using V = Vec<T>;
  const Task& task = one.task;
  const T *w = one.w, *shift = one.shift;
  T* delta_out = one.delta_out;
  const Scratch<T> s(p, memory);
  T* at = s.w;
  copy(p.dim, w, at);
  const bool rows = p.family != Family::Quadratic;
  const bool in_place = rows && config.plain() && shift == nullptr && p.l2 == 0 && p.nonconvex == 0 && task.batch > 0 &&
                        task.batch <= most_rows(p);
  if (in_place) {
    // The whole batch fits one block: its gradient, times -lr, goes straight into the model.
    for (std::int64_t q = 0; q < config.steps; ++q) {
      const T share = static_cast<T>(-config.lr_at(q) / static_cast<double>(task.batch_at(q, p.rows(task.client))));
      const std::int64_t n = prepare_batch(p, s, task, q, 0, share);
      block_gradient(p, s, at, p.offsets[task.client], n, {}, at);
    }
  } else if (shift != nullptr) {
    T* g = s.gradient;
    const V prox = V::set(static_cast<T>(config.prox));
    for (std::int64_t q = 0; q < config.steps; ++q) {
      step_gradient(p, s, task, q, at, g);
      const V minus_lr = V::set(static_cast<T>(-config.lr_at(q)));
      for_each_vec<T>(p.dim, [=](std::int64_t j, auto n) {
        const V here = load(at + j, n);
        const V v = madd(prox, here - load(w + j, n), load(g + j, n) - load(shift + j, n));
        store(madd(minus_lr, v, here), at + j, n);
      });
    }
  } else if (config.plain()) {
    T* g = s.gradient;
    for (std::int64_t q = 0; q < config.steps; ++q) {
      step_gradient(p, s, task, q, at, g);
      const V minus_lr = V::set(static_cast<T>(-config.lr_at(q)));
      for_each_vec<T>(
          p.dim, [=](std::int64_t j, auto n) { store(madd(minus_lr, load(g + j, n), load(at + j, n)), at + j, n); });
    }
  } else {
    // delta_out serves as the gradient until the end: the velocity needs the third vector.
    T* g = delta_out;
    T* velocity = s.velocity;
    fill_zero(p.dim, velocity);
    const V momentum = V::set(static_cast<T>(config.momentum));
    const V decay = V::set(static_cast<T>(config.weight_decay)), prox = V::set(static_cast<T>(config.prox));
    for (std::int64_t q = 0; q < config.steps; ++q) {
      step_gradient(p, s, task, q, at, g);
      const V minus_lr = V::set(static_cast<T>(-config.lr_at(q)));
      for_each_vec<T>(p.dim, [=](std::int64_t j, auto n) {
        const V here = load(at + j, n);
        const V pull = madd(prox, here - load(w + j, n), madd(decay, here, load(g + j, n)));
        const V v = madd(momentum, load(velocity + j, n), pull);
        store(v, velocity + j, n);
        store(madd(minus_lr, v, here), at + j, n);
      });
    }
  }
  if (config.scale == 1) {
    subtract(p.dim, w, at, delta_out);
    return;
  }
  const V scale = V::set(static_cast<T>(config.scale));
  for_each_vec<T>(p.dim,
                  [=](std::int64_t j, auto n) { store(scale * (load(w + j, n) - load(at + j, n)), delta_out + j, n); });
}

template <class T>
void local_sgd(const Problem<T>& p, const LocalConfig& config, const LocalTask<T>* tasks, std::int64_t n_tasks,
               void* memory) {
  const bool small = is_small(p, config);
  for (std::int64_t i = 0; i < n_tasks;) {
    const std::int64_t together = small ? local_sgd_small(p, config, tasks + i, n_tasks - i, memory) : 0;
    if (together == 0) {
      local_sgd_one(p, config, tasks[i], memory);
    }
    i += together == 0 ? 1 : together;
  }
}
