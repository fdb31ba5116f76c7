// A block of rows through a model of whatever family has rows.

static_assert(kMostBlockRows == kBlockRows);

// The most rows of a block.
template <class T>
std::int64_t most_rows(const Problem<T>& p) {
  return p.family == Family::Layers ? p.network->block_rows : kBlockRows;
}

// The rows of bytes that s.row names, as numbers: each of the 256 is worked out once, in double.
template <class T>
void load_bytes(const Problem<T>& p, const Scratch<T>& s, std::int64_t first, std::int64_t n_rows) {
  T number[256];
  for (int byte = 0; byte < 256; ++byte) {
    number[byte] = static_cast<T>(p.scale * byte + p.shift);
  }
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::uint8_t* const from = p.byte + (first + s.row[r]) * p.n_features;
    T* const to = s.loaded + r * p.n_features;
    for (std::int64_t j = 0; j < p.n_features; ++j) {
      to[j] = number[from[j]];
    }
    s.x[r] = to;
  }
}

template <class T>
void block_scores(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t first, std::int64_t n_rows,
                  std::int64_t rows_ahead = 0) {
  if (p.family == Family::Sparse) {
    sparse_scores(p, s, w, first, n_rows);
    return;
  }
  if (p.byte != nullptr) {
    load_bytes(p, s, first, n_rows);
  }
  for (std::int64_t r = 0; p.byte == nullptr && r < n_rows; ++r) {
    const std::int64_t begin = (first + s.row[r]) * p.n_features;
    if (p.token != nullptr) {
      s.token[r] = p.token + begin;
    } else {
      s.x[r] = p.x + begin;
    }
  }
  if (p.family == Family::Layers) {
    network_scores(p, s, w, n_rows);
  } else {
    net_scores(p, s, w, n_rows, rows_ahead * p.n_features);
  }
}

// The rows s.row (numbered from `first`), each counting s.scale times: their gradient is added to sum unless that is
// null. The sum of their losses is returned where weights want it. The rows that come next stand `rows_ahead` behind
// these.
template <class T>
double block_gradient(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t first, std::int64_t n_rows,
                      const LossWeights& weights, T* sum, std::int64_t rows_ahead = 0) {
  const std::int32_t n_targets = p.head == Head::Softmax ? 1 : p.size[p.n_layers];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t row = first + s.row[r];
    for (std::int32_t o = 0; o < n_targets; ++o) {
      s.target[o * kBlockRows + r] =
          p.head == Head::Softmax ? static_cast<T>(p.label[row]) : p.target[row * n_targets + o];
    }
  }
  block_scores(p, s, w, first, n_rows, rows_ahead);
  const double loss = apply_head(p, s, n_rows, weights);
  if (sum != nullptr) {
    if (p.family == Family::Sparse) {
      sparse_backward(p, s, first, n_rows, sum);
    } else if (p.family == Family::Layers) {
      network_backward(p, s, w, n_rows, sum);
    } else {
      net_backward(p, s, w, n_rows, sum);
    }
  }
  return loss;
}
