// Over all rows of many clients: the value and the gradient of their objectives, and how many rows are classed right.

// Linear models of one output whose weights fill at most four vectors. With such short rows every other cost counts, so
// rows are read in place, with the model and the sums in registers.
template <class T>
bool is_narrow(const Problem<T>& p) {
  return p.family == Family::Net && p.n_layers == 1 && p.size[1] == 1 && p.head != Head::Softmax &&
         p.n_features <= kSmallVecs * Vec<T>::kLanes;
}

// Rows end to end, read without masks, which cost as much as the product: of a row's kVecs vectors the last one ends
// with the row and overlaps the one before. kHalf: a row fits half a vector. Rows shorter than a vector take a mask.
template <class T, int kVecs, bool kHalf>
struct NarrowRows {
  using V = Vec<T>;
  const T* x;
  std::int64_t n_features;

  int last() const { return kVecs == 1 ? static_cast<int>(n_features) : kHalf ? V::kLanes / 2 : V::kLanes; }
  int overlap() const { return (kVecs - 1) * V::kLanes + last() - static_cast<int>(n_features); }
  V load(const T* row, int v) const {
    if (v + 1 < kVecs) {
      return V::load(row + v * V::kLanes);
    }
    const T* end = row + n_features - last();
    return kVecs == 1 ? V::load_part(end, last()) : kHalf ? V::load_half(end) : V::load(end);
  }
};

// z[r] = x[r] . w + bias, over the vectors in order and then over the lanes.
template <class T, int kVecs, bool kHalf>
void score_narrow(NarrowRows<T, kVecs, kHalf> rows, std::int64_t n_rows, const T* w, T bias, T* z) {
  using V = Vec<T>;
  V at[kVecs];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    at[v] = rows.load(w, v);
  }
  T once[V::kLanes];
  at[kVecs - 1].store(once);
  fill_zero(rows.overlap(), once);
  at[kVecs - 1] = V::load(once);
  const auto product = [&rows, &at](std::int64_t r) {
    const T* row = rows.x + r * rows.n_features;
    V sum = rows.load(row, 0) * at[0];
#pragma GCC unroll 4
    for (int v = 1; v < kVecs; ++v) {
      sum = madd(rows.load(row, v), at[v], sum);
    }
    return sum;
  };
  std::int64_t r = 0;
  for (; r + V::kLanes <= n_rows; r += V::kLanes) {
    sum_lanes_of_each(V::set(bias), [&product, r](int i) { return product(r + i); }).store(z + r);
  }
  for (; r < n_rows; ++r) {
    z[r] = sum_lanes(product(r)) + bias;
  }
}

// sum[j] += sum_r g[r] x[r][j]: kSets sums, which take the rows in turn, and are then added by halves. The rows `ahead`
// of these are prefetched.
template <class T, int kVecs, bool kHalf>
void add_narrow(NarrowRows<T, kVecs, kHalf> rows, std::int64_t n_rows, const T* g, std::int64_t ahead, T* sum) {
  using V = Vec<T>;
  constexpr int kSets = kVecs == 1 ? 8 : kVecs == 2 ? 4 : 2;
  V acc[kSets][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kSets; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      acc[i][v] = V::zero();
    }
  }
  const auto add = [=](std::int64_t r, V(&to)[kVecs]) {
    const T* row = rows.x + r * rows.n_features;
    const V factor = V::set(g[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      to[v] = madd(factor, rows.load(row, v), to[v]);
    }
    __builtin_prefetch(row + ahead * rows.n_features);
  };
  std::int64_t r = 0;
  for (; r + kSets <= n_rows; r += kSets) {
#pragma GCC unroll 8
    for (int i = 0; i < kSets; ++i) {
      add(r + i, acc[i]);
    }
  }
  for (; r < n_rows; ++r) {
    add(r, acc[0]);
  }
  T total[kVecs][V::kLanes];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 3
    for (int half = kSets / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < half; ++i) {
        acc[i][v] = acc[i][v] + acc[i + half][v];
      }
    }
    acc[0][v].store(total[v]);
  }
  const T* flat = &total[0][0];
  for (std::int64_t j = 0; j < rows.n_features; ++j) {
    sum[j] += flat[j < (kVecs - 1) * V::kLanes ? j : j + rows.overlap()];
  }
}

// What block_gradient does, for the rows from `first` on in their order.
template <class T, int kVecs, bool kHalf>
double narrow_gradient(const Problem<T>& p, const Scratch<T>& s, const T* w, std::int64_t first, std::int64_t n_rows,
                       const LossWeights& weights, T* sum, std::int64_t rows_ahead) {
  const NarrowRows<T, kVecs, kHalf> rows{p.x + first * p.n_features, p.n_features};
  score_narrow(rows, n_rows, w, p.intercept ? w[p.n_features] : T(0), s.z);
  copy(n_rows, p.target + first, s.target);
  const double loss = apply_head(p, s, n_rows, weights);
  if (sum != nullptr) {
    add_narrow(rows, n_rows, s.z, rows_ahead, sum);
    if (p.intercept) {
      add_bias(s.z, n_rows, 1, kBlockRows, 1, sum + p.n_features);
    }
  }
  return loss;
}

// block_gradient, or what does the same for narrow rows.
template <class T>
auto choose_gradient(const Problem<T>& p) -> decltype(&block_gradient<T>) {
  constexpr std::int64_t kHalves = Vec<T>::kLanes / 2;
  if (!is_narrow(p)) {
    return &block_gradient<T>;
  }
  switch ((p.n_features + kHalves - 1) / kHalves) {
    case 1:
    case 2: return &narrow_gradient<T, 1, false>;
    case 3: return &narrow_gradient<T, 2, true>;
    case 4: return &narrow_gradient<T, 2, false>;
    case 5: return &narrow_gradient<T, 3, true>;
    case 6: return &narrow_gradient<T, 3, false>;
    case 7: return &narrow_gradient<T, 4, true>;
    default: return &narrow_gradient<T, 4, false>;
  }
}

// The rows of clients [client, end) in runs of equal weight, weight_i / rows_i; neighbouring clients may share a run.
template <class T>
struct WeightRuns {
  const Problem<T>& p;
  const double* client_weight;  // null: one
  std::int64_t client, end;
  std::int64_t run_end = p.offsets[client];
  double weight = 0;        // of the run's rows
  double total_weight = 0;  // of the clients so far

  double weight_of(std::int64_t i) const { return client_weight == nullptr ? 1.0 : client_weight[i]; }
  double row_weight(std::int64_t i) const { return weight_of(i) / static_cast<double>(p.rows(i)); }
  void next() {
    weight = row_weight(client);
    do {
      total_weight += weight_of(client++);
    } while (client < end && row_weight(client) == weight);
    run_end = p.offsets[client];
  }
};

// Rows of a block. Of long rows so few that they and the next ones, already prefetched, share a second-level cache;
// more where the model fills that cache, so that it is read less often.
template <class T>
std::int64_t block_rows(const Problem<T>& p) {
  if (p.family == Family::Layers) {
    return p.network->block_rows;
  }
  constexpr std::int64_t kNumbers = (std::int64_t{1} << 18) / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kFewest = 32, kMultiple = 16;
  const std::int64_t fit = kNumbers / p.n_features / kMultiple * kMultiple;
  return p.family == Family::Sparse || p.dim > kNumbers || fit > kBlockRows ? kBlockRows
         : fit < kFewest                                                    ? kFewest
                                                                            : fit;
}

inline constexpr std::int64_t kRowsInT = 512;  // rows that are summed in T before they go into the sum of doubles

// sum (dim), unless null, += sum over clients begin .. end of weight_i times the gradient of f_i; returns that of the
// values, weight_i = 1 where weights is null. Rows of neighbouring clients share blocks.
template <class T>
double clients_gradient(const Problem<T>& p, std::int64_t begin, std::int64_t end, const double* weights, const T* w,
                        void* memory, double* sum) {
  const Scratch<T> s(p, memory);
  const auto add = [=](double weight, const T* part) {
    for (std::int64_t j = 0; j < p.dim; ++j) {
      sum[j] += weight * static_cast<double>(part[j]);
    }
  };
  double value = 0;
  if (p.family == Family::Quadratic) {
    for (std::int64_t client = begin; client < end; ++client) {
      const double weight = weights == nullptr ? 1.0 : weights[client];
      quadratic_gradient(p, s, client, w, s.gradient, s.velocity);
      value += weight * (0.5 * dot(p.dim, s.gradient, s.velocity));
      if (sum != nullptr) {
        add(weight, s.velocity);
      }
    }
    return value;
  }
  if (p.family == Family::Layers) {
    s.layers.place->on = false;
  }
  WeightRuns<T> runs{p, weights, begin, end};
  const std::int64_t most = block_rows(p);
  const auto gradient = choose_gradient(p);
  T* part = sum != nullptr ? s.gradient : nullptr;
  fill_zero(p.dim, s.gradient);
  for (std::uint32_t r = 0; r < kBlockRows; ++r) {
    s.row[r] = r;
  }
  double row_weight[kBlockRows] = {};
  std::int64_t in_part = 0;
  for (std::int64_t first = p.offsets[begin]; first < p.offsets[end]; first += most) {
    const std::int64_t n = p.offsets[end] - first < most ? p.offsets[end] - first : most;
    bool equal = false;
    for (std::int64_t r = 0; r < n;) {
      while (first + r == runs.run_end) {
        runs.next();
      }
      const std::int64_t stop = runs.run_end - first < n ? runs.run_end - first : n;
      equal = stop - r == n;
      for (; r < stop; ++r) {
        row_weight[r] = runs.weight;
        s.scale[r] = static_cast<T>(runs.weight);
      }
    }
    value += gradient(p, s, w, first, n, {row_weight, equal}, part, first + n < p.offsets[end] ? n : 0);
    in_part += n;
    if (sum != nullptr && (in_part >= kRowsInT || first + n == p.offsets[end])) {
      add(1.0, part);
      fill_zero(p.dim, part);
      in_part = 0;
    }
  }
  if (p.l2 != 0 || p.nonconvex != 0) {
    value += runs.total_weight * regularise(p, w, true, part);
    if (sum != nullptr) {
      add(runs.total_weight, part);
    }
  }
  return value;
}

template <class T>
std::int64_t count_correct(const Problem<T>& p, std::int64_t begin, std::int64_t end, const T* w, void* memory) {
  const Scratch<T> s(p, memory);
  const std::int32_t n_outs = p.size[p.n_layers];
  if (p.family == Family::Layers) {
    s.layers.place->on = false;
  }
  std::int64_t correct = 0;
  const std::int64_t most = most_rows(p);
  for (std::int64_t first = begin; first < end; first += most) {
    const std::int64_t n = end - first < most ? end - first : most;
    for (std::int64_t r = 0; r < n; ++r) {
      s.row[r] = static_cast<std::uint32_t>(r);
    }
    block_scores(p, s, w, first, n, first + n < end ? n : 0);
    for (std::int64_t r = 0; r < n; ++r) {
      if (p.head == Head::Logistic) {
        correct += (s.z[r] > T(0)) == (p.target[first + r] > T(0.5)) ? 1 : 0;
        continue;
      }
      std::int32_t best = 0;
      for (std::int32_t o = 1; o < n_outs; ++o) {
        best = s.z[o * kBlockRows + r] > s.z[best * kBlockRows + r] ? o : best;
      }
      correct += best == p.label[first + r] ? 1 : 0;
    }
  }
  return correct;
}
