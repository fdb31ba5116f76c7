// What an LSTM or a GRU works with: its lines, where its weights stand, its memory.

template <class T>
struct NetworkScratch;

// Lines that follow each other must not begin in the same set of a cache.
template <class T>
inline constexpr std::int64_t kLineGap = 64 / sizeof(T);

// Columns of a line that the last state is multiplied for, by these rows of its weights.
struct HiddenPart {
  std::int64_t column, row, count;
};

// Sizes of the operation for so many rows.
template <class T>
struct RecurrentShape {
  bool gru;
  std::int64_t n_in, width, steps, n_rows;
  std::int64_t n_gates;    // numbers of a line that the input adds to: 3 or 4 times width
  std::int64_t line_step;  // from a line to the next one
  std::int64_t cells;      // (steps, rows, width) of an LSTM

  RecurrentShape(const Network& network, const Operation& op, std::int64_t rows)
      : gru(op.record.kind == LayerKind::Gru),
        n_in(network.tensors[op.in].c),
        width(op.record.out),
        steps(network.tensors[op.in].w),
        n_rows(rows),
        n_gates((gru ? 3 : 4) * width),
        line_step(4 * width + kLineGap<T>),
        cells(gru ? 0 : steps * n_rows * width) {}

  // Lines, cells, what is carried back of states and cells, biases.
  std::int64_t memory_size() const {
    return steps * n_rows * line_step + cells + (gru ? 1 : 2) * n_rows * width + 4 * width;
  }
  // Of the matrices that are packed, the largest.
  std::int64_t packed_most() const {
    const std::int64_t sizes[] = {packed_size<T>(n_in, n_gates),        packed_size<T>(width, 2 * width) * 2,
                                  packed_size<T>(n_gates, n_in),        packed_size<T>(n_gates, width),
                                  packed_size<T>(steps * n_rows, n_in), packed_size<T>(steps * n_rows, width)};
    std::int64_t most = 0;
    for (const std::int64_t size : sizes) {
      most = most < size ? size : most;
    }
    return most;
  }
};

template <class T>
struct Recurrent : RecurrentShape<T> {
  using Shape = RecurrentShape<T>;
  const Operation& op;
  std::int64_t hidden, hidden_bias;  // where the last state's weights and bias stand; the input's stand at op's
  T* line;                           // (steps, rows, 4 width)
  T* cell;                           // (steps, rows, width) LSTM
  T* carry;                          // (rows, width) gradient of the state, from the steps behind
  T* cell_carry;                     // (rows, width) LSTM: the same of the cell
  T* bias;                           // (4 width)
  T* states;                         // (rows, state_size) of all steps
  std::int64_t state_size;
  const T** x;      // (steps, rows) where each step's input begins
  const T** state;  // (steps, rows) the same of its state
  HiddenPart part[2];
  int n_parts;

  Recurrent(const Network& network, const Operation& operation, const NetworkScratch<T>& s, std::int64_t rows)
      : Shape(network, operation, rows), op(operation) {
    const std::int64_t wide = Shape::width, n_lines = Shape::steps * rows;
    hidden = op.weight + Shape::n_gates * Shape::n_in;
    hidden_bias = op.bias + Shape::n_gates;
    line = s.choice[op.out];
    cell = line + n_lines * Shape::line_step;
    carry = cell + Shape::cells;
    cell_carry = carry + rows * wide;
    bias = cell_carry + (Shape::gru ? 0 : rows * wide);
    states = s.value[op.out];
    state_size = network.tensors[op.out].size();
    x = s.lines;
    state = x + n_lines;
    part[0] = {0, 0, Shape::gru ? 2 * wide : Shape::n_gates};
    part[1] = {3 * wide, 2 * wide, wide};
    n_parts = Shape::gru ? 2 : 1;
  }
  T* line_of(std::int64_t t, std::int64_t r) const { return line + (t * Shape::n_rows + r) * Shape::line_step; }
  T* cell_of(std::int64_t t, std::int64_t r) const { return cell + (t * Shape::n_rows + r) * Shape::width; }
  T* state_of(std::int64_t t, std::int64_t r) const { return states + r * state_size + t * Shape::width; }

  template <class Row>
  void find_rows(Row row) const {
    for (std::int64_t t = 0; t < Shape::steps; ++t) {
      for (std::int64_t r = 0; r < Shape::n_rows; ++r) {
        x[t * Shape::n_rows + r] = row(r) + t * Shape::n_in;
        state[t * Shape::n_rows + r] = state_of(t, r);
      }
    }
  }
};
