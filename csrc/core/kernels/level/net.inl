// A block of rows through a model: forward, the head, backward. No row is copied.

// Where layer l's weights and bias stand in a model.
template <class T>
std::int64_t layer_offset(const Problem<T>& p, int layer) {
  std::int64_t offset = 0;
  for (int l = 0; l < layer; ++l) {
    offset += (std::int64_t{p.size[l]} + (p.intercept ? 1 : 0)) * p.size[l + 1];
  }
  return offset;
}

// The weights of a block's rows in the loss; no loss is computed where `each` is null.
struct LossWeights {
  const double* each = nullptr;  // (kBlockRows), finite behind the rows too
  bool equal = false;            // whether all rows have the same
};

// The sum of weight (log(1 + exp(z)) - y z) over the rows, in double; power is exp(-|z|). Rows of one weight share a
// logarithm: that of the product of 1 + power, which stays below 2^kBlockRows. Behind the rows all three become zero.
template <class T>
double logistic_loss(std::int64_t n_rows, const LossWeights& weights, T* y, T* z, T* power) {
  using W = Vec<double>;
  constexpr std::int64_t kAtOnce = 4 * W::kLanes;
  static_assert(kBlockRows % kAtOnce == 0 && kBlockRows < 1000);
  for (std::int64_t r = n_rows; r % kAtOnce != 0; ++r) {
    y[r] = z[r] = power[r] = T(0);
  }
  const auto factor = [=](std::int64_t r, int i) { return W::load(power + r + i * W::kLanes); };
  const auto linear = [=](std::int64_t r, int i) {
    const W score = W::load(z + r + i * W::kLanes);
    return madd(W::zero() - W::load(y + r + i * W::kLanes), score, max(W::zero(), score));
  };
  W sum = W::zero();
  if (!weights.equal) {
    for (std::int64_t r = 0; r < n_rows; r += W::kLanes) {
      sum = madd(W::load(weights.each + r), log1p_of_unit(factor(r, 0)) + linear(r, 0), sum);
    }
    return sum_lanes(sum);
  }
  W product = W::zero();  // less one
  for (std::int64_t r = 0; r < n_rows; r += kAtOnce) {
    const W four = join_factors(join_factors(factor(r, 0), factor(r, 1)), join_factors(factor(r, 2), factor(r, 3)));
    product = join_factors(product, four);
    sum = sum + ((linear(r, 0) + linear(r, 1)) + (linear(r, 2) + linear(r, 3)));
  }
  double all[W::kLanes];
  product.store(all);
  for (int half = W::kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      all[i] = join_factors(all[i], all[i + half]);
    }
  }
  const double log = all[0] < 1 ? ::log1p(all[0]) : ::log(1 + all[0]);  // log is the faster of the two
  return weights.each[0] * (log + sum_lanes(sum));
}

// One output's scores z turn to scale times the slope of (z - target)^2 / 2.
template <class T>
double squared_head(std::int64_t n_rows, std::int64_t padded, const LossWeights& weights, const T* scale,
                    const T* target, T* z) {
  using V = Vec<T>;
  double loss = 0;
  for (std::int64_t r = 0; r < padded; r += V::kLanes) {
    const V residual = V::load(z + r) - V::load(target + r);
    residual.store(z + r);
  }
  if (weights.each != nullptr) {
    using W = Vec<double>;
    W sum = W::zero();
    for (std::int64_t r = 0; r < n_rows; r += W::kLanes) {
      const W residual = W::load(z + r);
      sum = madd(W::load(weights.each + r), residual * residual, sum);
    }
    loss = 0.5 * sum_lanes(sum);
  }
  for (std::int64_t r = 0; r < padded; r += V::kLanes) {
    (V::load(z + r) * V::load(scale + r)).store(z + r);
  }
  return loss;
}

// The same of log(1 + exp(z)) - target z.
template <class T>
double logistic_head(std::int64_t n_rows, std::int64_t padded, const LossWeights& weights, const T* scale, T* target,
                     T* z) {
  using V = Vec<T>;
  const V one = V::set(T(1));
  if (weights.each == nullptr) {
    for (std::int64_t r = 0; r < padded; r += V::kLanes) {
      const V probability = one / (one + exp(V::zero() - V::load(z + r)));
      ((probability - V::load(target + r)) * V::load(scale + r)).store(z + r);
    }
    return 0;
  }
  // With the loss: one exponential serves both.
  alignas(64) T score[kBlockRows], power[kBlockRows];
  for (std::int64_t r = 0; r < padded; r += V::kLanes) {
    const V at = V::load(z + r), e = exp(V::zero() - abs(at));
    const V probability = if_less(at, V::zero(), e, one) / (one + e);
    ((probability - V::load(target + r)) * V::load(scale + r)).store(z + r);
    at.store(score + r);
    e.store(power + r);
  }
  return logistic_loss(n_rows, weights, target, score, power);
}

// The same of log(sum_o exp(z[o])) - (1 - smoothing) z[label] - smoothing / n_outs sum_o z[o], over all outputs.
template <class T>
double softmax_head(std::int64_t n_rows, std::int64_t padded, std::int32_t n_outs, double smoothing,
                    const LossWeights& weights, const T* scale, const T* label_of, T* z) {
  using V = Vec<T>;
  const double* row_weight = weights.each;
  const V even = V::set(static_cast<T>(smoothing / n_outs));
  double loss = 0;
  for (std::int64_t r = 0; r < padded; r += V::kLanes) {
    const int n = static_cast<int>(n_rows - r < V::kLanes ? n_rows - r : V::kLanes);
    V top = V::load(z + r);
    for (std::int32_t o = 1; o < n_outs; ++o) {
      top = max(top, V::load(z + o * kBlockRows + r));
    }
    if (row_weight != nullptr) {
      T tops[V::kLanes];
      top.store(tops);
      for (int i = 0; i < n; ++i) {
        const auto label = static_cast<std::int64_t>(label_of[r + i]);
        double score = static_cast<double>(z[label * kBlockRows + r + i]);
        if (smoothing != 0) {
          double total = 0;
          for (std::int32_t o = 0; o < n_outs; ++o) {
            total += static_cast<double>(z[o * kBlockRows + r + i]);
          }
          score = (1 - smoothing) * score + smoothing / n_outs * total;
        }
        loss += row_weight[r + i] * (static_cast<double>(tops[i]) - score);
      }
    }
    V total = V::zero();
    for (std::int32_t o = 0; o < n_outs; ++o) {
      const V e = exp(V::load(z + o * kBlockRows + r) - top);
      e.store(z + o * kBlockRows + r);
      total = total + e;
    }
    if (row_weight != nullptr) {
      T totals[V::kLanes];
      total.store(totals);
      for (int i = 0; i < n; ++i) {
        loss += row_weight[r + i] * ::log(static_cast<double>(totals[i]));
      }
    }
    const V counts = V::load(scale + r), factor = counts / total;
    for (std::int32_t o = 0; o < n_outs; ++o) {
      const V share = V::load(z + o * kBlockRows + r) * factor;
      (smoothing == 0 ? share : share - even * counts).store(z + o * kBlockRows + r);
    }
  }
  const T whole = static_cast<T>(1 - smoothing);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const auto label = static_cast<std::int64_t>(label_of[r]);
    z[label * kBlockRows + r] -= smoothing == 0 ? scale[r] : whole * scale[r];
  }
  return loss;
}

// z (outputs, kBlockRows) turns from scores to scale[r] times the gradient of row r's loss; the sum of the losses is
// returned where weights want it. Row r's targets or label are s.target[o * kBlockRows + r].
template <class T>
double apply_head(const Problem<T>& p, const Scratch<T>& s, std::int64_t n_rows, const LossWeights& weights) {
  using V = Vec<T>;
  const std::int64_t padded = (n_rows + V::kLanes - 1) / V::kLanes * V::kLanes;
  const std::int32_t n_outs = p.size[p.n_layers], n_targets = p.head == Head::Softmax ? 1 : n_outs;
  for (std::int64_t r = n_rows; r < padded; ++r) {
    s.scale[r] = T(0);
    for (std::int32_t o = 0; o < n_outs; ++o) {
      s.z[o * kBlockRows + r] = T(0);
    }
    for (std::int32_t o = 0; o < n_targets; ++o) {
      s.target[o * kBlockRows + r] = T(0);
    }
  }
  if (p.head == Head::Softmax) {
    const double smoothing = p.family == Family::Layers ? p.network->label_smoothing : 0.0;
    return softmax_head(n_rows, padded, n_outs, smoothing, weights, s.scale, s.target, s.z);
  }
  double loss = 0;
  for (std::int32_t o = 0; o < n_outs; ++o) {
    T* const target = s.target + o * kBlockRows;
    T* const z = s.z + o * kBlockRows;
    loss += p.head == Head::Squared ? squared_head(n_rows, padded, weights, s.scale, target, z)
                                    : logistic_head(n_rows, padded, weights, s.scale, target, z);
  }
  return loss;
}

template <class T>
void activate(Activation activation, std::int64_t n, T* a) {
  using V = Vec<T>;
  if (activation == Activation::Relu) {
    // Zero first: max gives its second argument where one is NaN, and a NaN must show.
    for_each_vec<T>(n, [=](std::int64_t j, auto k) { store(max(V::zero(), load(a + j, k)), a + j, k); });
  } else {
    for_each_vec<T>(n, [=](std::int64_t j, auto k) { store(tanh(load(a + j, k)), a + j, k); });
  }
}

// g *= activation', written in terms of the activation a.
template <class T>
void multiply_slope(Activation activation, std::int64_t n, const T* a, T* g) {
  using V = Vec<T>;
  if (activation == Activation::Relu) {
    for_each_vec<T>(n, [=](std::int64_t j, auto k) {
      store(if_less(V::zero(), load(a + j, k), load(g + j, k), V::zero()), g + j, k);
    });
  } else {
    for_each_vec<T>(n, [=](std::int64_t j, auto k) {
      const V y = load(a + j, k);
      store(load(g + j, k) * (V::set(T(1)) - y * y), g + j, k);
    });
  }
}

// Forward to s.z. s.x holds where the rows begin, and `ahead` the distance to the rows that come next.
template <class T>
void net_scores(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t n_rows, std::int64_t ahead) {
  const T* const* x = s.x;
  for (int l = 0; l < p.n_layers; ++l) {
    const std::int64_t in = p.size[l], out = p.size[l + 1];
    const T* bias = p.intercept ? w + in * out : nullptr;
    const bool last = l + 1 == p.n_layers;
    ScoresArgs<T> a{x,
                    n_rows,
                    in,
                    w,
                    bias,
                    last ? s.z : s.hidden[l + 1],
                    last ? 1 : out,
                    last ? kBlockRows : 1,
                    l == 0 ? ahead : 0};
    scores(a, out);
    if (!last) {
      activate(p.activation, n_rows * out, s.hidden[l + 1]);
      for (std::int64_t r = 0; r < n_rows; ++r) {
        s.hidden_x[r] = s.hidden[l + 1] + r * out;
      }
      x = s.hidden_x;
    }
    w += in * out + (p.intercept ? out : 0);
  }
}

// bias[o] += sum_r g[r * row_stride + o * out_stride], along whichever of the two is contiguous. The rows are summed
// first: bias may be the model's, beside which the gradient of one row is too small to keep its digits.
template <class T>
void add_bias(const T* g, std::int64_t n_rows, std::int64_t row_stride, std::int64_t out_stride, std::int64_t n_outs,
              T* bias) {
  using V = Vec<T>;
  if (row_stride == 1) {
    for (std::int64_t o = 0; o < n_outs; ++o) {
      V total = V::zero();
      for_each_vec<T>(n_rows, [=, &total](std::int64_t r, auto n) { total = total + load(g + o * out_stride + r, n); });
      bias[o] += sum_lanes(total);
    }
    return;
  }
  for_each_vec<T>(n_outs, [=](std::int64_t o, auto n) {
    V total = V::zero();
    for (std::int64_t r = 0; r < n_rows; ++r) {
      total = total + load(g + r * row_stride + o, n);
    }
    store(load(bias + o, n) + total, bias + o, n);
  });
}

// Backward from s.z: adds the gradient of the rows' scaled losses to sum (dim), which may be w.
template <class T>
void net_backward(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t n_rows, T* sum) {
  const T* g = s.z;
  std::int64_t g_row = 1, g_out = kBlockRows;
  for (int l = p.n_layers - 1; l >= 0; --l) {
    const std::int64_t in = p.size[l], out = p.size[l + 1], offset = layer_offset(p, l);
    T* back = s.back[l % 2];
    if (l > 0) {
      // Before this layer's weights move: gradient of its inputs, the same loop with rows and outputs exchanged.
      for (std::int64_t o = 0; o < out; ++o) {
        s.weight_row[o] = w + offset + o * in;
      }
      fill_zero(n_rows * in, back);
      add_rows(AddRowsArgs<T>{s.weight_row, out, in, g, g_out, g_row, back}, n_rows);
      multiply_slope(p.activation, n_rows * in, s.hidden[l], back);
      for (std::int64_t r = 0; r < n_rows; ++r) {
        s.hidden_x[r] = s.hidden[l] + r * in;
      }
    }
    add_rows(AddRowsArgs<T>{l > 0 ? s.hidden_x : s.x, n_rows, in, g, g_row, g_out, sum + offset}, out);
    if (p.intercept) {
      add_bias(g, n_rows, g_row, g_out, out, sum + offset + in * out);
    }
    g = back;
    g_row = in;
    g_out = 1;
  }
}

template <class T>
void sparse_scores(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t first, std::int64_t n_rows) {
  const T bias = p.intercept ? w[p.n_features] : T(0);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t row = first + s.row[r];
    // Four sums in turn: a single one would wait for every addition.
    T part[4] = {};
    std::int64_t i = p.row_start[row];
    const std::int64_t end = p.row_start[row + 1];
    for (; i + 4 <= end; i += 4) {
      for (int k = 0; k < 4; ++k) {
        part[k] = madd(p.x[i + k], w[p.column[i + k]], part[k]);
      }
    }
    for (int k = 0; i < end; ++i, ++k) {
      part[k] = madd(p.x[i], w[p.column[i]], part[k]);
    }
    s.z[r] = ((part[0] + part[2]) + (part[1] + part[3])) + bias;
  }
}

template <class T>
void sparse_backward(const Problem<T>& p, const Scratch<T>& s, std::int64_t first, std::int64_t n_rows, T* sum) {
  T total = T(0);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t row = first + s.row[r];
    const T g = s.z[r];
    for (std::int64_t i = p.row_start[row]; i < p.row_start[row + 1]; ++i) {
      sum[p.column[i]] = madd(g, p.x[i], sum[p.column[i]]);
    }
    total += g;
  }
  if (p.intercept) {
    sum[p.n_features] += total;
  }
}
