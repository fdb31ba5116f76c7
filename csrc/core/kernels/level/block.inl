// A block of rows through a model of whatever family has rows.

static_assert(kMostBlockRows == kBlockRows);

// The most rows of a block.
template <class T>
std::int64_t most_rows(const Problem<T>& p) {
  return p.family == Family::Layers ? p.network->block_rows : kBlockRows;
}

template <class T>
void block_scores(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t first, std::int64_t n_rows,
                  std::int64_t rows_ahead = 0) {
  if (p.family == Family::Sparse) {
    sparse_scores(p, s, w, first, n_rows);
    return;
  }
  for (std::int64_t r = 0; r < n_rows; ++r) {
    s.x[r] = p.x + (first + s.row[r]) * p.n_features;
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
