// The two dense loops that everything is made of. Rows are addressed through pointers, so a batch is never gathered.
//
// scores    z[r, o] = bias[o] + sum_j x[r][j] w[o, j]      a block of dot products, summed over lanes at the end
// add_rows  a[o, j] += sum_r g[r, o] x[r][j]               a rank-n_rows update, rows added in their order
//
// The value of every element is the same however the rows and outputs are grouped into blocks: one accumulator per
// element, vectors of features in order, then the tail, then the lanes.

// What a block of dot products prefetches beside its own numbers: those that come `ahead` behind its rows, or the
// weights of an output that follows.
enum class Ask { Rows, Weights };

// acc[r][c] += x[r][j] w[c, j] for j in [begin, end).
template <class T, int R, int C, Ask kWhat>
inline __attribute__((always_inline)) void add_products(const T* const* x, const T* w, std::int64_t stride,
                                                        std::int64_t begin, std::int64_t end, std::int64_t ahead,
                                                        Vec<T> (&acc)[R][C]) {
  using V = Vec<T>;
  constexpr bool kAsk =
      R * C >= 12;  // then prefetching is hidden by the products, even where there is nothing to fetch
  std::int64_t j = begin;
  for (; j + V::kLanes <= end; j += V::kLanes) {
    V row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      row[r] = V::load(x[r] + j);
      if constexpr (kAsk && kWhat == Ask::Rows) {
        __builtin_prefetch(x[r] + j + ahead, 0, 2);
      }
    }
    if constexpr (kAsk && kWhat == Ask::Weights) {
      __builtin_prefetch(w + j + ahead, 0, 2);
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
  const int tail = static_cast<int>(end - j);
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

// A range of features. Unfinished sums are kept in `sums` for the next range.
template <class T>
struct Panel {
  std::int64_t begin, end;
  Vec<T>* sums;
};

// z of R rows and C outputs, or as much of it as the panel holds. `ahead` is that of add_products.
template <class T, int R, int C, Ask kWhat>
void scores_group(const ScoresArgs<T>& a, const Panel<T>& panel, std::int64_t row, std::int64_t out,
                  std::int64_t ahead) {
  using V = Vec<T>;
  V acc[R][C];
  V* flat = &acc[0][0];
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) {
    flat[i] = panel.begin > 0 ? panel.sums[i] : V::zero();
  }
  add_products<T, R, C, kWhat>(a.x + row, a.w + out * a.n_features, a.n_features, panel.begin, panel.end, ahead, acc);
  if (panel.end < a.n_features) {
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) {
      panel.sums[i] = flat[i];
    }
    return;
  }
  T sum[R * C];
  constexpr int kFours = R * C / 4 * 4;
#pragma GCC unroll 8
  for (int i = 0; i < kFours; i += 4) {
    sum_lanes_of_4(flat[i], flat[i + 1], flat[i + 2], flat[i + 3], sum + i);
  }
#pragma GCC unroll 4
  for (int i = kFours; i < R * C; ++i) {
    sum[i] = sum_lanes(flat[i]);
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      a.z[(row + r) * a.row_stride + (out + c) * a.out_stride] = sum[r * C + c] + (a.bias ? a.bias[out + c] : T(0));
    }
  }
}

inline constexpr int kDotOuts = 5;

// Rows that a block of dot products has beside so many outputs; one fewer where there is an output more.
template <class T>
constexpr int rows_beside(int outs) {
  return outs == 1 ? 8 : outs <= kDotOuts ? Vec<T>::kDotRows : Vec<T>::kDotRows - 1;
}

template <class T, int C, Ask kWhat>
void scores_outs(const ScoresArgs<T>& a, Panel<T> panel, std::int64_t out) {
  constexpr int kRows = rows_beside<T>(C);
  const Groups rows(a.n_rows, kRows);
  for (std::int64_t g = 0; g < rows.groups; ++g) {
    const std::int64_t row = rows.begin(g), n = rows.begin(g + 1) - row;
    // Group g of the rows prefetches the weights of the g-th output behind these.
    const std::int64_t ahead = kWhat == Ask::Rows ? a.ahead : (C + g) * a.n_features;
    switch (n) {
      case 1: scores_group<T, 1, C, kWhat>(a, panel, row, out, ahead); break;
      case 2: scores_group<T, 2, C, kWhat>(a, panel, row, out, ahead); break;
      case 3:
        if constexpr (kRows >= 3) {
          scores_group<T, 3, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
      case 4:
        if constexpr (kRows >= 4) {
          scores_group<T, 4, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
      case 5:
        if constexpr (kRows >= 5) {
          scores_group<T, 5, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
      case 6:
        if constexpr (kRows >= 6) {
          scores_group<T, 6, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
      case 7:
        if constexpr (kRows >= 7) {
          scores_group<T, 7, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
      default:
        if constexpr (kRows >= 8) {
          scores_group<T, 8, C, kWhat>(a, panel, row, out, ahead);
        }
        break;
    }
    panel.sums += n * C;
  }
}

// Outputs outside, rows inside: a group's weights stay in the first cache while the rows stream past.
template <class T, Ask kWhat>
void scores_panel(const ScoresArgs<T>& a, std::int64_t n_outs, Panel<T> panel) {
  Groups outs(n_outs, kDotOuts);
  if constexpr (Vec<T>::kMoreDotOuts) {
    // The shape that makes fewer blocks, since each block loads its rows and weights.
    const Groups fewer(n_outs, kDotOuts + 1);
    const Groups rows(a.n_rows, rows_beside<T>(kDotOuts)), more(a.n_rows, rows_beside<T>(kDotOuts + 1));
    outs = fewer.groups * more.groups < outs.groups * rows.groups ? fewer : outs;
  }
  for (std::int64_t g = 0; g < outs.groups; ++g) {
    const std::int64_t out = outs.begin(g), n = outs.begin(g + 1) - out;
    switch (n) {
      case 1: scores_outs<T, 1, kWhat>(a, panel, out); break;
      case 2: scores_outs<T, 2, kWhat>(a, panel, out); break;
      case 3: scores_outs<T, 3, kWhat>(a, panel, out); break;
      case 4: scores_outs<T, 4, kWhat>(a, panel, out); break;
      case 5: scores_outs<T, 5, kWhat>(a, panel, out); break;
      default:
        if constexpr (Vec<T>::kMoreDotOuts) {
          scores_outs<T, kDotOuts + 1, kWhat>(a, panel, out);
        }
        break;
    }
    panel.sums += n * a.n_rows;
  }
}

template <class T>
inline constexpr std::int64_t kPanel = 4096 / sizeof(T);  // features
inline constexpr int kPanelRows = 32, kPanelOuts = 2 * kDotOuts;

template <class T>
void scores(const ScoresArgs<T>& a, std::int64_t n_outs) {
  Vec<T> sums[kPanelRows * kPanelOuts];
  if (a.n_features < 4 * kPanel<T> || n_outs <= kDotOuts) {
    a.ahead == 0 ? scores_panel<T, Ask::Weights>(a, n_outs, {0, a.n_features, sums})
                 : scores_panel<T, Ask::Rows>(a, n_outs, {0, a.n_features, sums});
    return;
  }
  // Long rows would be read from a distant cache for every group of outputs: all groups pass over a panel of them
  // first.
  const Groups rows(a.n_rows, kPanelRows), outs(n_outs, kPanelOuts);
  for (std::int64_t g = 0; g < rows.groups; ++g) {
    for (std::int64_t h = 0; h < outs.groups; ++h) {
      const std::int64_t row = rows.begin(g), out = outs.begin(h);
      ScoresArgs<T> part = a;
      part.x += row;
      part.n_rows = rows.begin(g + 1) - row;
      part.w += out * a.n_features;
      part.bias += a.bias == nullptr ? 0 : out;
      part.z += row * a.row_stride + out * a.out_stride;
      for (std::int64_t j = 0; j < a.n_features; j += kPanel<T>) {
        const std::int64_t end = a.n_features - j < kPanel<T> ? a.n_features : j + kPanel<T>;
        part.ahead = end < a.n_features ? kPanel<T> : a.ahead;
        scores_panel<T, Ask::Rows>(part, outs.begin(h + 1) - out, {j, end, sums});
      }
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

inline constexpr std::int64_t kUpdateGroups = 2;

// C outputs, N vectors from feature j on: whole ones, or a single one of Part{n} lanes.
// With kAsk the block kUpdateGroups groups of outputs further is prefetched.
template <class T, int C, int N, bool kAsk, class Lanes>
inline __attribute__((always_inline)) void add_rows_block(const AddRowsArgs<T>& a, std::int64_t out, std::int64_t j,
                                                          Lanes lanes) {
  using V = Vec<T>;
  V acc[C][N];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      acc[c][n] = load(a.a + (out + c) * a.n_features + j + n * V::kLanes, lanes);
      if constexpr (kAsk) {
        __builtin_prefetch(a.a + (out + kUpdateGroups * V::kUpdateOuts + c) * a.n_features + j + n * V::kLanes);
      }
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

template <class T, int N, bool kAsk, class Lanes>
inline __attribute__((always_inline)) void add_rows_outs(const AddRowsArgs<T>& a, const Groups& outs,
                                                         std::int64_t begin, std::int64_t end, std::int64_t j,
                                                         Lanes lanes) {
  for (std::int64_t g = begin; g < end; ++g) {
    const std::int64_t out = outs.begin(g);
    switch (outs.begin(g + 1) - out) {
      case 1: add_rows_block<T, 1, N, kAsk>(a, out, j, lanes); break;
      case 2: add_rows_block<T, 2, N, kAsk>(a, out, j, lanes); break;
      case 3: add_rows_block<T, 3, N, kAsk>(a, out, j, lanes); break;
      case 4: add_rows_block<T, 4, N, kAsk>(a, out, j, lanes); break;
      case 5: add_rows_block<T, 5, N, kAsk>(a, out, j, lanes); break;
      default:
        if constexpr (Vec<T>::kUpdateOuts > 5) {
          add_rows_block<T, 6, N, kAsk>(a, out, j, lanes);
        }
        break;
    }
  }
}

// Features within a few groups of outputs: a panel of the rows stays in the first cache while these pass over it, and
// the numbers that are added to are walked through in nearly their order.
template <class T, bool kAsk>
void add_rows_in_blocks(const AddRowsArgs<T>& a, std::int64_t n_outs) {
  using V = Vec<T>;
  const Groups outs(n_outs, V::kUpdateOuts);
  constexpr std::int64_t kVecs = V::kUpdateVecs;
  for (std::int64_t begin = 0; begin < outs.groups; begin += kUpdateGroups) {
    const std::int64_t end = outs.groups - begin < kUpdateGroups ? outs.groups : begin + kUpdateGroups;
    std::int64_t j = 0;
    for (; j + kVecs * V::kLanes <= a.n_features; j += kVecs * V::kLanes) {
      add_rows_outs<T, kVecs, kAsk>(a, outs, begin, end, j, Whole{});
    }
    for (; j + V::kLanes <= a.n_features; j += V::kLanes) {
      add_rows_outs<T, 1, false>(a, outs, begin, end, j, Whole{});
    }
    if (j < a.n_features) {
      add_rows_outs<T, 1, false>(a, outs, begin, end, j, Part{static_cast<int>(a.n_features - j)});
    }
  }
}

inline constexpr std::int64_t kFarAway = std::int64_t{1}
                                         << 24;  // bytes of a matrix that no cache keeps between two passes

template <class T>
void add_rows(const AddRowsArgs<T>& a, std::int64_t n_outs) {
  const bool ask = n_outs * a.n_features * static_cast<std::int64_t>(sizeof(T)) > kFarAway;
  ask ? add_rows_in_blocks<T, true>(a, n_outs) : add_rows_in_blocks<T, false>(a, n_outs);
}
