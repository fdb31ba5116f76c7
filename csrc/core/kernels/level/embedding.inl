// A row of weights for each token.

template <class T>
void embedding_forward(const Network& network, const Operation& op, const Scratch<T>& s, const T* w,
                       std::int64_t n_rows) {
  const Tensor& out = network.tensors[op.out];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    T* const to = s.layers.value[op.out] + r * out.size();
    for (std::int64_t t = 0; t < out.w; ++t) {
      copy(out.c, w + op.weight + s.token[r][t] * out.c, to + t * out.c);
    }
  }
}

// Adds to the rows of sum whose tokens occur, and reads and writes no others; in the order of rows, then of steps.
template <class T>
void embedding_backward(const Network& network, const Operation& op, const Scratch<T>& s, std::int64_t n_rows, T* sum) {
  const Tensor& out = network.tensors[op.out];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const g = s.layers.gradient[op.out] + r * out.size();
    for (std::int64_t t = 0; t < out.w; ++t) {
      T* const to = sum + op.weight + s.token[r][t] * out.c;
      for_each_vec<T>(out.c, [=, from = g + t * out.c](std::int64_t j, auto lanes) {
        store(load(to + j, lanes) + load(from + j, lanes), to + j, lanes);
      });
    }
  }
}
