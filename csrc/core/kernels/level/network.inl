// A block of rows through a network: the operations of its plan one after the other, forward, and back again.

template <class T>
const T* tensor_row(const Network& network, const Scratch<T>& s, std::int32_t tensor, std::int64_t r) {
  const Tensor& t = network.tensors[tensor];
  return tensor == 0 && !t.image ? s.x[r] : s.layers.value[tensor] + r * t.size();
}

// The pixels of an image in a tensor, from numbers in the order (c, h, w).
template <class T>
void planes_to_pixels(const Tensor& t, const T* from, T* image) {
  T* const to = image + t.first();
  for (std::int64_t c = 0; c < t.c; ++c) {
    for (std::int64_t v = 0; v < t.h; ++v, from += t.w) {
      T* const line = to + v * t.line();
      if (t.c == 1) {
        copy(t.w, from, line);
        continue;
      }
      for (std::int64_t u = 0; u < t.w; ++u) {
        line[u * t.c + c] = from[u];
      }
    }
  }
}

template <class T>
void pixels_to_planes(const Tensor& t, const T* image, T* to) {
  const T* const from = image + t.first();
  for (std::int64_t c = 0; c < t.c; ++c) {
    for (std::int64_t v = 0; v < t.h; ++v) {
      for (std::int64_t u = 0; u < t.w; ++u) {
        *to++ = from[v * t.line() + u * t.c + c];
      }
    }
  }
}

template <class T>
void dense_forward(const Network& network, const Operation& op, const Scratch<T>& s, const T* w, std::int64_t n_rows,
                   bool last) {
  const std::int64_t in = network.tensors[op.in].c, out = op.record.out;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    s.layers.rows[r] = tensor_row(network, s, op.in, r);
  }
  T* z = last ? s.z : s.layers.value[op.out];
  scores(ScoresArgs<T>{s.layers.rows, n_rows, in, w + op.weight, op.bias < 0 ? nullptr : w + op.bias, z, last ? 1 : out,
                       last ? kBlockRows : 1},
         out);
  if (op.relu) {
    activate(Activation::Relu, n_rows * out, z);
  }
}

template <class T>
void dense_backward(const Network& network, const Operation& op, const Scratch<T>& s, const T* w, std::int64_t n_rows,
                    bool last, T* sum) {
  const std::int64_t in = network.tensors[op.in].c, out = op.record.out;
  T* const g = last ? s.z : s.layers.gradient[op.out];
  const std::int64_t g_row = last ? 1 : out, g_out = last ? kBlockRows : 1;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    s.layers.rows[r] = tensor_row(network, s, op.in, r);
  }
  if (op.bias >= 0 && !op.relu) {
    add_bias(g, n_rows, g_row, g_out, out, sum + op.bias);
  }
  if (op.relu) {
    multiply_slope(Activation::Relu, n_rows * out, s.layers.value[op.out], g);
    T* back = op.passes_back ? s.layers.gradient[op.in] : nullptr;
    if (back != nullptr) {
      fill_zero(n_rows * in, back);
    }
    dense_sparse_backward(s.layers.rows, n_rows, in, w + op.weight, g, out, *s.layers.dense, back, sum + op.weight);
    if (op.bias >= 0) {
      add_bias(g, n_rows, g_row, g_out, out, sum + op.bias);
    }
    return;
  }
  if (op.passes_back) {
    // Before this layer's weights move: the same loop with rows and outputs exchanged.
    for (std::int64_t o = 0; o < out; ++o) {
      s.layers.weight_row[o] = w + op.weight + o * in;
    }
    T* back = s.layers.gradient[op.in];
    fill_zero(n_rows * in, back);
    add_rows(AddRowsArgs<T>{s.layers.weight_row, out, in, g, g_out, g_row, back}, n_rows);
  }
  add_rows(AddRowsArgs<T>{s.layers.rows, n_rows, in, g, g_row, g_out, sum + op.weight}, out);
}

template <class T>
void add_forward(const Network& network, const Operation& op, const Scratch<T>& s, std::int64_t n_rows) {
  const Tensor& other = network.tensors[op.other];
  for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
    const std::int64_t line = (from - network.tensors[op.in].first()) / network.tensors[op.in].line();
    const T* const a = tensor_row(network, s, op.in, r) + from;
    const T* const b = tensor_row(network, s, op.other, r) + other.first() + line * other.line();
    T* const sum = s.layers.value[op.out] + to;
    for_each_vec<T>(
        n, [=](std::int64_t j, auto lanes) { store(load(a + j, lanes) + load(b + j, lanes), sum + j, lanes); });
  });
}

// The gradient of the output is that of both inputs.
template <class T>
void add_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const Tensor& out = network.tensors[op.out];
  const auto pass = [&](std::int32_t to, bool adds) {
    const Tensor& t = network.tensors[to];
    for (std::int64_t r = 0; r < n_rows; ++r) {
      for (std::int64_t y = 0; y < t.h; ++y) {
        const T* const g = s.gradient[op.out] + r * out.size() + out.first() + y * out.line();
        T* const back = s.gradient[to] + r * t.size() + t.first() + y * t.line();
        for_each_vec<T>(t.w * t.c, [=](std::int64_t j, auto lanes) {
          const Vec<T> own = load(g + j, lanes);
          store(adds ? load(back + j, lanes) + own : own, back + j, lanes);
        });
      }
    }
  };
  pass(op.in, op.adds_back);
  pass(op.other, op.adds_back_other);
}

// Whether a dense layer writes scores: the last one, with nothing behind it.
inline bool is_last(const Network& network, std::int64_t operation) {
  const Operation& op = network.operations[operation];
  return op.kind == OperationKind::Dense && !op.relu && network.operations[operation + 1].kind == OperationKind::Scores;
}

// From the rows at s.x to s.z.
template <class T>
void network_scores(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t n_rows) {
  const Network& network = *p.network;
  const NetworkScratch<T>& own = s.layers;
  const Tensor& input = network.tensors[0];
  for (std::int64_t r = 0; input.image && r < n_rows; ++r) {
    planes_to_pixels(input, s.x[r], own.value[0] + r * input.size());
  }
  for (std::int64_t i = 0; i < network.n_operations; ++i) {
    const Operation& op = network.operations[i];
    const Tensor& in = network.tensors[op.in];
    const auto row = [&](std::int64_t r) { return tensor_row(network, s, op.in, r); };
    switch (op.kind) {
      case OperationKind::Conv: conv_forward(network, op, own, w, n_rows); break;
      case OperationKind::MaxPool: max_pool_forward(network, op, own, n_rows); break;
      case OperationKind::Dense: dense_forward(network, op, s, w, n_rows, is_last(network, i)); break;
      case OperationKind::Flatten:
        for (std::int64_t r = 0; r < n_rows; ++r) {
          T* const to = own.value[op.out] + r * in.features();
          in.image ? pixels_to_planes(in, row(r), to) : copy(in.features(), row(r), to);
        }
        break;
      case OperationKind::Embedding: embedding_forward(network, op, s, w, n_rows); break;
      case OperationKind::Augment: augment_forward(network, op, own, row, n_rows); break;
      case OperationKind::LastStep: last_step_forward(network, op, own, row, n_rows); break;
      case OperationKind::Recurrent: recurrent_forward(network, op, own, w, row, n_rows); break;
      case OperationKind::AvgPool: avg_pool_forward(network, op, own, n_rows); break;
      case OperationKind::GlobalAvg: global_avg_forward(network, op, own, row, n_rows); break;
      case OperationKind::Pointwise: pointwise_forward(network, op, own, row, n_rows); break;
      case OperationKind::Dropout: dropout_forward(network, op, own, row, n_rows); break;
      case OperationKind::Norm: norm_forward(network, op, own, w, row, n_rows); break;
      case OperationKind::Add: add_forward(network, op, s, n_rows); break;
      case OperationKind::Scores:
        for (std::int64_t r = 0; !is_last(network, i - 1) && r < n_rows; ++r) {
          const T* from = tensor_row(network, s, op.in, r);
          for (std::int64_t o = 0; o < in.c; ++o) {
            s.z[o * kBlockRows + r] = from[o];
          }
        }
        break;
    }
  }
}

// One operation backward; what it makes of its input's gradient is set.
template <class T>
void operation_backward(const Problem<T>& p, const Scratch<T>& s, std::int64_t operation, const T* w,
                        std::int64_t n_rows, T* sum) {
  const Network& network = *p.network;
  const NetworkScratch<T>& own = s.layers;
  const Operation& op = network.operations[operation];
  const Tensor& in = network.tensors[op.in];
  const auto row = [&](std::int64_t r) { return tensor_row(network, s, op.in, r); };
  switch (op.kind) {
    case OperationKind::Conv: conv_backward(network, op, own, w, n_rows, sum); break;
    case OperationKind::Dense: dense_backward(network, op, s, w, n_rows, is_last(network, operation), sum); break;
    case OperationKind::Norm: norm_backward(network, op, own, w, row, n_rows, sum); break;
    case OperationKind::MaxPool: max_pool_backward(network, op, own, n_rows); break;
    case OperationKind::AvgPool: avg_pool_backward(network, op, own, n_rows); break;
    case OperationKind::GlobalAvg: global_avg_backward(network, op, own, n_rows); break;
    case OperationKind::Pointwise: pointwise_backward(network, op, own, row, n_rows); break;
    case OperationKind::Dropout: dropout_backward(network, op, own, n_rows); break;
    case OperationKind::Add: add_backward(network, op, own, n_rows); break;
    case OperationKind::Embedding: embedding_backward(network, op, s, n_rows, sum); break;
    case OperationKind::Augment: augment_backward(network, op, own, n_rows); break;
    case OperationKind::LastStep: last_step_backward(network, op, own, n_rows); break;
    case OperationKind::Recurrent: recurrent_backward(network, op, own, w, row, n_rows, sum); break;
    case OperationKind::Flatten:
      for (std::int64_t r = 0; r < n_rows; ++r) {
        const T* const g = own.gradient[op.out] + r * in.features();
        T* const back = own.gradient[op.in] + r * in.size();
        in.image ? planes_to_pixels(in, g, back) : copy(in.features(), g, back);
      }
      break;
    case OperationKind::Scores:
      for (std::int64_t r = 0; !is_last(network, operation - 1) && r < n_rows; ++r) {
        T* to = own.gradient[op.in] + r * in.c;
        for (std::int64_t o = 0; o < in.c; ++o) {
          to[o] = s.z[o * kBlockRows + r];
        }
      }
      break;
  }
}

// Backward from s.z: adds the gradient of the rows' scaled losses to sum (dim), which may be w.
template <class T>
void network_backward(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t n_rows, T* sum) {
  const Network& network = *p.network;
  const NetworkScratch<T>& own = s.layers;
  for (std::int64_t i = network.n_operations; i-- > 0;) {
    const Operation& op = network.operations[i];
    const bool learns = op.kind == OperationKind::Conv || op.kind == OperationKind::Dense ||
                        op.kind == OperationKind::Norm || op.kind == OperationKind::Embedding ||
                        op.kind == OperationKind::Recurrent || op.kind == OperationKind::Scores;
    if (!learns && !op.passes_back) {
      continue;
    }
    if (op.kind == OperationKind::Add || !op.adds_back || !op.passes_back) {
      operation_backward(p, s, i, w, n_rows, sum);
      continue;
    }
    T* const kept = own.gradient[op.in];
    own.gradient[op.in] = own.other_gradient;
    operation_backward(p, s, i, w, n_rows, sum);
    own.gradient[op.in] = kept;
    for_each_vec<T>(n_rows * network.tensors[op.in].size(), [=, more = own.other_gradient](std::int64_t j, auto lanes) {
      store(load(kept + j, lanes) + load(more + j, lanes), kept + j, lanes);
    });
  }
}
