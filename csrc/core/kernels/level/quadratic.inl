// f(w) = (w - c)' A (w - c) / 2 and its gradient A (w - c), with Gaussian noise in local steps.

// gradient_out = A (w - c); difference (dim) receives w - c.
template <class T>
void quadratic_gradient(const Problem<T>& p, const Scratch<T>& s, std::int64_t client, const T* w, T* difference,
                        T* gradient_out) {
  using V = Vec<T>;
  const std::int64_t dim = p.dim;
  subtract(dim, w, p.center + client * dim, difference);
  const std::int64_t which = p.curvature_shared ? 0 : client;
  switch (p.curvature_form) {
    case Curvature::Scalar: {
      const V a = V::set(p.curvature[which]);
      for_each_vec<T>(dim, [=](std::int64_t j, auto n) { store(a * load(difference + j, n), gradient_out + j, n); });
      break;
    }
    case Curvature::Diagonal: {
      const T* a = p.curvature + which * dim;
      for_each_vec<T>(
          dim, [=](std::int64_t j, auto n) { store(load(a + j, n) * load(difference + j, n), gradient_out + j, n); });
      break;
    }
    case Curvature::Dense: {
      const T* a = p.curvature + which * dim * dim;
      for (std::int64_t begin = 0; begin < dim; begin += kBlockRows) {
        const std::int64_t n = dim - begin < kBlockRows ? dim - begin : kBlockRows;
        for (std::int64_t r = 0; r < n; ++r) {
          s.x[r] = a + (begin + r) * dim;
        }
        scores(ScoresArgs<T>{s.x, n, dim, difference, nullptr, gradient_out + begin, 1, 1}, 1);
      }
      break;
    }
  }
}

// gradient[j] += deviation * normal j of the task's step, for j in begin .. begin + 2 * N and below dim.
template <class T, int N>
void add_normals(const Problem<T>& p, const Task& task, std::int64_t step, double deviation, std::int64_t begin,
                 T* gradient) {
  double normal[2 * N];
  normal_pairs<N>(task.seed, static_cast<std::uint32_t>(task.client), task.number, static_cast<std::uint32_t>(step),
                  stream_word(Stream::GradientNoise, static_cast<std::uint32_t>(begin / 2)), normal);
  const std::int64_t n = p.dim - begin < 2 * N ? p.dim - begin : 2 * N;
  for (std::int64_t j = 0; j < n; ++j) {
    gradient[begin + j] += static_cast<T>(deviation * normal[j]);
  }
}

template <class T>
void add_noise(const Problem<T>& p, const Task& task, std::int64_t step, T* gradient) {
  const double deviation =
      __builtin_sqrt(p.noise_variance / (static_cast<double>(p.dim) * static_cast<double>(task.batch)));
  // Wide groups, narrower ones for what is left: the bits do not depend on them.
  std::int64_t j = 0;
  for (; p.dim - j > 16; j += 32) {
    add_normals<T, 16>(p, task, step, deviation, j, gradient);
  }
  for (; p.dim - j > 4; j += 16) {
    add_normals<T, 8>(p, task, step, deviation, j, gradient);
  }
  for (; j < p.dim; j += 2) {
    add_normals<T, 1>(p, task, step, deviation, j, gradient);
  }
}
