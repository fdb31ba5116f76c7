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
      for (std::int64_t u = 0; u < t.w; ++u) {
        to[v * t.line() + u * t.c + c] = from[u];
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
    fill_zero(op.passes_back ? n_rows * in : 0, back);
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

// A ReLU that no layer before it could take in. Tensors of the two have the same pixels, but not the same halo.
template <class T, class Body>
void for_each_line(const Network& network, const Operation& op, std::int64_t n_rows, Body body) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for (std::int64_t y = 0; y < in.h; ++y) {
      body(r, in.first() + y * in.line(), r * out.size() + out.first() + y * out.line(), in.w * in.c);
    }
  }
}

template <class T>
void relu_forward(const Network& network, const Operation& op, const Scratch<T>& s, std::int64_t n_rows) {
  for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
    T* const out = s.layers.value[op.out] + to;
    copy(n, tensor_row(network, s, op.in, r) + from, out);
    activate(Activation::Relu, n, out);
  });
}

template <class T>
void relu_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const std::int64_t in = network.tensors[op.in].size();
  for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
    T* const g = s.gradient[op.in] + r * in + from;
    copy(n, s.gradient[op.out] + to, g);
    multiply_slope(Activation::Relu, n, s.value[op.out] + to, g);
  });
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
    switch (op.kind) {
      case OperationKind::Conv: conv_forward(network, op, own, w, n_rows); break;
      case OperationKind::MaxPool: max_pool_forward(network, op, own, n_rows); break;
      case OperationKind::Dense: dense_forward(network, op, s, w, n_rows, is_last(network, i)); break;
      case OperationKind::Flatten:
        for (std::int64_t r = 0; r < n_rows; ++r) {
          pixels_to_planes(in, own.value[op.in] + r * in.size(), own.value[op.out] + r * in.features());
        }
        break;
      case OperationKind::Relu: relu_forward(network, op, s, n_rows); break;
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

// Backward from s.z: adds the gradient of the rows' scaled losses to sum (dim), which may be w.
template <class T>
void network_backward(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t n_rows, T* sum) {
  const Network& network = *p.network;
  const NetworkScratch<T>& own = s.layers;
  for (std::int64_t i = network.n_operations; i-- > 0;) {
    const Operation& op = network.operations[i];
    const Tensor& in = network.tensors[op.in];
    switch (op.kind) {
      case OperationKind::Conv: conv_backward(network, op, own, w, n_rows, sum); break;
      case OperationKind::MaxPool: op.passes_back ? max_pool_backward(network, op, own, n_rows) : void(); break;
      case OperationKind::Dense: dense_backward(network, op, s, w, n_rows, is_last(network, i), sum); break;
      case OperationKind::Flatten:
        for (std::int64_t r = 0; op.passes_back && r < n_rows; ++r) {
          planes_to_pixels(in, own.gradient[op.out] + r * in.features(), own.gradient[op.in] + r * in.size());
        }
        break;
      case OperationKind::Relu: op.passes_back ? relu_backward(network, op, own, n_rows) : void(); break;
      case OperationKind::Scores:
        for (std::int64_t r = 0; !is_last(network, i - 1) && r < n_rows; ++r) {
          T* to = own.gradient[op.in] + r * in.c;
          for (std::int64_t o = 0; o < in.c; ++o) {
            to[o] = s.z[o * kBlockRows + r];
          }
        }
        break;
    }
  }
}
