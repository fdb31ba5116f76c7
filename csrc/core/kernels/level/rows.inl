// A table with a row per client: additions of deltas that are compared with rows, and the step over all of them.

// Numbers of rows that are halves of floats, through memory: a compiler turns the loops into vectors.
inline float float_of_half(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
inline std::uint16_t half_of_float(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
template <class T>
int n_lanes(Whole) {
  return Vec<T>::kLanes;
}
template <class T>
int n_lanes(Part part) {
  return part.n;
}

// How a row lies in memory: load, and store, which gives what is then stored.
template <class T>
struct FullRows {
  template <class Lanes>
  static Vec<T> load_at(const void* row, std::int64_t j, Lanes lanes) {
    return load(static_cast<const T*>(row) + j, lanes);
  }
  template <class Lanes>
  static Vec<T> store_at(Vec<T> x, void* row, std::int64_t j, Lanes lanes) {
    if (row != nullptr) {
      store(x, static_cast<T*>(row) + j, lanes);
    }
    return x;
  }
};
template <class T>
struct HalfRows {
  template <class Lanes>
  static Vec<T> load_at(const void* row, std::int64_t j, Lanes lanes) {
    const auto* from = static_cast<const std::uint16_t*>(row) + j;
    T x[Vec<T>::kLanes] = {};
    for (int i = 0; i < n_lanes<T>(lanes); ++i) {
      x[i] = static_cast<T>(float_of_half(from[i]));
    }
    return Vec<T>::load(x);
  }
  template <class Lanes>
  static Vec<T> store_at(Vec<T> v, void* row, std::int64_t j, Lanes lanes) {
    T x[Vec<T>::kLanes];
    std::uint16_t half[Vec<T>::kLanes];
    v.store(x);
    for (int i = 0; i < Vec<T>::kLanes; ++i) {
      half[i] = half_of_float(static_cast<float>(x[i]));
      x[i] = static_cast<T>(float_of_half(half[i]));
    }
    if (row != nullptr) {
      __builtin_memcpy(static_cast<std::uint16_t*>(row) + j, half,
                       static_cast<std::size_t>(n_lanes<T>(lanes)) * sizeof(std::uint16_t));
    }
    return Vec<T>::load(x);
  }
};

// Elements begin .. begin + n of a term, added to sum and change, which start there.
template <class T, class Rows, bool kHasRow, bool kMoved>
void add_row_part(std::int64_t begin, std::int64_t n, const T* sum, const T* change, const RowTerm<T>& term,
                  const RowConfig<T>& config, T* sum_out, T* change_out, Poison<T>& poison) {
  using V = Vec<T>;
  const V factor = V::set(term.weight), own = V::set(config.own);
  const T* delta = term.delta + begin;
  const T* current = config.current;
  for_each_vec<T>(n, [=, &term, &poison](std::int64_t j, auto lanes) {
    const V d = load(delta + j, lanes);
    const V row = kHasRow ? Rows::load_at(term.row, begin + j, lanes) : V::zero();
    V x = kHasRow ? madd(own, row, d) : d;
    if constexpr (kMoved) {
      x = x + (load(current + begin + j, lanes) - load(term.start + begin + j, lanes));
    }
    const V before = sum == nullptr ? V::zero() : load(sum + j, lanes);
    const V so_far = change == nullptr ? V::zero() : load(change + j, lanes);
    store(poison.see(madd(factor, x, before)), sum_out + j, lanes);
    const V stored = Rows::store_at(d, term.row_out, begin + j, lanes);
    store(poison.see(so_far + (stored - row)), change_out + j, lanes);
  });
}

template <class T>
void add_row_part(std::int64_t begin, std::int64_t n, const T* sum, const T* change, const RowTerm<T>& term,
                  const RowConfig<T>& config, T* sum_out, T* change_out, Poison<T>& poison) {
  const auto with = [&](auto rows) {
    using Rows = decltype(rows);
    if (term.row != nullptr) {
      term.start != nullptr
          ? add_row_part<T, Rows, true, true>(begin, n, sum, change, term, config, sum_out, change_out, poison)
          : add_row_part<T, Rows, true, false>(begin, n, sum, change, term, config, sum_out, change_out, poison);
    } else {
      term.start != nullptr
          ? add_row_part<T, Rows, false, true>(begin, n, sum, change, term, config, sum_out, change_out, poison)
          : add_row_part<T, Rows, false, false>(begin, n, sum, change, term, config, sum_out, change_out, poison);
    }
  };
  config.half ? with(HalfRows<T>()) : with(FullRows<T>());
}

template <class T>
bool add_row(std::int64_t dim, const T* sum, const T* change, const RowTerm<T>& term, const RowConfig<T>& config,
             T* sum_out, T* change_out) {
  Poison<T> poison;
  add_row_part(0, dim, sum, change, term, config, sum_out, change_out, poison);
  return poison.is_none();
}

// How many terms are read side by side, and how far ahead they are fetched: with more streams of memory a core fetches
// too little ahead by itself, and asking for it costs more than with few.
inline constexpr int kRowsAtOnce = 2;
template <class T>
inline constexpr std::int64_t kRowsAhead = 2048 / sizeof(T);
template <class T>
inline constexpr std::int64_t kRowBlock = 16384 / sizeof(T);

// Elements begin .. begin + n of G terms that all have a row and no start, as add_row_part of one after the other; the
// sums stay in registers between them.
template <class T, int G>
void add_row_group(std::int64_t begin, std::int64_t n, bool from_zero, const RowTerm<T>* terms,
                   const RowConfig<T>& config, T* sum, T* change, Poison<T>& poison) {
  using V = Vec<T>;
  const V own = V::set(config.own);
  const T* delta[G];
  const T* row[G];
  T* row_out[G];
  V factor[G];
  for (int k = 0; k < G; ++k) {
    delta[k] = terms[k].delta + begin;
    row[k] = static_cast<const T*>(terms[k].row) + begin;
    row_out[k] = static_cast<T*>(terms[k].row_out) + begin;
    factor[k] = V::set(terms[k].weight);
  }
  for_each_vec<T>(n, [&](std::int64_t j, auto lanes) {
    V all = from_zero ? V::zero() : load(sum + j, lanes);
    V changed = from_zero ? V::zero() : load(change + j, lanes);
#pragma GCC unroll 2
    for (int k = 0; k < G; ++k) {
      __builtin_prefetch(delta[k] + j + kRowsAhead<T>);
      __builtin_prefetch(row[k] + j + kRowsAhead<T>);
      const V d = load(delta[k] + j, lanes), before = load(row[k] + j, lanes);
      all = poison.see(madd(factor[k], madd(own, before, d), all));
      changed = poison.see(changed + (d - before));
      store(d, row_out[k] + j, lanes);
    }
    store(all, sum + j, lanes);
    store(changed, change + j, lanes);
  });
}

// The first of n_terms terms, as many as go together; how many they were.
template <class T>
std::int64_t add_row_terms(std::int64_t begin, std::int64_t n, bool from_zero, const RowTerm<T>* terms,
                           std::int64_t n_terms, const RowConfig<T>& config, T* sum, T* change, Poison<T>& poison) {
  int together = 0;
  while (!config.half && together < kRowsAtOnce && together < n_terms && terms[together].row != nullptr &&
         terms[together].row_out != nullptr && terms[together].start == nullptr) {
    ++together;
  }
  if (together == kRowsAtOnce) {
    add_row_group<T, kRowsAtOnce>(begin, n, from_zero, terms, config, sum, change, poison);
    return kRowsAtOnce;
  }
  add_row_part(begin, n, from_zero ? nullptr : sum, from_zero ? nullptr : change, terms[0], config, sum, change,
               poison);
  return 1;
}

template <class T>
bool step_rows(std::int64_t dim, const T* w, std::int64_t n_terms, const RowTerm<T>* terms, const RowConfig<T>& config,
               T mean, T scale, T* total, T* w_out) {
  using V = Vec<T>;
  alignas(64) T sum[kRowBlock<T>], change[kRowBlock<T>];
  Poison<T> of_terms, of_model;
  for (std::int64_t begin = 0; begin < dim; begin += kRowBlock<T>) {
    const std::int64_t n = dim - begin < kRowBlock<T> ? dim - begin : kRowBlock<T>;
    for (std::int64_t k = 0; k < n_terms;) {
      k += add_row_terms(begin, n, k == 0, terms + k, n_terms - k, config, sum, change, of_terms);
    }
    for_each_vec<T>(n, [=, &of_model, &sum, &change](std::int64_t j, auto lanes) {
      const V rows = load(total + begin + j, lanes);
      const V all = madd(V::set(mean), rows, load(sum + j, lanes));
      store(of_model.see(madd(V::set(-scale), all, load(w + begin + j, lanes))), w_out + begin + j, lanes);
      store(rows + load(change + j, lanes), total + begin + j, lanes);
    });
  }
  return of_model.is_none();
}

template <class T>
void store_row(std::int64_t dim, const T* delta, bool half, void* row_out) {
  for_each_vec<T>(dim, [=](std::int64_t j, auto lanes) {
    const Vec<T> d = load(delta + j, lanes);
    half ? HalfRows<T>::store_at(d, row_out, j, lanes) : FullRows<T>::store_at(d, row_out, j, lanes);
  });
}
