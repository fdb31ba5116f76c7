// Functions of each number alone, with their slopes, and dropout.

// Calls body(r, from, to, n): n neighbouring numbers of row r, from a line of the input's tensor to that of the
// output's. Both have the same pixels, but not the same halo.
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

// Calls body with two functions of vectors: the value at x, and the slope at x where it has the value y.
template <class T, class Body>
inline __attribute__((always_inline)) void with_function(const LayerRecord& record, Body body) {
  using V = Vec<T>;
  const V zero = V::zero(), one = V::set(T(1)), number = V::set(static_cast<T>(record.number));
  switch (record.kind) {
    case LayerKind::LeakyRelu:
      body([=](V x) { return if_less(zero, x, x, number * x); }, [=](V x, V) { return if_less(zero, x, one, number); });
      break;
    case LayerKind::Gelu: {
      const V half = V::set(T(0.5)), root = V::set(T(0.70710678118654752440)), peak = V::set(T(0.39894228040143267794));
      const auto share = [=](V x) { return half * (one + erf(x * root)); };
      body([=](V x) { return x * share(x); },
           [=](V x, V) { return madd(x * peak, exp(zero - half * x * x), share(x)); });
      break;
    }
    case LayerKind::Silu:
      body([=](V x) { return x * sigmoid(x); },
           [=](V x, V y) {
             const V s = sigmoid(x);
             return madd(y, one - s, s);
           });
      break;
    case LayerKind::Tanh: body([](V x) { return tanh(x); }, [=](V, V y) { return one - y * y; }); break;
    case LayerKind::Sigmoid: body([](V x) { return sigmoid(x); }, [=](V, V y) { return y * (one - y); }); break;
    default:  // ReLU; zero first, so that a NaN shows
      body([=](V x) { return max(zero, x); }, [=](V x, V) { return if_less(zero, x, one, zero); });
      break;
  }
}

template <class T, class Row>
void pointwise_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                       std::int64_t n_rows) {
  with_function<T>(op.record, [&](auto value, auto) {
    for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
      for_each_vec<T>(n, [=, x = row(r) + from, y = s.value[op.out] + to](std::int64_t j, auto lanes) {
        store(value(load(x + j, lanes)), y + j, lanes);
      });
    });
  });
}

template <class T, class Row>
void pointwise_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                        std::int64_t n_rows) {
  const std::int64_t in = network.tensors[op.in].size();
  with_function<T>(op.record, [&](auto, auto slope) {
    for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
      const T* const g = s.gradient[op.out] + to;
      T* const back = s.gradient[op.in] + r * in + from;
      for_each_vec<T>(n, [=, x = row(r) + from, y = s.value[op.out] + to](std::int64_t j, auto lanes) {
        store(load(g + j, lanes) * slope(load(x + j, lanes), load(y + j, lanes)), back + j, lanes);
      });
    });
  });
}

// What each number counts, 0 or 1 / (1 - rate), into factor (n_rows, h, w, c). Number e of a row, in the order (c, h,
// w), that of a sequence step by step, takes word e % 4 of the counter (place in the batch, e / 4, 0, Dropout), and
// stays where that is at least rate * 2^32. The key is made of the first two words of (client, task, step, Dropout |
// number of the layer).
template <class T>
void draw_masks(const Network& network, const Operation& op, const DropoutPlace& place, std::int64_t n_rows,
                T* factor) {
  const Tensor& t = network.tensors[op.out];
  std::uint32_t c0 = place.client, c1 = place.task, c2 = place.step;
  std::uint32_t c3 = stream_word(Stream::Dropout, static_cast<std::uint32_t>(op.number));
  philox_rounds<1>(place.seed, &c0, &c1, &c2, &c3);
  const std::uint64_t key = std::uint64_t{c1} << 32 | c0;
  const auto threshold = static_cast<std::uint32_t>(op.record.number * 4294967296.0);
  const T kept = static_cast<T>(1.0 / (1.0 - op.record.number));
  constexpr int kWide = 4;
  const std::int64_t n = t.features(), pixels = t.image ? t.h * t.w : 1, channels = n / pixels;
  for (std::int64_t r = 0; r < n_rows; ++r, factor += n) {
    std::int64_t channel = 0, pixel = 0;
    for (std::int64_t e = 0; e < n; e += 4 * kWide) {
      std::uint32_t w[4][kWide];
      for (int b = 0; b < kWide; ++b) {
        w[0][b] = place.first + static_cast<std::uint32_t>(r);
        w[1][b] = static_cast<std::uint32_t>(e / 4 + b);
        w[2][b] = 0;
        w[3][b] = stream_word(Stream::Dropout, 0);
      }
      philox_rounds<kWide>(key, w[0], w[1], w[2], w[3]);
      for (int i = 0; i < 4 * kWide && e + i < n; ++i) {
        factor[pixel * channels + channel] = w[i % 4][i / 4] >= threshold ? kept : T(0);
        if (++pixel == pixels) {
          pixel = 0;
          ++channel;
        }
      }
    }
  }
}

// to = from times its factor, or from alone where nothing is dropped.
template <class T>
void drop(const DropoutPlace& place, const T* factor, std::int64_t n, const T* from, T* to) {
  if (!place.on) {
    copy(n, from, to);
    return;
  }
  for_each_vec<T>(
      n, [=](std::int64_t j, auto lanes) { store(load(from + j, lanes) * load(factor + j, lanes), to + j, lanes); });
}

template <class T, class Row>
void dropout_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                     std::int64_t n_rows) {
  if (s.place->on) {
    draw_masks(network, op, *s.place, n_rows, s.choice[op.out]);
  }
  std::int64_t done = 0;
  for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
    drop(*s.place, s.choice[op.out] + done, n, row(r) + from, s.value[op.out] + to);
    done += n;
  });
}

template <class T>
void dropout_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const std::int64_t in = network.tensors[op.in].size();
  std::int64_t done = 0;
  for_each_line<T>(network, op, n_rows, [&](std::int64_t r, std::int64_t from, std::int64_t to, std::int64_t n) {
    drop(*s.place, s.choice[op.out] + done, n, s.gradient[op.out] + to, s.gradient[op.in] + r * in + from);
    done += n;
  });
}
