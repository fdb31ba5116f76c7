// Dense layers. Backward, behind a ReLU: only gradients that are not zero are visited. A block of outputs at a time, so
// that their weights are read from memory once: first the gradient of the inputs, then that of the weights. Panels of
// features within a block stay in registers while a list of outputs, or of rows, passes.

inline constexpr std::int64_t kDenseOuts = 24;  // outputs of a block
inline constexpr int kPanelVecs = 8;

// A gradient that is not zero, and which output or row of its block it belongs to.
template <class T>
struct DenseEntry {
  T g;
  std::int32_t which;
};

template <class T>
struct DenseLists {
  DenseEntry<T> of_row[kBlockRows][kDenseOuts];
  DenseEntry<T> of_out[kDenseOuts][kBlockRows];
  std::int32_t n_of_row[kBlockRows], n_of_out[kDenseOuts];

  // Outputs [begin, begin + n_outs) of g (n_rows, stride).
  void make(const T* g, std::int64_t stride, std::int64_t n_rows, std::int64_t begin, std::int64_t n_outs) {
    for (std::int64_t o = 0; o < n_outs; ++o) {
      n_of_out[o] = 0;
    }
    for (std::int64_t r = 0; r < n_rows; ++r) {
      std::int64_t n = 0;
      for (std::int64_t o = 0; o < n_outs; ++o) {
        const T value = g[r * stride + begin + o];
        const std::int64_t one = counts(value);
        of_row[r][n] = {value, static_cast<std::int32_t>(o)};
        n += one;
        of_out[o][n_of_out[o]] = {value, static_cast<std::int32_t>(r)};
        n_of_out[o] += static_cast<std::int32_t>(one);
      }
      n_of_row[r] = static_cast<std::int32_t>(n);
    }
  }
};

// to += sum of g times from(which), N vectors or a part of one.
template <class T, int N, class Lanes, class From>
inline __attribute__((always_inline)) void add_listed(const DenseEntry<T>* list, std::int64_t n, From from, T* to,
                                                      Lanes lanes) {
  using V = Vec<T>;
  V acc[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    acc[v] = load(to + v * V::kLanes, lanes);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const V g = V::set(list[i].g);
    const T* x = from(list[i].which);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      acc[v] = madd(g, load(x + v * V::kLanes, lanes), acc[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    store(acc[v], to + v * V::kLanes, lanes);
  }
}

template <class T>
struct DenseBlock {
  const T* const* x;  // (n_rows) where the rows begin
  std::int64_t n_rows;
  std::int64_t n_features, n_outs;
  const T* w;  // (n_outs, n_features)
  T* back;     // (n_rows, n_features) added to, or null
  T* sum;      // (n_outs, n_features) added to; may be w
  const DenseLists<T>& lists;
};

// Prefetches the panel behind the one at p.
template <class T, int N>
inline __attribute__((always_inline)) void ask_for_panel(const T* p) {
  constexpr int kBytes = N * Vec<T>::kLanes * static_cast<int>(sizeof(T));
#pragma GCC unroll 8
  for (int byte = 0; byte < kBytes; byte += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kBytes + byte);
  }
}

template <class T, int N, class Lanes>
void dense_panel(const DenseBlock<T>& a, std::int64_t j, Lanes lanes) {
  if (a.back != nullptr) {
    for (std::int64_t r = 0; r < a.n_rows; ++r) {
      ask_for_panel<T, N>(a.w + (r < a.n_outs ? r : 0) * a.n_features + j);
      ask_for_panel<T, N>(a.back + r * a.n_features + j);
      add_listed<T, N>(
          a.lists.of_row[r], a.lists.n_of_row[r], [&a, j](std::int64_t o) { return a.w + o * a.n_features + j; },
          a.back + r * a.n_features + j, lanes);
    }
  }
  for (std::int64_t o = 0; o < a.n_outs; ++o) {
    ask_for_panel<T, N>(a.w + o * a.n_features + j);
    ask_for_panel<T, N>(a.x[o < a.n_rows ? o : 0] + j);
    add_listed<T, N>(
        a.lists.of_out[o], a.lists.n_of_out[o], [&a, j](std::int64_t r) { return a.x[r] + j; },
        a.sum + o * a.n_features + j, lanes);
  }
}

// g (n_rows, n_outs): the gradient of the outputs. Adds that of the weights to sum, which may be w, and that of the
// inputs to back, unless it is null.
template <class T>
void dense_sparse_backward(const T* const* x, std::int64_t n_rows, std::int64_t n_features, const T* w, const T* g,
                           std::int64_t n_outs, DenseLists<T>& lists, T* back, T* sum) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const Groups blocks(n_outs, kDenseOuts);
  for (std::int64_t b = 0; b < blocks.groups; ++b) {
    const std::int64_t begin = blocks.begin(b), n = blocks.begin(b + 1) - begin;
    lists.make(g, n_outs, n_rows, begin, n);
    const DenseBlock<T> block{x, n_rows, n_features, n, w + begin * n_features, back, sum + begin * n_features, lists};
    std::int64_t j = 0;
    for (; j + kPanelVecs * kLanes <= n_features; j += kPanelVecs * kLanes) {
      dense_panel<T, kPanelVecs>(block, j, Whole{});
    }
    for (; j + kLanes <= n_features; j += kLanes) {
      dense_panel<T, 1>(block, j, Whole{});
    }
    if (j < n_features) {
      dense_panel<T, 1>(block, j, Part{static_cast<int>(n_features - j)});
    }
  }
}
