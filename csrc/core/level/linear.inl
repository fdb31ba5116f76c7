// The two dense loops that everything is made of. Rows are addressed through pointers, so a batch is never gathered.
//
// scores    z[r, o] = bias[o] + sum_j x[r][j] w[o, j]      a block of dot products, summed over lanes at the end
// add_rows  a[o, j] += sum_r g[r, o] x[r][j]               a rank-n_rows update, rows added in their order
//
// The value of every element is the same however the rows and outputs are grouped into blocks: one accumulator per
// element, vectors of features in order, then the tail, then the lanes.

template <class T, int R, int C>
inline __attribute__((always_inline)) void scores_block(const T* const* x, const T* w, std::int64_t stride,
                                                        std::int64_t n_features, std::int64_t ahead,
                                                        T (&sum_out)[R][C]) {
  using V = Vec<T>;
  constexpr bool kAsk = R * C >= 12;  // then it is free beside the products, even where there is nothing to ask for
  V acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V::zero();
    }
  }
  std::int64_t j = 0;
  for (; j + V::kLanes <= n_features; j += V::kLanes) {
    V row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      row[r] = V::load(x[r] + j);
      if constexpr (kAsk) {
        __builtin_prefetch(x[r] + j + ahead, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const V weight = V::load(w + c * stride + j);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[r][c] = madd(row[r], weight, acc[r][c]);
      }
    }
  }
  const int tail = static_cast<int>(n_features - j);
  if (tail > 0) {
    V row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      row[r] = V::load_part(x[r] + j, tail);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const V weight = V::load_part(w + c * stride + j, tail);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[r][c] = madd(row[r], weight, acc[r][c]);
      }
    }
  }
  constexpr int kFours = R * C / 4 * 4;
  const V* flat = &acc[0][0];
  T* sums = &sum_out[0][0];
#pragma GCC unroll 8
  for (int i = 0; i < kFours; i += 4) {
    sum_lanes_of_4(flat[i], flat[i + 1], flat[i + 2], flat[i + 3], sums + i);
  }
#pragma GCC unroll 4
  for (int i = kFours; i < R * C; ++i) {
    sums[i] = sum_lanes(flat[i]);
  }
}

template <class T>
struct ScoresArgs {
  const T* const* x;  // n_rows pointers to n_features values
  std::int64_t n_rows, n_features;
  const T* w;     // (n_outs, n_features) row-major
  const T* bias;  // (n_outs) or null
  T* z;           // z[r * row_stride + o * out_stride]
  std::int64_t row_stride, out_stride;
  std::int64_t ahead = 0;  // how far behind a row's numbers those stand that are wanted next
};

template <class T, int R, int C>
void scores_group(const ScoresArgs<T>& a, std::int64_t row, std::int64_t out) {
  T sum[R][C];
  scores_block<T, R, C>(a.x + row, a.w + out * a.n_features, a.n_features, a.n_features, a.ahead, sum);
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      a.z[(row + r) * a.row_stride + (out + c) * a.out_stride] = sum[r][c] + (a.bias ? a.bias[out + c] : T(0));
    }
  }
}

template <class T, int C>
void scores_outs(const ScoresArgs<T>& a, std::int64_t out) {
  constexpr int kRows = C == 1 ? 8 : Vec<T>::kDotRows;
  const Groups rows(a.n_rows, kRows);
  for (std::int64_t g = 0; g < rows.groups; ++g) {
    const std::int64_t row = rows.begin(g);
    switch (rows.begin(g + 1) - row) {
      case 1: scores_group<T, 1, C>(a, row, out); break;
      case 2: scores_group<T, 2, C>(a, row, out); break;
      case 3:
        if constexpr (kRows >= 3) {
          scores_group<T, 3, C>(a, row, out);
        }
        break;
      case 4:
        if constexpr (kRows >= 4) {
          scores_group<T, 4, C>(a, row, out);
        }
        break;
      case 5:
        if constexpr (kRows >= 5) {
          scores_group<T, 5, C>(a, row, out);
        }
        break;
      case 6:
        if constexpr (kRows >= 6) {
          scores_group<T, 6, C>(a, row, out);
        }
        break;
      case 7:
        if constexpr (kRows >= 7) {
          scores_group<T, 7, C>(a, row, out);
        }
        break;
      default:
        if constexpr (kRows >= 8) {
          scores_group<T, 8, C>(a, row, out);
        }
        break;
    }
  }
}

inline constexpr int kDotOuts = 5;

template <class T>
void scores(const ScoresArgs<T>& a, std::int64_t n_outs) {
  // Outputs outside, rows inside: a group's weights stay in the first cache while the rows stream past.
  const Groups outs(n_outs, kDotOuts);
  for (std::int64_t g = 0; g < outs.groups; ++g) {
    const std::int64_t out = outs.begin(g);
    switch (outs.begin(g + 1) - out) {
      case 1: scores_outs<T, 1>(a, out); break;
      case 2: scores_outs<T, 2>(a, out); break;
      case 3: scores_outs<T, 3>(a, out); break;
      case 4: scores_outs<T, 4>(a, out); break;
      default: scores_outs<T, 5>(a, out); break;
    }
  }
}

template <class T>
struct AddRowsArgs {
  const T* const* x;  // n_rows pointers
  std::int64_t n_rows, n_features;
  const T* g;  // g[r * row_stride + o * out_stride]
  std::int64_t row_stride, out_stride;
  T* a;  // (n_outs, n_features) row-major, added to
};

// C outputs, N vectors from feature j on: whole ones, or a single one of Part{n} lanes.
template <class T, int C, int N, class Lanes>
inline __attribute__((always_inline)) void add_rows_block(const AddRowsArgs<T>& a, std::int64_t out, std::int64_t j,
                                                          Lanes lanes) {
  using V = Vec<T>;
  V acc[C][N];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      acc[c][n] = load(a.a + (out + c) * a.n_features + j + n * V::kLanes, lanes);
    }
  }
  const T* g = a.g + out * a.out_stride;
  for (std::int64_t r = 0; r < a.n_rows; ++r, g += a.row_stride) {
    V row[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      row[n] = load(a.x[r] + j + n * V::kLanes, lanes);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const V factor = V::set(g[c * a.out_stride]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        acc[c][n] = madd(factor, row[n], acc[c][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      store(acc[c][n], a.a + (out + c) * a.n_features + j + n * V::kLanes, lanes);
    }
  }
}

template <class T, int N, class Lanes>
inline __attribute__((always_inline)) void add_rows_outs(const AddRowsArgs<T>& a, const Groups& outs, std::int64_t j,
                                                         Lanes lanes) {
  for (std::int64_t g = 0; g < outs.groups; ++g) {
    const std::int64_t out = outs.begin(g);
    switch (outs.begin(g + 1) - out) {
      case 1: add_rows_block<T, 1, N>(a, out, j, lanes); break;
      case 2: add_rows_block<T, 2, N>(a, out, j, lanes); break;
      case 3: add_rows_block<T, 3, N>(a, out, j, lanes); break;
      case 4: add_rows_block<T, 4, N>(a, out, j, lanes); break;
      case 5: add_rows_block<T, 5, N>(a, out, j, lanes); break;
      default:
        if constexpr (Vec<T>::kUpdateOuts > 5) {
          add_rows_block<T, 6, N>(a, out, j, lanes);
        }
        break;
    }
  }
}

template <class T>
void add_rows(const AddRowsArgs<T>& a, std::int64_t n_outs) {
  // Features outside: a panel of the rows stays in the first cache while all outputs pass over it.
  using V = Vec<T>;
  const Groups outs(n_outs, V::kUpdateOuts);
  constexpr std::int64_t kPanel = V::kUpdateVecs * V::kLanes;
  std::int64_t j = 0;
  for (; j + kPanel <= a.n_features; j += kPanel) {
    add_rows_outs<T, V::kUpdateVecs>(a, outs, j, Whole{});
  }
  for (; j + V::kLanes <= a.n_features; j += V::kLanes) {
    add_rows_outs<T, 1>(a, outs, j, Whole{});
  }
  if (j < a.n_features) {
    add_rows_outs<T, 1>(a, outs, j, Part{static_cast<int>(a.n_features - j)});
  }
}
