// Norms. Means are taken over a group's channels and all pixels: pixel by pixel along the channels, then the channels
// in double. Weights and biases stand in the order of the tensor's numbers while they are in use: one for each channel,
// or one for each number.

// What a norm works with.
template <class T>
struct NormPlace {
  const Tensor& in;
  const Tensor& out;
  std::int64_t groups, n_weights;
  std::int64_t step;  // from the weights of a pixel to those of the next one
  T* weight;          // (n_weights)
  T* bias;
  T* weight_sum;  // their gradients
  T* bias_sum;
  T* first;  // (c) sums of a row's channels
  T* second;

  NormPlace(const Network& network, const Operation& op, const NetworkScratch<T>& s)
      : in(network.tensors[op.in]), out(network.tensors[op.out]) {
    const bool each = op.record.kind == LayerKind::LayerNorm;
    groups = each ? 1 : op.record.out;
    n_weights = each ? in.features() : in.c;
    step = each ? in.c : 0;
    weight = s.norm;
    bias = weight + n_weights;
    weight_sum = bias + n_weights;
    bias_sum = weight_sum + n_weights;
    first = bias_sum + n_weights;
    second = first + in.c;
  }

  // Calls body(its place in the model, its place here) for every weight.
  template <class Body>
  void for_each_weight(Body body) const {
    const std::int64_t pixels = n_weights / in.c;
    for (std::int64_t c = 0; c < in.c; ++c) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        body(c * pixels + i, i * in.c + c);
      }
    }
  }
  void load_weights(const Operation& op, const T* w) const {
    for_each_weight([&](std::int64_t from, std::int64_t to) {
      weight[to] = op.weight < 0 ? T(1) : w[op.weight + from];
      bias[to] = op.bias < 0 ? T(0) : w[op.bias + from];
    });
  }
  // Calls body(place in the input's row, place in the output's row, place of its weights) for every pixel.
  template <class Body>
  FB_ALWAYS_INLINE void for_each_pixel(Body body) const {
    std::int64_t weights = 0;
    for (std::int64_t y = 0; y < in.h; ++y) {
      for (std::int64_t x = 0; x < in.w; ++x, weights += step) {
        body(in.first() + y * in.line() + x * in.c, out.first() + y * out.line() + x * in.c, weights);
      }
    }
  }
  // Each channel's number becomes function(the mean over its group of what the channels of `sums` hold).
  template <class Function>
  void share_in_groups(T* sums, Function function) const {
    const std::int64_t size = in.c / groups;
    const double n = static_cast<double>(size * in.h * in.w);
    for (std::int64_t g = 0; g < groups; ++g, sums += size) {
      double total = 0;
      for (std::int64_t c = 0; c < size; ++c) {
        total += static_cast<double>(sums[c]);
      }
      const T shared = static_cast<T>(function(total / n));
      for (std::int64_t c = 0; c < size; ++c) {
        sums[c] = shared;
      }
    }
  }
};

// s.choice keeps mean and 1 / sqrt(variance + epsilon) of every row's channels.
template <class T, class Row>
void norm_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w, Row row,
                  std::int64_t n_rows) {
  using V = Vec<T>;
  const NormPlace<T> place(network, op, s);
  const std::int64_t c = place.in.c;
  place.load_weights(op, w);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const x = row(r);
    T* const y = s.value[op.out] + r * place.out.size();
    T* const mean = s.choice[op.out] + 2 * r * c;
    T* const scale = mean + c;
    fill_zero(2 * c, mean);
    place.for_each_pixel([=](std::int64_t from, std::int64_t, std::int64_t) {
      for_each_vec<T>(c, [=](std::int64_t j, auto lanes) {
        store(load(mean + j, lanes) + load(x + from + j, lanes), mean + j, lanes);
      });
    });
    place.share_in_groups(mean, [](double value) { return value; });
    place.for_each_pixel([=](std::int64_t from, std::int64_t, std::int64_t) {
      for_each_vec<T>(c, [=](std::int64_t j, auto lanes) {
        const V away = load(x + from + j, lanes) - load(mean + j, lanes);
        store(madd(away, away, load(scale + j, lanes)), scale + j, lanes);
      });
    });
    place.share_in_groups(scale, [&](double value) { return 1.0 / __builtin_sqrt(value + op.record.number); });
    place.for_each_pixel([=](std::int64_t from, std::int64_t to, std::int64_t weights) {
      for_each_vec<T>(c, [=, weight = place.weight + weights, bias = place.bias + weights](std::int64_t j, auto lanes) {
        const V normal = (load(x + from + j, lanes) - load(mean + j, lanes)) * load(scale + j, lanes);
        store(madd(normal, load(weight + j, lanes), load(bias + j, lanes)), y + to + j, lanes);
      });
    });
  }
}

// Adds the gradient of weights and biases to sum, which may be w, and makes that of the input where it is wanted.
template <class T, class Row>
void norm_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w, Row row,
                   std::int64_t n_rows, T* sum) {
  using V = Vec<T>;
  const NormPlace<T> place(network, op, s);
  const std::int64_t c = place.in.c;
  place.load_weights(op, w);
  fill_zero(2 * place.n_weights, place.weight_sum);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const x = row(r);
    const T* const g = s.gradient[op.out] + r * place.out.size();
    T* const back = s.gradient[op.in] + r * place.in.size();
    const T* const mean = s.choice[op.out] + 2 * r * c;
    const T* const scale = mean + c;
    fill_zero(2 * c, place.first);
    const auto normal = [=](std::int64_t from, std::int64_t j, auto lanes) {
      return (load(x + from + j, lanes) - load(mean + j, lanes)) * load(scale + j, lanes);
    };
    place.for_each_pixel([=, &place](std::int64_t from, std::int64_t to, std::int64_t weights) {
      for_each_vec<T>(c, [=, &place](std::int64_t j, auto lanes) {
        const V own = load(g + to + j, lanes), at = normal(from, j, lanes);
        T* const weight_sum = place.weight_sum + weights + j;
        T* const bias_sum = place.bias_sum + weights + j;
        store(madd(own, at, load(weight_sum, lanes)), weight_sum, lanes);
        store(load(bias_sum, lanes) + own, bias_sum, lanes);
        const V passed = own * load(place.weight + weights + j, lanes);
        store(load(place.first + j, lanes) + passed, place.first + j, lanes);
        store(madd(passed, at, load(place.second + j, lanes)), place.second + j, lanes);
      });
    });
    if (!op.passes_back) {
      continue;
    }
    place.share_in_groups(place.first, [](double value) { return value; });
    place.share_in_groups(place.second, [](double value) { return value; });
    place.for_each_pixel([=, &place](std::int64_t from, std::int64_t to, std::int64_t weights) {
      for_each_vec<T>(c, [=, &place](std::int64_t j, auto lanes) {
        const V passed = load(g + to + j, lanes) * load(place.weight + weights + j, lanes);
        const V less = madd(normal(from, j, lanes), load(place.second + j, lanes), load(place.first + j, lanes));
        store((passed - less) * load(scale + j, lanes), back + from + j, lanes);
      });
    });
  }
  if (op.weight >= 0) {
    place.for_each_weight([&](std::int64_t to, std::int64_t from) {
      sum[op.weight + to] += place.weight_sum[from];
      sum[op.bias + to] += place.bias_sum[from];
    });
  }
}
