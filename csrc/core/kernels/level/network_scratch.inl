// One thread's working memory for a network: the activations of a block of rows, their gradients, and what a
// convolution needs while it is computed.

inline constexpr std::int64_t kSlack = 64;  // numbers behind a buffer that vectors may read, and add zeros to

// A convolution in numbers of its input tensor.
template <class T>
struct ConvShape {
  static constexpr std::int64_t kLanes = Vec<T>::kLanes;
  std::int64_t kernel_h;
  std::int64_t runs, run;            // runs of neighbouring numbers in a row of the kernel, and their length
  std::int64_t run_step;             // from one run to the next
  std::int64_t line, line_step;      // from a row of pixels to the next one, and to that of the next output
  std::int64_t step;                 // from an output's window to the next one's
  std::int64_t origin;               // where the first window begins
  std::int64_t in_group, out_group;  // channels of a group
  std::int64_t out_vecs, run_vecs;   // vectors that hold out_group and run numbers
  std::int64_t weights;              // of one output channel

  ConvShape(const Network& network, const Operation& op) : ConvShape(network.tensors[op.in], op.record) {}
  ConvShape(const Tensor& in, const LayerRecord& r) {
    in_group = in.c / r.groups;
    out_group = r.out / r.groups;
    kernel_h = r.kernel[0];
    runs = r.groups == 1 ? 1 : r.kernel[1];
    run = r.groups == 1 ? r.kernel[1] * in.c : in_group;
    run_step = in.c;
    line = in.line();
    line_step = line * r.stride[0];
    step = in.c * r.stride[1];
    origin = (in.top - r.padding[0]) * line + (in.left - r.padding[2]) * in.c;
    out_vecs = (out_group + kLanes - 1) / kLanes;
    run_vecs = (run + kLanes - 1) / kLanes;
    weights = kernel_h * runs * run;
  }
  std::int64_t forward_size(const Operation& op) const { return op.record.groups * weights * out_vecs * kLanes; }
  std::int64_t backward_size(const Operation& op) const { return op.record.out * kernel_h * runs * run_vecs * kLanes; }
  std::int64_t strip_line(const Operation& op) const { return op.conv_w * op.record.groups * out_vecs * kLanes; }
};

// The backward pass of a convolution to its input, a convolution too: of the gradient by the kernel turned round.
// With strides it is one for each place, down and across, that a window's numbers can have between two steps: they meet
// every stride-th number of the kernel.
struct TurnedConv {
  Tensor gradient;     // of one row, with zeros around it that all windows fit into
  LayerRecord record;  // the convolution of it; its kernel is set by turn()

  TurnedConv(const Network& network, const Operation& op) {
    const Tensor& in = network.tensors[op.in];
    const Tensor& out = network.tensors[op.out];
    const LayerRecord& r = op.record;
    const auto before = [&](int axis) { return (r.kernel[axis] - 1) / r.stride[axis]; };
    const auto behind = [&](int axis, std::int64_t n_in, std::int64_t n_out) {
      const std::int64_t last = (n_in - 1 + r.padding[2 * axis]) / r.stride[axis];
      return last < n_out ? 0 : last + 1 - n_out;
    };
    gradient = out;
    gradient.top = before(0);
    gradient.left = before(1);
    gradient.bottom = behind(0, in.h, out.h);
    gradient.right = behind(1, in.w, out.w);
    record.kind = LayerKind::Conv2d;
    record.out = static_cast<std::int32_t>(in.c);
    record.groups = r.groups;
  }
  // For the numbers `phase` (down, across) behind a step; false where no window has any.
  bool turn(const LayerRecord& r, const std::int64_t (&phase)[2]) {
    for (int axis = 0; axis < 2; ++axis) {
      const std::int64_t left = r.kernel[axis] - phase[axis];
      record.kernel[axis] = static_cast<std::int32_t>(left < 1 ? 0 : (left - 1) / r.stride[axis] + 1);
    }
    return record.kernel[0] > 0 && record.kernel[1] > 0;
  }
};

inline constexpr std::int64_t kListEntries = 4096;  // of one channel, unless a row has more

template <class T>
std::int64_t rows_per_list(const Network& network, const Operation& op) {
  const Tensor& out = network.tensors[op.out];
  const std::int64_t in = network.tensors[op.in].size() * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t fit = (std::int64_t{1} << 16) / in, most = kListEntries / (out.h * out.w);
  const std::int64_t n = fit < most ? fit : most;
  return n < 1 ? 1 : n < network.block_rows ? n : network.block_rows;
}

// Where the rows of a block stand in a client's training: their masks are a function of it. Not `on`: nothing is
// dropped.
struct DropoutPlace {
  bool on;
  std::uint64_t seed;
  std::uint32_t client, task, step;
  std::uint32_t first;  // place of the block's first row in the batch
};

template <class T>
struct NetworkScratch {
  T** value;                // (tensors) activations: (block_rows, size of the tensor)
  T** gradient;             // (tensors) the same of their gradients, where they are wanted
  T** choice;               // (tensors) which of a pool's window was largest, or a mask: (block_rows, h, w, c)
  const T** rows;           // (block_rows) where the rows of an operation's input begin
  const T** weight_row;     // (most outputs of a dense layer) where each row of its weights begins
  T* forward_weights;       // of the convolution at work: groups of vectors of outputs, then kernel, then outputs
  T* backward_weights;      // outputs, then kernel, each run filled up with zeros to whole vectors
  T* weight_sum;            // the gradient of those
  T* strip;                 // two lines of a convolution's output; on the way back the gradient of its bias
  T* list;                  // (kListChannels, list_room) the gradients of ChannelLists
  std::int32_t* list_from;  // and where their windows begin
  std::int64_t list_room, place_room;
  std::int32_t* place_begin;  // (4, pixels + 1) of PlaceLists, which lie in the same memory with place_room
  T* turned;                  // a row's gradient with zeros around it
  T* norm;                    // weights and sums of a norm
  T* packed;                  // of a product of matrices, the second one
  T* panels;                  // and of the first one a part
  const T** lines;            // where an LSTM's or GRU's inputs and states begin
  T* other_gradient;          // (block_rows, largest tensor) what is added to a gradient
  DenseLists<T>* dense;       // of a block of outputs of a dense layer
  DropoutPlace* place;        // of the rows at work

  template <class Take>
  void lay_out(const Network& n, bool planning, Take take) {
    const auto n_tensors = n.n_tensors;
    take(value, n_tensors);
    take(gradient, n_tensors);
    take(choice, n_tensors);
    take(rows, n.block_rows);
    const auto take_into = [&](T** table, std::int64_t i, std::int64_t numbers) {
      T* made;
      take(made, numbers + kSlack);
      if (!planning) {
        table[i] = made;
      }
    };
    for (std::int64_t i = 0; i < n_tensors; ++i) {
      const std::int64_t numbers = n.block_rows * n.tensors[i].size();
      take_into(value, i, numbers);
      take_into(gradient, i, numbers);
    }
    std::int64_t forward = 0, backward = 0, strips = 0, outputs = 0, norms = 0, others = 0;
    std::int64_t turns = 0, packs = 0, steps = 0;
    const auto at_least = [](std::int64_t& most, std::int64_t wanted) { most = most < wanted ? wanted : most; };
    for (std::int64_t i = 0; i < n.n_operations; ++i) {
      const Operation& op = n.operations[i];
      at_least(outputs, op.kind == OperationKind::Dense ? op.record.out : 0);
      const Tensor& out = n.tensors[op.out];
      const bool chooses = op.pooled || op.kind == OperationKind::MaxPool || op.kind == OperationKind::Dropout;
      if (op.kind == OperationKind::Norm) {
        take_into(choice, op.out, 2 * n.block_rows * out.c);
        const std::int64_t weights = op.record.kind == LayerKind::LayerNorm ? out.features() : out.c;
        at_least(norms, 4 * weights + 2 * out.c);
      }
      if (op.kind == OperationKind::Recurrent) {
        const RecurrentShape<T> recurrent(n, op, n.block_rows);
        take_into(choice, op.out, recurrent.memory_size());
        at_least(packs, recurrent.packed_most());
        at_least(steps, out.w);
      }
      if (op.adds_back || op.adds_back_other) {
        const std::int32_t to = op.adds_back ? op.in : op.other;
        at_least(others, n.block_rows * n.tensors[to].size());
      }
      if (chooses) {
        take_into(choice, op.out, n.block_rows * out.features());
      }
      if (op.kind == OperationKind::Conv) {
        const ConvShape<T> shape(n, op);
        at_least(forward, shape.forward_size(op));
        at_least(backward, shape.backward_size(op));
        at_least(strips, 2 * shape.strip_line(op));
        if (!op.pooled && op.passes_back) {
          const Tensor& in = n.tensors[op.in];
          const std::int64_t vecs = (shape.in_group + shape.kLanes - 1) / shape.kLanes;
          const std::int64_t channels = op.record.groups * vecs * shape.kLanes;
          at_least(forward, channels * op.record.kernel[0] * op.record.kernel[1] * shape.out_group);
          at_least(backward, channels);
          at_least(strips, in.w * channels);
          at_least(turns, TurnedConv(n, op).gradient.size());
        }
      }
    }
    take(forward_weights, forward + kSlack);
    take(backward_weights, backward + kSlack);
    take(weight_sum, backward + kSlack);
    take(strip, strips + kSlack);
    lay_out_lists(n, take);
    take(turned, turns + kSlack);
    take(weight_row, outputs);
    take(dense, 1);
    take(place, 1);
    take(norm, norms + kSlack);
    take(packed, packs);
    take(panels, packs > 0 ? kProductMemory<T> : 0);
    take(lines, 2 * n.block_rows * steps);
    take(other_gradient, others + kSlack);
  }

  // Those of pooled convolutions.
  template <class Take>
  void lay_out_lists(const Network& n, Take take) {
    std::int64_t begins = 0;
    list_room = place_room = kListSlack;
    const auto at_least = [](std::int64_t& most, std::int64_t wanted) { most = most < wanted ? wanted : most; };
    for (std::int64_t i = 0; i < n.n_operations; ++i) {
      const Operation& op = n.operations[i];
      const std::int64_t pixels = n.tensors[op.out].h * n.tensors[op.out].w;
      if (op.kind == OperationKind::Conv && op.pooled) {
        at_least(list_room, rows_per_list<T>(n, op) * pixels + kListSlack);
        at_least(place_room, pixels * (op.record.out / op.record.groups) + kListSlack);
        at_least(begins, 4 * (pixels + 1));
      }
    }
    std::int64_t listed = kListChannels * list_room;
    at_least(listed, 4 * place_room);
    take(list, listed);
    take(list_from, listed);
    take(place_begin, begins);
  }
};
