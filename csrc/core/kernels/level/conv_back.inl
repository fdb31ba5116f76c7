// The backward pass of convolutions whose gradients are not mostly zero: those without max-pooling. The gradient of the
// weights is a product of gradients and windows, in blocks of channels and vectors of the kernel that stay in registers
// while the pixels of some rows pass. The gradient of the input is a convolution, by the loops of the forward pass.

// A block of channels and vectors of the kernel.
template <class T>
struct PixelPass {
  const Tensor& in;
  const Tensor& out;
  const ConvShape<T>& shape;
  const T* x;  // of the first row
  const T* g;
  std::int64_t n_rows;
  std::int64_t per_out;  // from the kernel of a channel to the next one's
};

// kernel += sum over the pixels of g times the windows of x, C channels from g on and N vectors that stand at `at` in a
// window.
template <class T, int C, int N>
void add_pixels(const PixelPass<T>& a, const std::int64_t* at, const T* x, const T* g, T* kernel) {
  using V = Vec<T>;
  V acc[C][N];
  const T* from[N];
#pragma GCC unroll 6
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      acc[c][n] = V::load(kernel + c * a.per_out + n * V::kLanes);
    }
  }
  for (std::int64_t r = 0; r < a.n_rows; ++r) {
    for (std::int64_t v = 0; v < a.out.h; ++v) {
      const T* own = g + r * a.out.size() + v * a.out.line();
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        from[n] = x + r * a.in.size() + v * a.shape.line_step + at[n];
      }
      std::int64_t moved = 0;
      for (std::int64_t u = 0; u < a.out.w; ++u, own += a.out.c, moved += a.shape.step) {
        V window[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          window[n] = V::load(from[n] + moved);
        }
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) {
          const V factor = V::set(own[c]);
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) {
            acc[c][n] = madd(factor, window[n], acc[c][n]);
          }
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      acc[c][n].store(kernel + c * a.per_out + n * V::kLanes);
    }
  }
}

template <class T, int N>
void pixels_channels(const PixelPass<T>& a, std::int64_t n, const std::int64_t* at, const T* x, const T* g, T* kernel) {
  switch (n) {
    case 1: add_pixels<T, 1, N>(a, at, x, g, kernel); break;
    case 2: add_pixels<T, 2, N>(a, at, x, g, kernel); break;
    case 3: add_pixels<T, 3, N>(a, at, x, g, kernel); break;
    case 4: add_pixels<T, 4, N>(a, at, x, g, kernel); break;
    case 5: add_pixels<T, 5, N>(a, at, x, g, kernel); break;
    default:
      if constexpr (Vec<T>::kUpdateOuts > 5) {
        add_pixels<T, 6, N>(a, at, x, g, kernel);
      }
      break;
  }
}

// Adds the gradient of the weights, packed as for_each_weight has them, to kernels.
template <class T>
void add_kernel_gradients(const PixelPass<T>& a, std::int64_t groups, T* kernels) {
  using V = Vec<T>;
  const ConvShape<T>& shape = a.shape;
  const Groups vecs(a.per_out / V::kLanes, V::kUpdateVecs), channels(shape.out_group, V::kUpdateOuts);
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t b = 0; b < channels.groups; ++b) {
      const std::int64_t o = group * shape.out_group + channels.begin(b);
      const std::int64_t n = channels.begin(b + 1) - channels.begin(b);
      const T* const x = a.x + shape.origin + group * shape.in_group;
      for (std::int64_t i = 0; i < vecs.groups; ++i) {
        const std::int64_t begin = vecs.begin(i), n_vecs = vecs.begin(i + 1) - begin;
        std::int64_t at[4];
        for (std::int64_t k = 0; k < n_vecs; ++k) {
          const std::int64_t run = (begin + k) / shape.run_vecs, v = (begin + k) % shape.run_vecs;
          at[k] = run / shape.runs * shape.line + run % shape.runs * shape.run_step + v * V::kLanes;
        }
        const T* const g = a.g + o;
        T* const kernel = kernels + o * a.per_out + begin * V::kLanes;
        switch (n_vecs) {
          case 1: pixels_channels<T, 1>(a, n, at, x, g, kernel); break;
          case 2: pixels_channels<T, 2>(a, n, at, x, g, kernel); break;
          case 3:
            if constexpr (V::kUpdateVecs > 2) {
              pixels_channels<T, 3>(a, n, at, x, g, kernel);
            }
            break;
          default:
            if constexpr (V::kUpdateVecs > 3) {
              pixels_channels<T, 4>(a, n, at, x, g, kernel);
            }
            break;
        }
      }
    }
  }
}

// Calls body(convolution, phase) for each of those that TurnedConv speaks of.
template <class Body>
void for_each_phase(const Network& network, const Operation& op, Body body) {
  TurnedConv turned(network, op);
  std::int64_t phase[2], end[2];
  for (int axis = 0; axis < 2; ++axis) {
    // Beyond the kernel no window has any; a stride may be any number.
    end[axis] = op.record.stride[axis] < op.record.kernel[axis] ? op.record.stride[axis] : op.record.kernel[axis];
  }
  for (phase[0] = 0; phase[0] < end[0]; ++phase[0]) {
    for (phase[1] = 0; phase[1] < end[1]; ++phase[1]) {
      if (turned.turn(op.record, phase)) {
        body(turned, phase);
      }
    }
  }
}

// The weights of all of them, as pack_forward would pack those of each.
template <class T>
void pack_turned(const Network& network, const Operation& op, const T* w, T* packed) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const std::int64_t in_group = network.tensors[op.in].c / op.record.groups,
                     out_group = op.record.out / op.record.groups;
  const std::int64_t kh = op.record.kernel[0], kw = op.record.kernel[1], vecs = (in_group + kLanes - 1) / kLanes;
  for_each_phase(network, op, [&](const TurnedConv& turned, const std::int64_t (&phase)[2]) {
    const LayerRecord& r = turned.record;
    for (std::int64_t group = 0; group < r.groups; ++group) {
      for (std::int64_t v = 0; v < vecs; v += Vec<T>::kConvVecs) {
        const std::int64_t width = (vecs - v < Vec<T>::kConvVecs ? vecs - v : Vec<T>::kConvVecs) * kLanes;
        const std::int64_t left = in_group - v * kLanes, n = left < width ? left : width;
        for (std::int64_t y = r.kernel[0]; y-- > 0;) {
          for (std::int64_t x = r.kernel[1]; x-- > 0;) {
            const std::int64_t down = phase[0] + y * op.record.stride[0], across = phase[1] + x * op.record.stride[1];
            for (std::int64_t o = group * out_group; o < (group + 1) * out_group; ++o, packed += width) {
              const T* from = w + ((o * in_group + v * kLanes) * kh + down) * kw + across;
              for (std::int64_t c = 0; c < n; ++c) {
                packed[c] = from[c * kh * kw];
              }
              fill_zero(width - n, packed + n);
            }
          }
        }
      }
    }
  });
}

// The gradient of the input's rows from that of the output's; packed weights in s.forward_weights, zeros in
// s.weight_sum.
template <class T>
void turned_conv(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const TurnedConv whole(network, op);
  const LayerRecord& r = op.record;
  fill_zero(whole.gradient.size(), s.turned);
  for (std::int64_t row = 0; row < n_rows; ++row) {
    for (std::int64_t y = 0; y < out.h; ++y) {
      copy(out.w * out.c, s.gradient[op.out] + row * out.size() + out.first() + y * out.line(),
           s.turned + whole.gradient.first() + y * whole.gradient.line());
    }
    T* const to = s.gradient[op.in] + row * in.size() + in.first();
    if (r.stride[0] > r.kernel[0] || r.stride[1] > r.kernel[1]) {
      fill_zero(in.size(), s.gradient[op.in] + row * in.size());  // some numbers are in no window
    }
    const T* packed = s.forward_weights;
    for_each_phase(network, op, [&](const TurnedConv& turned, const std::int64_t (&phase)[2]) {
      const ConvShape<T> shape(turned.gradient, turned.record);
      // The first number of the input with this phase, and the step whose window begins with it.
      std::int64_t first[2], step[2];
      for (int axis = 0; axis < 2; ++axis) {
        const std::int64_t ahead = r.padding[2 * axis] - phase[axis];
        step[axis] = ahead <= 0 ? 0 : (ahead - 1) / r.stride[axis] + 1;
        first[axis] = step[axis] * r.stride[axis] - ahead;
      }
      Operation line{};
      line.record = turned.record;
      line.conv_w = in.w <= first[1] ? 0 : (in.w - first[1] - 1) / r.stride[1] + 1;
      const std::int64_t top = turned.gradient.top - (turned.record.kernel[0] - 1) + step[0];
      const std::int64_t left = turned.gradient.left - (turned.record.kernel[1] - 1) + step[1];
      const T* from = s.turned + top * turned.gradient.line() + left * turned.gradient.c;
      for (std::int64_t y = first[0]; y < in.h; y += r.stride[0], from += turned.gradient.line()) {
        conv_line(line, shape, packed, s.weight_sum, from, s.strip);
        finish_line(line, shape, r.stride[1] * in.c, s.strip, to + y * in.line() + first[1] * in.c);
      }
      packed += shape.forward_size(line);
    });
  }
}

// What pooled_conv_backward does, for a convolution that is not pooled.
template <class T>
void dense_conv_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w,
                         std::int64_t n_rows, T* sum) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const ConvShape<T> shape(network, op);
  const std::int64_t size = shape.backward_size(op), rows = rows_per_list<T>(network, op);
  if (op.passes_back) {
    pack_turned(network, op, w + op.weight, s.forward_weights);  // before the weights move
  }
  fill_zero(size, s.weight_sum);
  T* const bias_sum = s.strip;
  fill_zero(op.record.out, bias_sum);
  for (std::int64_t begin = 0; begin < n_rows; begin += rows) {
    const std::int64_t end = n_rows - begin < rows ? n_rows : begin + rows;
    if (op.relu) {
      stop_at_relu(network, op, s, begin, end);
    }
    const T* const g = s.gradient[op.out] + begin * out.size() + out.first();
    const T* const x = s.value[op.in] + begin * in.size();
    add_kernel_gradients(PixelPass<T>{in, out, shape, x, g, end - begin, size / op.record.out}, op.record.groups,
                         s.weight_sum);
    for (std::int64_t r = 0; op.bias >= 0 && r < end - begin; ++r) {
      for (std::int64_t y = 0; y < out.h; ++y) {
        add_bias(g + r * out.size() + y * out.line(), out.w, out.c, 1, op.record.out, bias_sum);
      }
    }
  }
  add_bias_sum(op, bias_sum, sum);
  for_each_weight<T>(op, shape, [to = sum + op.weight, from = s.weight_sum](std::int64_t own, std::int64_t packed) {
    to[own] += from[packed];
  });
  if (op.passes_back) {
    constexpr std::int64_t kLanes = Vec<T>::kLanes;
    fill_zero(op.record.groups * ((shape.in_group + kLanes - 1) / kLanes) * kLanes, s.weight_sum);
    turned_conv(network, op, s, n_rows);
  }
}

template <class T>
void conv_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w,
                   std::int64_t n_rows, T* sum) {
  op.pooled ? pooled_conv_backward(network, op, s, w, n_rows, sum)
            : dense_conv_backward(network, op, s, w, n_rows, sum);
}
