// LSTM and GRU. Numbers of a step stand side by side for all rows of the block, a line for each row:
//
//   LSTM  i, f, g, o;  c = f c + i g;  h = o tanh(c)
//   GRU   r, z, n, q;  q = what the last state adds to n;  n = tanh(.. + r q);  h = (1 - z) n + z h
//
// What the input adds is one product over all steps and rows. On the way back the lines turn into the gradients of what
// their gates are functions of, and the weights' gradients are one product over all steps and rows too.

template <class T>
void lstm_step(const Recurrent<T>& a, std::int64_t t) {
  using V = Vec<T>;
  for (std::int64_t r = 0; r < a.n_rows; ++r) {
    T* const z = a.line_of(t, r);
    T* const cell = a.cell_of(t, r);
    const T* const before = t > 0 ? a.cell_of(t - 1, r) : nullptr;
    T* const h = a.state_of(t, r);
    for_each_vec<T>(a.width, [=, width = a.width](std::int64_t j, auto lanes) {
      const V i = sigmoid(load(z + j, lanes)), f = sigmoid(load(z + width + j, lanes));
      const V g = tanh(load(z + 2 * width + j, lanes)), o = sigmoid(load(z + 3 * width + j, lanes));
      const V c = before == nullptr ? i * g : madd(f, load(before + j, lanes), i * g);
      store(i, z + j, lanes);
      store(f, z + width + j, lanes);
      store(g, z + 2 * width + j, lanes);
      store(o, z + 3 * width + j, lanes);
      store(c, cell + j, lanes);
      store(o * tanh(c), h + j, lanes);
    });
  }
}

// g (rows, ...): the gradient of this step's state but for what the steps behind it carry.
template <class T>
void lstm_step_back(const Recurrent<T>& a, std::int64_t t, const T* g, std::int64_t g_size) {
  using V = Vec<T>;
  const V one = V::set(T(1));
  for (std::int64_t r = 0; r < a.n_rows; ++r) {
    T* const z = a.line_of(t, r);
    T* const carry = a.carry + r * a.width;
    T* const cell_carry = a.cell_carry + r * a.width;
    const T* const cell = a.cell_of(t, r);
    const T* const before = t > 0 ? a.cell_of(t - 1, r) : nullptr;
    for_each_vec<T>(a.width, [=, own = g + r * g_size, width = a.width](std::int64_t j, auto lanes) {
      const V i = load(z + j, lanes), f = load(z + width + j, lanes);
      const V k = load(z + 2 * width + j, lanes), o = load(z + 3 * width + j, lanes);
      const V of_state = load(own + j, lanes) + load(carry + j, lanes), y = tanh(load(cell + j, lanes));
      const V of_cell = madd(of_state * o, one - y * y, load(cell_carry + j, lanes));
      const V last = before == nullptr ? V::zero() : load(before + j, lanes);
      store(of_cell * k * (i * (one - i)), z + j, lanes);
      store(of_cell * last * (f * (one - f)), z + width + j, lanes);
      store(of_cell * i * (one - k * k), z + 2 * width + j, lanes);
      store(of_state * y * (o * (one - o)), z + 3 * width + j, lanes);
      store(of_cell * f, cell_carry + j, lanes);
    });
  }
}

template <class T>
void gru_step(const Recurrent<T>& a, std::int64_t t) {
  using V = Vec<T>;
  for (std::int64_t row = 0; row < a.n_rows; ++row) {
    T* const line = a.line_of(t, row);
    const T* const before = t > 0 ? a.state_of(t - 1, row) : nullptr;
    T* const h = a.state_of(t, row);
    for_each_vec<T>(a.width, [=, width = a.width](std::int64_t j, auto lanes) {
      const V r = sigmoid(load(line + j, lanes)), z = sigmoid(load(line + width + j, lanes));
      const V n = tanh(madd(r, load(line + 3 * width + j, lanes), load(line + 2 * width + j, lanes)));
      const V last = before == nullptr ? V::zero() : load(before + j, lanes);
      store(r, line + j, lanes);
      store(z, line + width + j, lanes);
      store(n, line + 2 * width + j, lanes);
      store(madd(z, last - n, n), h + j, lanes);
    });
  }
}

// carry becomes what goes past the gates; the rest of the state before is still to be added to it.
template <class T>
void gru_step_back(const Recurrent<T>& a, std::int64_t t, const T* g, std::int64_t g_size) {
  using V = Vec<T>;
  const V one = V::set(T(1));
  for (std::int64_t row = 0; row < a.n_rows; ++row) {
    T* const line = a.line_of(t, row);
    T* const carry = a.carry + row * a.width;
    const T* const before = t > 0 ? a.state_of(t - 1, row) : nullptr;
    for_each_vec<T>(a.width, [=, own = g + row * g_size, width = a.width](std::int64_t j, auto lanes) {
      const V r = load(line + j, lanes), z = load(line + width + j, lanes);
      const V n = load(line + 2 * width + j, lanes), q = load(line + 3 * width + j, lanes);
      const V of_state = load(own + j, lanes) + load(carry + j, lanes);
      const V last = before == nullptr ? V::zero() : load(before + j, lanes);
      const V of_n = of_state * (one - z) * (one - n * n);
      store(of_n * q * (r * (one - r)), line + j, lanes);
      store(of_state * (last - n) * (z * (one - z)), line + width + j, lanes);
      store(of_n, line + 2 * width + j, lanes);
      store(of_n * r, line + 3 * width + j, lanes);
      store(of_state * z, carry + j, lanes);
    });
  }
}

// What every line begins with: the biases; q has the last state's alone.
template <class T>
void load_bias(const Recurrent<T>& a, const T* w) {
  fill_zero(4 * a.width, a.bias);
  if (a.op.bias < 0) {
    return;
  }
  copy(a.n_gates, w + a.op.bias, a.bias);
  for (int p = 0; p < a.n_parts; ++p) {
    T* const to = a.bias + a.part[p].column;
    for_each_vec<T>(a.part[p].count, [=, from = w + a.hidden_bias + a.part[p].row](std::int64_t j, auto lanes) {
      store(load(to + j, lanes) + load(from + j, lanes), to + j, lanes);
    });
  }
}

template <class T, class Row>
void recurrent_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w, Row row,
                       std::int64_t n_rows) {
  const Recurrent<T> a(network, op, s, n_rows);
  a.find_rows(row);
  load_bias(a, w);
  const std::int64_t width = a.width;
  pack_columns(a.n_in, a.n_gates, w + op.weight, s.packed);
  const auto inputs = [&](std::int64_t begin, std::int64_t n, std::int64_t first, std::int64_t depth, T* out) {
    return pack_panel([&](std::int64_t i) { return a.x[i]; }, begin, n, first, depth, out);
  };
  multiply(
      a.steps * n_rows, a.n_in, a.n_gates, s.packed, inputs, [&](std::int64_t) { return a.bias; },
      [&](std::int64_t i) { return a.line + i * a.line_step; }, s.panels);
  T* const packed[2] = {s.packed, s.packed + packed_size<T>(width, a.part[0].count)};
  for (int p = 0; p < a.n_parts; ++p) {
    pack_columns(width, a.part[p].count, w + a.hidden + a.part[p].row * width, packed[p]);
  }
  for (std::int64_t t = 0; t < a.steps; ++t) {
    for (std::int64_t r = 0; a.gru && r < n_rows; ++r) {
      copy(width, a.bias + 3 * width, a.line_of(t, r) + 3 * width);
    }
    for (int p = 0; t > 0 && p < a.n_parts; ++p) {
      const auto states = [&](std::int64_t begin, std::int64_t n, std::int64_t first, std::int64_t depth, T* out) {
        return pack_panel([&](std::int64_t r) { return a.state_of(t - 1, r); }, begin, n, first, depth, out);
      };
      const auto to = [&](std::int64_t r) { return a.line_of(t, r) + a.part[p].column; };
      multiply(n_rows, width, a.part[p].count, packed[p], states, to, to, s.panels);
    }
    a.gru ? gru_step(a, t) : lstm_step(a, t);
  }
}

// Lines turn from gates to gradients, step by step from the last one.
template <class T>
void recurrent_steps_back(const Recurrent<T>& a, const NetworkScratch<T>& s, const T* w, const T* g,
                          std::int64_t g_size) {
  const std::int64_t width = a.width;
  T* const packed[2] = {s.packed, s.packed + packed_size<T>(a.part[0].count, width)};
  for (int p = 0; p < a.n_parts; ++p) {
    const T* const weights = w + a.hidden + a.part[p].row * width;
    pack_rows(a.part[p].count, width, [=](std::int64_t i) { return weights + i * width; }, packed[p]);
  }
  fill_zero(a.n_rows * width, a.carry);
  fill_zero(a.gru ? 0 : a.n_rows * width, a.cell_carry);
  for (std::int64_t t = a.steps - 1; t >= 0; --t) {
    a.gru ? gru_step_back(a, t, g + t * width, g_size) : lstm_step_back(a, t, g + t * width, g_size);
    for (int p = 0; t > 0 && p < a.n_parts; ++p) {
      const auto lines = [&](std::int64_t begin, std::int64_t, std::int64_t first, std::int64_t, T*) {
        return LeftPanel<T>{a.line_of(t, begin) + a.part[p].column + first, a.line_step, 1};
      };
      const auto to = [&](std::int64_t r) { return a.carry + r * width; };
      const auto start = [&](std::int64_t r) { return a.gru ? to(r) : nullptr; };
      multiply(a.n_rows, a.part[p].count, width, packed[p], lines, start, to, s.panels);
    }
  }
}

// Adds the gradient of weights and biases to sum, which may be w, and makes that of the input where it is wanted.
template <class T, class Row>
void recurrent_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, const T* w, Row row,
                        std::int64_t n_rows, T* sum) {
  const Recurrent<T> a(network, op, s, n_rows);
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  const std::int64_t width = a.width, n_lines = a.steps * n_rows;
  a.find_rows(row);
  recurrent_steps_back(a, s, w, s.gradient[op.out], out.size());
  if (op.passes_back) {
    const T* const weights = w + op.weight;
    pack_rows(a.n_gates, a.n_in, [=, n_in = a.n_in](std::int64_t i) { return weights + i * n_in; }, s.packed);
    const auto lines = [&](std::int64_t begin, std::int64_t, std::int64_t first, std::int64_t, T*) {
      return LeftPanel<T>{a.line + begin * a.line_step + first, a.line_step, 1};
    };
    multiply(
        n_lines, a.n_gates, a.n_in, s.packed, lines, [](std::int64_t) { return static_cast<const T*>(nullptr); },
        [&](std::int64_t i) { return s.gradient[op.in] + i % n_rows * in.size() + i / n_rows * a.n_in; }, s.panels);
  }
  // The weights that follow must not be needed any more: they may move now.
  const auto update = [&](const T* const* rows, const T* line, std::int64_t n, std::int64_t depth, std::int64_t wide,
                          T* to) {
    pack_rows(depth, wide, [=](std::int64_t i) { return rows[i]; }, s.packed);
    const auto columns = [&](std::int64_t begin, std::int64_t count, std::int64_t first, std::int64_t some, T* panel) {
      return pack_turned_panel([&](std::int64_t i) { return line + i * a.line_step; }, begin, count, first, some,
                               panel);
    };
    const auto weights = [=](std::int64_t o) { return to + o * wide; };
    multiply(n, depth, wide, s.packed, columns, weights, weights, s.panels);
  };
  update(a.x, a.line, a.n_gates, n_lines, a.n_in, sum + op.weight);
  for (int p = 0; p < a.n_parts; ++p) {
    const HiddenPart part = a.part[p];
    update(a.state, a.line_of(1, 0) + part.column, part.count, n_lines - n_rows, width,
           sum + a.hidden + part.row * width);
  }
  if (op.bias >= 0) {
    const auto add = [&](std::int64_t n, const T* from, T* to) {
      for_each_vec<T>(
          n, [=](std::int64_t j, auto lanes) { store(load(to + j, lanes) + load(from + j, lanes), to + j, lanes); });
    };
    fill_zero(4 * width, a.bias);
    add_bias(a.line, n_lines, a.line_step, 1, 4 * width, a.bias);
    add(a.n_gates, a.bias, sum + op.bias);
    for (int p = 0; p < a.n_parts; ++p) {
      add(a.part[p].count, a.bias + a.part[p].column, sum + a.hidden_bias + a.part[p].row);
    }
  }
}

// The last step of a sequence.
template <class T, class Row>
void last_step_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                       std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  for (std::int64_t r = 0; r < n_rows; ++r) {
    copy(in.c, row(r) + (in.w - 1) * in.c, s.value[op.out] + r * in.c);
  }
}

template <class T>
void last_step_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  fill_zero(n_rows * in.size(), s.gradient[op.in]);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    copy(in.c, s.gradient[op.out] + r * in.c, s.gradient[op.in] + r * in.size() + (in.w - 1) * in.c);
  }
}
