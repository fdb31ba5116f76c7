// The largest and the mean of a window, channel by channel, lanes along the channels.

// A window's rows and columns that lie within the image.
struct Window {
  std::int64_t y_begin, y_end, x_begin, x_end;
  Window(const Tensor& in, const LayerRecord& r, std::int64_t y, std::int64_t x) {
    const std::int64_t top = y * r.stride[0] - r.padding[0], left = x * r.stride[1] - r.padding[2];
    y_begin = top < 0 ? 0 : top;
    x_begin = left < 0 ? 0 : left;
    y_end = top + r.kernel[0] < in.h ? top + r.kernel[0] : in.h;
    x_end = left + r.kernel[1] < in.w ? left + r.kernel[1] : in.w;
  }
};

// choice (h, w, c): which number of the window, counted in its rows within the image, the first of equal ones. A NaN or
// an infinity in the window gives NaN.
template <class T>
void max_pool_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  using V = Vec<T>;
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const from = s.value[op.in] + r * in.size() + in.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        const Window window(in, op.record, y, x);
        T* const to = s.value[op.out] + r * out.size() + out.first() + y * out.line() + x * out.c;
        T* const which = s.choice[op.out] + r * out.features() + (y * out.w + x) * out.c;
        for_each_vec<T>(out.c, [=, line = in.line(), c = in.c](std::int64_t j, auto lanes) {
          V largest = load(from + window.y_begin * line + window.x_begin * c + j, lanes), chosen = V::zero();
          V poison = V::zero();
          T number = T(0);
          for (std::int64_t v = window.y_begin; v < window.y_end; ++v) {
            for (std::int64_t u = window.x_begin; u < window.x_end; ++u, number += T(1)) {
              const V a = load(from + v * line + u * c + j, lanes);
              chosen = if_less(largest, a, V::set(number), chosen);
              largest = if_less(largest, a, a, largest);
              poison = madd(a, V::zero(), poison);
            }
          }
          store(largest + poison, to + j, lanes);
          store(chosen, which + j, lanes);
        });
      }
    }
  }
}

template <class T>
void max_pool_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  fill_zero(n_rows * in.size(), s.gradient[op.in]);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    T* const to = s.gradient[op.in] + r * in.size() + in.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        const Window window(in, op.record, y, x);
        const std::int64_t width = window.x_end - window.x_begin;
        const T* const g = s.gradient[op.out] + r * out.size() + out.first() + y * out.line() + x * out.c;
        const T* const which = s.choice[op.out] + r * out.features() + (y * out.w + x) * out.c;
        for (std::int64_t j = 0; j < out.c; ++j) {
          const auto number = static_cast<std::int64_t>(which[j]);
          const std::int64_t v = window.y_begin + number / width, u = window.x_begin + number % width;
          to[v * in.line() + u * in.c + j] += g[j];
        }
      }
    }
  }
}

// The mean over the window, zeros of the padding counted.
template <class T>
void avg_pool_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  using V = Vec<T>;
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const V share = V::set(static_cast<T>(1.0 / (static_cast<double>(op.record.kernel[0]) * op.record.kernel[1])));
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const from = s.value[op.in] + r * in.size() + in.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        const Window window(in, op.record, y, x);
        T* const to = s.value[op.out] + r * out.size() + out.first() + y * out.line() + x * out.c;
        for_each_vec<T>(out.c, [=, line = in.line(), c = in.c](std::int64_t j, auto lanes) {
          V total = V::zero();
          for (std::int64_t v = window.y_begin; v < window.y_end; ++v) {
            for (std::int64_t u = window.x_begin; u < window.x_end; ++u) {
              total = total + load(from + v * line + u * c + j, lanes);
            }
          }
          store(total * share, to + j, lanes);
        });
      }
    }
  }
}

template <class T>
void avg_pool_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  using V = Vec<T>;
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const V share = V::set(static_cast<T>(1.0 / (static_cast<double>(op.record.kernel[0]) * op.record.kernel[1])));
  fill_zero(n_rows * in.size(), s.gradient[op.in]);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    T* const to = s.gradient[op.in] + r * in.size() + in.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        const Window window(in, op.record, y, x);
        const T* const g = s.gradient[op.out] + r * out.size() + out.first() + y * out.line() + x * out.c;
        for_each_vec<T>(out.c, [=, line = in.line(), c = in.c](std::int64_t j, auto lanes) {
          const V each = load(g + j, lanes) * share;
          for (std::int64_t v = window.y_begin; v < window.y_end; ++v) {
            for (std::int64_t u = window.x_begin; u < window.x_end; ++u) {
              T* const at = to + v * line + u * c + j;
              store(load(at, lanes) + each, at, lanes);
            }
          }
        });
      }
    }
  }
}

// The mean over all pixels, or all steps: an image or a sequence becomes a vector of its channels.
template <class T, class Row>
void global_avg_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                        std::int64_t n_rows) {
  using V = Vec<T>;
  const Tensor& in = network.tensors[op.in];
  const V share = V::set(static_cast<T>(1.0 / static_cast<double>(in.h * in.w)));
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* const from = row(r) + in.first();
    T* const to = s.value[op.out] + r * in.c;
    for_each_vec<T>(in.c, [=, h = in.h, w = in.w, line = in.line(), c = in.c](std::int64_t j, auto lanes) {
      V total = V::zero();
      for (std::int64_t y = 0; y < h; ++y) {
        for (std::int64_t x = 0; x < w; ++x) {
          total = total + load(from + y * line + x * c + j, lanes);
        }
      }
      store(total * share, to + j, lanes);
    });
  }
}

template <class T>
void global_avg_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  using V = Vec<T>;
  const Tensor& in = network.tensors[op.in];
  const V share = V::set(static_cast<T>(1.0 / static_cast<double>(in.h * in.w)));
  for (std::int64_t r = 0; r < n_rows; ++r) {
    T* const to = s.gradient[op.in] + r * in.size() + in.first();
    const T* const g = s.gradient[op.out] + r * in.c;
    for_each_vec<T>(in.c, [=, h = in.h, w = in.w, line = in.line(), c = in.c](std::int64_t j, auto lanes) {
      const V each = load(g + j, lanes) * share;
      for (std::int64_t y = 0; y < h; ++y) {
        for (std::int64_t x = 0; x < w; ++x) {
          store(each, to + y * line + x * c + j, lanes);
        }
      }
    });
  }
}
