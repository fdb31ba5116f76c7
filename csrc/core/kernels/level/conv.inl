// Convolutions. Pixels lie one after the other with their channels side by side, so that a row of a kernel is one run
// of numbers in its input.
//
// Forward, lanes go along the output channels and a block of neighbouring outputs stays in registers; the kernel's
// numbers are added in the order of rows, columns and channels. Backward behind max-pooling, only gradients that are
// not zero are visited, which are few: they are put into lists, and lanes go along the runs of a kernel. For the
// weights a channel's kernel stays in registers while its list passes, rows and pixels in order. For the input a window
// does, while the list of a pixel's channels passes whose largest number began that window. conv_back.inl has the
// backward pass of the other convolutions.

// ---- Weights in the order of the loops ----

// (groups, blocks of kConvVecs vectors of outputs, kernel_h, runs, run, outputs); outputs that there are none of are 0.
template <class T>
void pack_forward(const Operation& op, const ConvShape<T>& shape, const T* w, T* packed) {
  const std::int64_t kh = op.record.kernel[0], kw = op.record.kernel[1], lanes = Vec<T>::kLanes;
  for (std::int64_t group = 0; group < op.record.groups; ++group) {
    for (std::int64_t v = 0; v < shape.out_vecs; v += Vec<T>::kConvVecs) {
      const std::int64_t vecs = shape.out_vecs - v < Vec<T>::kConvVecs ? shape.out_vecs - v : Vec<T>::kConvVecs;
      const std::int64_t first = group * shape.out_group + v * lanes, width = vecs * lanes;
      const std::int64_t left = shape.out_group - v * lanes, n = left < width ? left : width;
      for (std::int64_t y = 0; y < kh; ++y) {
        for (std::int64_t x = 0; x < kw; ++x) {
          for (std::int64_t c = 0; c < shape.in_group; ++c, packed += width) {
            const T* from = w + (first * shape.in_group + c) * kh * kw + y * kw + x;
            for (std::int64_t o = 0; o < n; ++o) {
              packed[o] = from[o * shape.weights];
            }
            fill_zero(width - n, packed + n);
          }
        }
      }
    }
  }
}

// Calls body(number of a weight in the model, its number among those packed for the backward pass).
template <class T, class Body>
inline __attribute__((always_inline)) void for_each_weight(const Operation& op, const ConvShape<T>& shape, Body body) {
  const std::int64_t kh = op.record.kernel[0], kw = op.record.kernel[1], padded = shape.run_vecs * Vec<T>::kLanes;
  const std::int64_t per_line = shape.runs * padded, across = shape.runs == 1 ? shape.in_group : padded;
  for (std::int64_t o = 0; o < op.record.out; ++o) {
    for (std::int64_t c = 0; c < shape.in_group; ++c) {
      for (std::int64_t y = 0; y < kh; ++y) {
        const std::int64_t from = ((o * shape.in_group + c) * kh + y) * kw, to = (o * kh + y) * per_line + c;
        for (std::int64_t x = 0; x < kw; ++x) {
          body(from + x, to + x * across);
        }
      }
    }
  }
}

// ---- Forward ----

template <class T>
struct ConvBlock {
  const ConvShape<T>& shape;
  const T* w;
  const T* bias;          // (V vectors)
  std::int64_t out_step;  // from an output pixel to the next one
};

// P neighbouring outputs from the window at x, V vectors of channels each.
template <class T, int P, int V>
void conv_block(const ConvBlock<T>& a, const T* x, T* out) {
  using Vector = Vec<T>;
  const std::int64_t step = a.shape.step;
  Vector acc[P][V];
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Vector start = Vector::load(a.bias + v * Vector::kLanes);
#pragma GCC unroll 14
    for (int p = 0; p < P; ++p) {
      acc[p][v] = start;
    }
  }
  const T* w = a.w;
  for (std::int64_t y = 0; y < a.shape.kernel_h; ++y) {
    for (std::int64_t k = 0; k < a.shape.runs; ++k) {
      const T* from = x + y * a.shape.line + k * a.shape.run_step;
      const T* const end = from + a.shape.run;
      for (; from != end; ++from, w += V * Vector::kLanes) {
        Vector weight[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          weight[v] = Vector::load(w + v * Vector::kLanes);
        }
#pragma GCC unroll 14
        for (int p = 0; p < P; ++p) {
          const Vector number = Vector::set(from[p * step]);
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) {
            acc[p][v] = madd(number, weight[v], acc[p][v]);
          }
        }
      }
    }
  }
#pragma GCC unroll 14
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      acc[p][v].store(out + p * a.out_step + v * Vector::kLanes);
    }
  }
}

template <class T, int V>
void conv_some(std::int64_t n, const ConvBlock<T>& a, const T* x, T* out) {
  constexpr int kMost = Vec<T>::kConvPixels;
  switch (n) {
    case 1: conv_block<T, 1, V>(a, x, out); break;
    case 2: conv_block<T, 2, V>(a, x, out); break;
    case 3: conv_block<T, 3, V>(a, x, out); break;
    case 4: conv_block<T, 4, V>(a, x, out); break;
    case 5: conv_block<T, 5, V>(a, x, out); break;
    case 6: conv_block<T, 6, V>(a, x, out); break;
    default:
      if constexpr (kMost > 6) {
        switch (n) {
          case 7: conv_block<T, 7, V>(a, x, out); break;
          case 8: conv_block<T, 8, V>(a, x, out); break;
          case 9: conv_block<T, 9, V>(a, x, out); break;
          case 10: conv_block<T, 10, V>(a, x, out); break;
          case 11: conv_block<T, 11, V>(a, x, out); break;
          case 12: conv_block<T, 12, V>(a, x, out); break;
          case 13: conv_block<T, 13, V>(a, x, out); break;
          default: conv_block<T, 14, V>(a, x, out); break;
        }
      }
      break;
  }
}

// A line of output pixels from the windows that begin at x, into a strip: (conv_w, groups, out_vecs) vectors.
template <class T>
void conv_line(const Operation& op, const ConvShape<T>& shape, const T* packed, const T* bias, const T* x, T* strip) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  static_assert(Vec<T>::kConvVecs == 2);
  const Groups blocks(op.conv_w, Vec<T>::kConvPixels);
  const std::int64_t out_step = op.record.groups * shape.out_vecs * kLanes;
  for (std::int64_t group = 0; group < op.record.groups; ++group, x += shape.in_group) {
    for (std::int64_t v = 0; v < shape.out_vecs; v += 2) {
      const bool two = shape.out_vecs - v >= 2;
      const ConvBlock<T> block{shape, packed, bias, out_step};
      for (std::int64_t b = 0; b < blocks.groups; ++b) {
        const std::int64_t begin = blocks.begin(b), n = blocks.begin(b + 1) - begin;
        two ? conv_some<T, 2>(n, block, x + begin * shape.step, strip + begin * out_step)
            : conv_some<T, 1>(n, block, x + begin * shape.step, strip + begin * out_step);
      }
      const std::int64_t width = (two ? 2 : 1) * kLanes;
      packed += shape.weights * width;
      bias += width;
      strip += width;
    }
  }
}

// The channels of a pixel, as they stand in a strip and in a tensor: body(strip, tensor, how many lanes).
template <class T, class Body>
inline __attribute__((always_inline)) void for_each_channel_vec(const Operation& op, const ConvShape<T>& shape,
                                                                Body body) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  std::int64_t from = 0, to = 0;
  for (std::int64_t group = 0; group < op.record.groups; ++group, to = group * shape.out_group) {
    for (std::int64_t v = 0; v < shape.out_vecs; ++v, from += kLanes, to += kLanes) {
      const std::int64_t left = shape.out_group - v * kLanes;
      left >= kLanes ? body(from, to, Whole{}) : body(from, to, Part{static_cast<int>(left)});
    }
  }
}

template <class T>
void finish_line(const Operation& op, const ConvShape<T>& shape, std::int64_t n_channels, const T* strip, T* out) {
  using V = Vec<T>;
  const std::int64_t out_step = op.record.groups * shape.out_vecs * V::kLanes;
  for (std::int64_t x = 0; x < op.conv_w; ++x, strip += out_step, out += n_channels) {
    for_each_channel_vec<T>(op, shape, [=, relu = op.relu](std::int64_t from, std::int64_t to, auto lanes) {
      const V a = V::load(strip + from);
      store(relu ? max(V::zero(), a) : a, out + to, lanes);
    });
  }
}

// The largest of 2 x 2 of two lines, and which it was: the first of equal ones. A NaN or an infinity among the four
// becomes NaN.
template <class T>
void pool_lines(const Operation& op, const ConvShape<T>& shape, std::int64_t n_channels, const T* strip, T* out,
                T* choice) {
  using V = Vec<T>;
  const std::int64_t out_step = op.record.groups * shape.out_vecs * V::kLanes;
  const T* below = strip + op.conv_w * out_step;
  for (std::int64_t x = 0; x < op.conv_w; x += 2) {
    for_each_channel_vec<T>(op, shape, [=, relu = op.relu](std::int64_t from, std::int64_t to, auto lanes) {
      const V zero = V::zero();
      const V a = V::load(strip + from), b = V::load(strip + from + out_step);
      const V c = V::load(below + from), d = V::load(below + from + out_step);
      const V top = if_less(a, b, b, a), top_which = if_less(a, b, V::set(T(1)), zero);
      const V low = if_less(c, d, d, c), low_which = if_less(c, d, V::set(T(3)), V::set(T(2)));
      const V poison = madd(a, zero, b * zero) + madd(c, zero, d * zero);
      const V largest = if_less(top, low, low, top) + poison;
      store(relu ? max(zero, largest) : largest, out + to, lanes);
      store(if_less(top, low, low_which, top_which), choice + to, lanes);
    });
    strip += 2 * out_step;
    below += 2 * out_step;
    out += n_channels;
    choice += n_channels;
  }
}

template <class T>
void conv_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w,
                  std::int64_t n_rows) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const ConvShape<T> shape(network, op);
  pack_forward(op, shape, w + op.weight, s.forward_weights);
  T* bias = s.weight_sum;  // free in the forward pass
  for_each_channel_vec<T>(op, shape, [&](std::int64_t to, std::int64_t from, auto lanes) {
    (op.bias < 0 ? Vec<T>::zero() : load(w + op.bias + from, lanes)).store(bias + to);
  });
  const std::int64_t strip_line = shape.strip_line(op);
  static_cast<void>(kLanes);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const T* x = s.value[op.in] + r * in.size() + shape.origin;
    T* to = s.value[op.out] + r * out.size() + out.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      if (op.pooled) {
        for (int i = 0; i < 2; ++i) {
          conv_line(op, shape, s.forward_weights, bias, x + (2 * y + i) * shape.line_step, s.strip + i * strip_line);
        }
        pool_lines(op, shape, out.c, s.strip, to + y * out.line(), s.choice[op.out] + (r * out.h + y) * out.w * out.c);
      } else {
        conv_line(op, shape, s.forward_weights, bias, x + y * shape.line_step, s.strip);
        finish_line(op, shape, out.c, s.strip, to + y * out.line());
      }
    }
  }
}

// ---- Backward ----

// Where the k-th of the 2 x 2 that are pooled begins, behind the first.
template <class T>
std::int64_t place_in_window(const ConvShape<T>& shape, std::int64_t k) {
  return (k % 2) * shape.step + k / 2 * shape.line_step;
}

// The lists of n neighbouring channels from `channel` on, of rows begin .. end.
template <class T>
void make_lists(const Network& network, const Operation& op, const ConvShape<T>& shape, const NetworkScratch<T>& s,
                std::int64_t channel, std::int64_t n, std::int64_t begin, std::int64_t end, ChannelLists<T>& lists) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const std::int64_t across = 2 * shape.step, down = 2 * shape.line_step;
  ListPlaces places;
  for (std::int64_t i = 0; i < 4; ++i) {
    places.away[i] = static_cast<std::int32_t>(place_in_window(shape, i));
  }
  for (std::int64_t c = 0; c < n; ++c) {
    places.group[c] = static_cast<std::int32_t>((channel + c) / shape.out_group * shape.in_group);
  }
  ListMaker<T> maker(lists, places, n);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t row = (r - begin) * in.size() + shape.origin;
    const T* line = s.gradient[op.out] + r * out.size() + out.first() + channel;
    const T* choice = s.choice[op.out] + r * out.features() + channel;
    for (std::int64_t y = 0; y < out.h; ++y, line += out.line()) {
      for (std::int64_t x = 0; x < out.w; ++x, choice += out.c) {
        maker.add(line + x * out.c, choice, static_cast<std::int32_t>(row + y * down + x * across));
      }
    }
  }
  maker.finish();
}

// Gradients behind a ReLU that was not passed become zero.
template <class T>
void stop_at_relu(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t begin,
                  std::int64_t end) {
  const Tensor& out = network.tensors[op.out];
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t first = r * out.size() + out.first();
    for (std::int64_t y = 0; y < out.h; ++y) {
      multiply_slope(Activation::Relu, out.w * out.c, s.value[op.out] + first + y * out.line(),
                     s.gradient[op.out] + first + y * out.line());
    }
  }
}

// A list of gradients, and where what each is multiplied by begins: a window of the input, or a kernel. Both have
// lines.
template <class T>
struct ListPass {
  const T* g;
  const std::int32_t* from;
  std::int64_t n;
  std::int64_t line;      // from one line of it to the next
  std::int64_t sum_line;  // and of the sum
};

// sum += g times what stands at x, of entry i: H lines, N vectors of each, which stay in registers.
template <class T, int H, int N>
inline __attribute__((always_inline)) void add_entry(const ListPass<T>& a, std::int64_t i, const T* x,
                                                     Vec<T> (&sum)[H][N]) {
  using V = Vec<T>;
  const V g = V::set(a.g[i]);
  const T* from = x + a.from[i];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 20
    for (int v = 0; v < N; ++v) {
      sum[h][v] = madd(g, V::load(from + h * a.line + v * V::kLanes), sum[h][v]);
    }
  }
}

// total += sum over the list. Where the sums are few, an addition would wait for the one before it: then there are two
// of each, and entries go to them in turn.
template <class T, int H, int N>
void add_list(const ListPass<T>& a, const T* x, T* total) {
  using V = Vec<T>;
  constexpr bool kTwo = H * N < 8;
  V sum[H][N], other[H][N];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 20
    for (int v = 0; v < N; ++v) {
      sum[h][v] = V::load(total + h * a.sum_line + v * V::kLanes);
      other[h][v] = V::zero();
    }
  }
  std::int64_t i = 0;
  if constexpr (kTwo) {
    for (; i + 2 <= a.n; i += 2) {
      add_entry(a, i, x, sum);
      add_entry(a, i + 1, x, other);
    }
  }
  for (; i < a.n; ++i) {
    add_entry(a, i, x, sum);
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 20
    for (int v = 0; v < N; ++v) {
      (kTwo ? sum[h][v] + other[h][v] : sum[h][v]).store(total + h * a.sum_line + v * V::kLanes);
    }
  }
}

// Adds a channel's gradients times their windows to its kernel.
template <class T>
struct KernelSum {
  ListPass<T> list;
  const T* x;
  T* kernel;
  static constexpr int kMostVecs = Vec<T>::kListVecs;
  template <int H, int N>
  void block(std::int64_t window, std::int64_t own) const {
    add_list<T, H, N>(list, x + window, kernel + own);
  }
};

// Adds the kernels of a pixel's channels times their gradients to the windows of a picture, by the place that pooling
// chose. Few vectors at a time, so that those of all channels stay in the first cache while the pixels pass.
template <class T>
struct WindowSum {
  const ConvShape<T>& shape;
  const Tensor& out;
  const PlaceLists<T>& lists;
  const std::int32_t* begin;  // (4, pixels + 1) in the lists
  std::int64_t per_line;      // of a kernel
  const T* kernels;
  T* dx;
  static constexpr int kMostVecs = 8;
  template <int H, int N>
  void block(std::int64_t window, std::int64_t own) const {
    const std::int64_t pixels = out.h * out.w;
    for (std::int64_t i = 0; i < pixels; ++i) {
      T* const first = dx + window + i / out.w * 2 * shape.line_step + i % out.w * 2 * shape.step;
      for (std::int64_t k = 0; k < 4; ++k) {
        const std::int32_t* const range = begin + k * (pixels + 1) + i;
        const std::int64_t at = k * lists.room + range[0];
        const ListPass<T> list{lists.g + at, lists.from + at, range[1] - range[0], per_line, shape.line};
        if (list.n > 0) {
          add_list<T, H, N>(list, kernels + own, first + place_in_window(shape, k));
        }
      }
    }
  }
};

template <class T, int N, class Sum>
void walk_rows(const Sum& sum, std::int64_t rows, std::int64_t window, std::int64_t own) {
  switch (rows) {
    case 1: sum.template block<1, N>(window, own); break;
    case 2: sum.template block<2, N>(window, own); break;
    case 3: sum.template block<3, N>(window, own); break;
    case 4: sum.template block<4, N>(window, own); break;
    default: sum.template block<5, N>(window, own); break;
  }
}

template <class T, class Sum>
void walk_vecs(const Sum& sum, std::int64_t vecs, std::int64_t window, std::int64_t own) {
  switch (vecs) {
    case 4: sum.template block<1, 4>(window, own); break;
    case 5: sum.template block<1, 5>(window, own); break;
    case 6: sum.template block<1, 6>(window, own); break;
    case 7: sum.template block<1, 7>(window, own); break;
    case 8: sum.template block<1, 8>(window, own); break;
    default:
      if constexpr (Sum::kMostVecs > 8) {
        switch (vecs) {
          case 9: sum.template block<1, 9>(window, own); break;
          case 10: sum.template block<1, 10>(window, own); break;
          case 11: sum.template block<1, 11>(window, own); break;
          case 12: sum.template block<1, 12>(window, own); break;
          default:
            if constexpr (Sum::kMostVecs > 12) {
              switch (vecs) {
                case 13: sum.template block<1, 13>(window, own); break;
                case 14: sum.template block<1, 14>(window, own); break;
                case 15: sum.template block<1, 15>(window, own); break;
                case 16: sum.template block<1, 16>(window, own); break;
                case 17: sum.template block<1, 17>(window, own); break;
                case 18: sum.template block<1, 18>(window, own); break;
                case 19: sum.template block<1, 19>(window, own); break;
                default: sum.template block<1, 20>(window, own); break;
              }
            }
            break;
        }
      }
      break;
  }
}

// Calls sum.block<H, N>(place in a window, place in a kernel) for each block of the kernel that fits the registers.
template <class T, class Sum>
void walk_kernel(const ConvShape<T>& shape, const Sum& sum) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  constexpr std::int64_t kNarrow = 3;
  const std::int64_t padded = shape.run_vecs * kLanes, per_line = shape.runs * padded;
  for (std::int64_t k = 0; k < shape.runs; ++k) {
    const std::int64_t from = k * shape.run_step;
    if (shape.run_vecs <= kNarrow) {
      constexpr int kRegisters = Vec<T>::kListVecs;
      const std::int64_t fit = kRegisters / shape.run_vecs;
      const Groups rows(shape.kernel_h, static_cast<int>(fit < 5 ? fit : 5));
      for (std::int64_t b = 0; b < rows.groups; ++b) {
        const std::int64_t y = rows.begin(b), h = rows.begin(b + 1) - y;
        const std::int64_t window = y * shape.line + from, own = y * per_line + k * padded;
        shape.run_vecs == 1   ? walk_rows<T, 1>(sum, h, window, own)
        : shape.run_vecs == 2 ? walk_rows<T, 2>(sum, h, window, own)
                              : walk_rows<T, 3>(sum, h, window, own);
      }
      continue;
    }
    const Groups vecs(shape.run_vecs, Sum::kMostVecs);
    for (std::int64_t y = 0; y < shape.kernel_h; ++y) {
      for (std::int64_t b = 0; b < vecs.groups; ++b) {
        const std::int64_t v = vecs.begin(b) * kLanes;
        walk_vecs<T>(sum, vecs.begin(b + 1) - vecs.begin(b), y * shape.line + from + v, y * per_line + k * padded + v);
      }
    }
  }
}

template <class T>
T sum_of_list(const T* g, std::int64_t n) {
  Vec<T> sum = Vec<T>::zero();
  for_each_vec<T>(n, [&](std::int64_t j, auto lanes) { sum = sum + load(g + j, lanes); });
  return sum_lanes(sum);
}

// Adds a gradient of the bias, where there is one, to sum.
template <class T>
void add_bias_sum(const Operation& op, const T* bias_sum, T* sum) {
  if (op.bias >= 0) {
    add_bias(bias_sum, 1, op.record.out, 1, op.record.out, sum + op.bias);
  }
}

// Adds what the channels of a group give to the gradient of row r of the input.
template <class T>
void pooled_input_gradient(const Network& network, const Operation& op, const ConvShape<T>& shape,
                           const NetworkScratch<T>& s, std::int64_t r, std::int64_t group) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const std::int64_t per_out = shape.backward_size(op) / op.record.out, pixels = out.h * out.w;
  const std::int64_t channel = group * shape.out_group;
  PlaceLists<T> lists{s.list, s.list_from, s.place_room, {}};
  std::int32_t* const begin = s.place_begin;
  const T* choice = s.choice[op.out] + r * out.features() + channel;
  for (std::int64_t i = 0; i <= pixels; ++i, choice += out.c) {
    for (std::int64_t k = 0; k < 4; ++k) {
      begin[k * (pixels + 1) + i] = static_cast<std::int32_t>(lists.length[k]);
    }
    if (i < pixels) {
      const std::int64_t at = out.first() + i / out.w * out.line() + i % out.w * out.c + channel;
      append_pixel(lists, shape.out_group, s.gradient[op.out] + r * out.size() + at, choice,
                   static_cast<std::int32_t>(channel * per_out), static_cast<std::int32_t>(per_out));
    }
  }
  T* const dx = s.gradient[op.in] + r * in.size() + shape.origin + group * shape.in_group;
  walk_kernel(shape, WindowSum<T>{shape, out, lists, begin, per_out / shape.kernel_h, s.backward_weights, dx});
}

// Adds the gradient of weights and bias to sum, which may be w, and makes that of the input where it is wanted.
template <class T>
void pooled_conv_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w,
                          std::int64_t n_rows, T* sum) {
  const Tensor& in = network.tensors[op.in];
  const ConvShape<T> shape(network, op);
  const std::int64_t per_out = shape.backward_size(op) / op.record.out, per_line = per_out / shape.kernel_h;
  const std::int64_t rows = rows_per_list<T>(network, op);
  ChannelLists<T> lists{s.list, s.list_from, s.list_room, {}};
  fill_zero(shape.backward_size(op), s.weight_sum);
  T* const bias_sum = s.strip;
  fill_zero(op.record.out, bias_sum);
  if (op.passes_back) {
    fill_zero(shape.backward_size(op), s.backward_weights);
    for_each_weight<T>(op, shape,
                       [to = s.backward_weights, from = w + op.weight](std::int64_t own, std::int64_t packed) {
                         to[packed] = from[own];
                       });
  }
  for (std::int64_t begin = 0; begin < n_rows; begin += rows) {
    const std::int64_t end = n_rows - begin < rows ? n_rows : begin + rows;
    const T* x = s.value[op.in] + begin * in.size();
    if (op.passes_back) {
      fill_zero((end - begin) * in.size(), s.gradient[op.in] + begin * in.size());
    }
    if (op.relu) {
      stop_at_relu(network, op, s, begin, end);
    }
    for (std::int64_t first = 0; first < op.record.out; first += kListChannels) {
      const std::int64_t left = op.record.out - first, channels = left < kListChannels ? left : kListChannels;
      make_lists(network, op, shape, s, first, channels, begin, end, lists);
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t at = c * lists.room;
        const ListPass<T> list{lists.g + at, lists.from + at, lists.length[c], shape.line, per_line};
        walk_kernel(shape, KernelSum<T>{list, x, s.weight_sum + (first + c) * per_out});
        if (op.bias >= 0) {
          bias_sum[first + c] += sum_of_list(list.g, list.n);
        }
      }
    }
    for (std::int64_t r = begin; op.passes_back && r < end; ++r) {
      for (std::int64_t group = 0; group < op.record.groups; ++group) {
        pooled_input_gradient(network, op, shape, s, r, group);
      }
    }
  }
  add_bias_sum(op, bias_sum, sum);
  for_each_weight<T>(op, shape, [to = sum + op.weight, from = s.weight_sum](std::int64_t own, std::int64_t packed) {
    to[own] += from[packed];
  });
}
