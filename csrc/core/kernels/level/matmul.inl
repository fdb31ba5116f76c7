// Products of matrices: blocks of rows and columns stay in registers while what they have in common passes.
//
//   c (m, n) = start (m, n) + a (m, k) b (k, n)
//
// Every number is summed in the order of k from its start, however the matrices are cut: one accumulator each.

inline constexpr std::int64_t kProductDepth = 256;  // of k, packed at a time
inline constexpr int kProductPanels = 4;            // panels of rows that pass over a panel of b while it is near

template <class T>
inline constexpr std::int64_t kProductRows = Vec<T>::kConvPixels;
template <class T>
inline constexpr std::int64_t kProductColumns = Vec<T>::kConvVecs * Vec<T>::kLanes;

// Numbers of a packed b: panels of kProductColumns, filled up with zeros.
template <class T>
constexpr std::int64_t packed_size(std::int64_t k, std::int64_t n) {
  return (n + kProductColumns<T> - 1) / kProductColumns<T> * kProductColumns<T> * k;
}

// Numbers of the panels of a that are packed at a time.
template <class T>
inline constexpr std::int64_t kProductMemory = kProductPanels * kProductRows<T> * kProductDepth;

// b (k, n), whose row i begins at row(i).
template <class T, class Row>
void pack_rows(std::int64_t k, std::int64_t n, Row row, T* packed) {
  for (std::int64_t j = 0; j < n; j += kProductColumns<T>) {
    const std::int64_t width = n - j < kProductColumns<T> ? n - j : kProductColumns<T>;
    for (std::int64_t i = 0; i < k; ++i, packed += kProductColumns<T>) {
      const T* const from = row(i) + j;
      for_each_vec<T>(width, [=](std::int64_t c, auto lanes) { store(load(from + c, lanes), packed + c, lanes); });
      if (width < kProductColumns<T>) {
        fill_zero(kProductColumns<T> - width, packed + width);
      }
    }
  }
}

// b (k, n), of which w (n, k) row-major is the transpose.
template <class T>
void pack_columns(std::int64_t k, std::int64_t n, const T* w, T* packed) {
  for (std::int64_t j = 0; j < n; j += kProductColumns<T>, packed += kProductColumns<T> * k) {
    const std::int64_t width = n - j < kProductColumns<T> ? n - j : kProductColumns<T>;
    if (width < kProductColumns<T>) {
      fill_zero(kProductColumns<T> * k, packed);
    }
    for (std::int64_t o = 0; o < width; ++o) {
      const T* const from = w + (j + o) * k;
      for (std::int64_t i = 0; i < k; ++i) {
        packed[i * kProductColumns<T> + o] = from[i];
      }
    }
  }
}

// Rows of a: number i of row p stands at first[p * row_step + i * step].
template <class T>
struct LeftPanel {
  const T* first;
  std::int64_t row_step, step;
};

// A block of c: P rows of kVecs vectors, of which the first `left` numbers are in c; the panel of b may be wider.
// Without starts it begins with zeros.
template <class T, int P, int kVecs>
void product_block(std::int64_t k, const LeftPanel<T>& left_panel, const T* b, const T* const* start, T* const* to,
                   std::int64_t left) {
  using V = Vec<T>;
  constexpr std::int64_t kWidth = kVecs * V::kLanes;
  alignas(64) T edge[P * kWidth];  // where c ends within the block
  const T* from[P];
  T* into[P];
  for (int p = 0; p < P; ++p) {
    from[p] = start[p];
    into[p] = to[p];
    if (left < kWidth) {
      into[p] = edge + p * kWidth;
      fill_zero(kWidth, into[p]);
      if (start[p] != nullptr) {
        copy(left, start[p], into[p]);
        from[p] = into[p];
      }
    }
  }
  V acc[P][kVecs];
  if (start[0] != nullptr) {
#pragma GCC unroll 14
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        acc[p][v] = V::load(from[p] + v * V::kLanes);
      }
    }
  } else {
#pragma GCC unroll 14
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        acc[p][v] = V::zero();
      }
    }
  }
  const T* a = left_panel.first;
  const std::int64_t row_step = left_panel.row_step, step = left_panel.step;
  for (std::int64_t i = 0; i < k; ++i, a += step, b += kProductColumns<T>) {
    V weight[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      weight[v] = V::load(b + v * V::kLanes);
    }
#pragma GCC unroll 14
    for (int p = 0; p < P; ++p) {
      const V number = V::set(a[p * row_step]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        acc[p][v] = madd(number, weight[v], acc[p][v]);
      }
    }
  }
#pragma GCC unroll 14
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      acc[p][v].store(into[p] + v * V::kLanes);
    }
  }
  for (int p = 0; p < P && left < kWidth; ++p) {
    copy(left, edge + p * kWidth, to[p]);
  }
}

template <class T, int kVecs>
void product_rows(std::int64_t n, std::int64_t k, const LeftPanel<T>& a, const T* b, const T* const* start,
                  T* const* to, std::int64_t left) {
  switch (n) {
    case 1: product_block<T, 1, kVecs>(k, a, b, start, to, left); break;
    case 2: product_block<T, 2, kVecs>(k, a, b, start, to, left); break;
    case 3: product_block<T, 3, kVecs>(k, a, b, start, to, left); break;
    case 4: product_block<T, 4, kVecs>(k, a, b, start, to, left); break;
    case 5: product_block<T, 5, kVecs>(k, a, b, start, to, left); break;
    case 6: product_block<T, 6, kVecs>(k, a, b, start, to, left); break;
    default:
      if constexpr (kProductRows<T> > 6) {
        switch (n) {
          case 7: product_block<T, 7, kVecs>(k, a, b, start, to, left); break;
          case 8: product_block<T, 8, kVecs>(k, a, b, start, to, left); break;
          case 9: product_block<T, 9, kVecs>(k, a, b, start, to, left); break;
          case 10: product_block<T, 10, kVecs>(k, a, b, start, to, left); break;
          case 11: product_block<T, 11, kVecs>(k, a, b, start, to, left); break;
          case 12: product_block<T, 12, kVecs>(k, a, b, start, to, left); break;
          case 13: product_block<T, 13, kVecs>(k, a, b, start, to, left); break;
          default: product_block<T, 14, kVecs>(k, a, b, start, to, left); break;
        }
      }
      break;
  }
}

// Rows [begin, begin + n) and columns [first, first + depth) of a, which is packed: its rows begin at row(i).
template <class T, class Row>
LeftPanel<T> pack_panel(Row row, std::int64_t begin, std::int64_t n, std::int64_t first, std::int64_t depth,
                        T* packed) {
  for (std::int64_t p = 0; p < n; ++p) {
    const T* const from = row(begin + p) + first;
    for (std::int64_t i = 0; i < depth; ++i) {
      packed[i * n + p] = from[i];
    }
  }
  return {packed, 1, n};
}

// The same of an a whose columns begin at column(i).
template <class T, class Column>
LeftPanel<T> pack_turned_panel(Column column, std::int64_t begin, std::int64_t n, std::int64_t first,
                               std::int64_t depth, T* packed) {
  for (std::int64_t i = 0; i < depth; ++i) {
    const T* const from = column(first + i) + begin;
    for_each_vec<T>(
        n, [=, to = packed + i * n](std::int64_t p, auto lanes) { store(load(from + p, lanes), to + p, lanes); });
  }
  return {packed, 1, n};
}

// The whole product. b is packed; panel(begin, n, first, depth, memory) is a LeftPanel of a, for which there is memory;
// row i of c begins at to(i), and its start at start(i), or nowhere for zeros. memory holds kProductMemory numbers.
template <class T, class Panel, class Start, class To>
void multiply(std::int64_t m, std::int64_t k, std::int64_t n, const T* b, Panel panel, Start start, To to, T* memory) {
  const Groups rows(m, static_cast<int>(kProductRows<T>));
  for (std::int64_t g = 0; g < rows.groups; g += kProductPanels) {
    const std::int64_t end = rows.groups - g < kProductPanels ? rows.groups : g + kProductPanels;
    for (std::int64_t first = 0; first < k; first += kProductDepth) {
      const std::int64_t depth = k - first < kProductDepth ? k - first : kProductDepth;
      LeftPanel<T> panels[kProductPanels];
      for (std::int64_t i = g; i < end; ++i) {
        panels[i - g] = panel(rows.begin(i), rows.begin(i + 1) - rows.begin(i), first, depth,
                              memory + (i - g) * kProductRows<T> * kProductDepth);
      }
      for (std::int64_t j = 0; j < n; j += kProductColumns<T>) {
        for (std::int64_t i = g; i < end; ++i) {
          const std::int64_t begin = rows.begin(i), count = rows.begin(i + 1) - begin;
          const T* from[kProductRows<T>];
          T* into[kProductRows<T>];
          for (std::int64_t p = 0; p < count; ++p) {
            into[p] = to(begin + p) + j;
            const T* const own = start(begin + p);
            from[p] = first > 0 ? into[p] : own == nullptr ? nullptr : own + j;
          }
          const LeftPanel<T>& left = panels[i - g];
          const T* const right = b + j * k + first * kProductColumns<T>;
          n - j > Vec<T>::kLanes ? product_rows<T, Vec<T>::kConvVecs>(count, depth, left, right, from, into, n - j)
                                 : product_rows<T, 1>(count, depth, left, right, from, into, n - j);
        }
      }
    }
  }
}
