#include "clients/network_plan.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace fedbuff {

namespace {

// Numbers of one row in one tensor, and weights of one layer: what 32-bit offsets and memory allow.
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 28;
constexpr std::int64_t kMostWeights = std::int64_t{1} << 40;
constexpr std::int64_t kBlockNumbers = std::int64_t{1} << 24;  // of all activations of a block of rows
constexpr std::int64_t kRecurrentNumbers = 5;                  // that a step keeps for each number of an LSTM's state

const char* name_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::Conv2d: return "conv2d";
    case LayerKind::Relu: return "relu";
    case LayerKind::MaxPool: return "max_pool";
    case LayerKind::Flatten: return "flatten";
    case LayerKind::Dense: return "dense";
    case LayerKind::AvgPool: return "avg_pool";
    case LayerKind::GlobalAvg: return "global_avg";
    case LayerKind::LeakyRelu: return "leaky_relu";
    case LayerKind::Gelu: return "gelu";
    case LayerKind::Silu: return "silu";
    case LayerKind::Tanh: return "tanh";
    case LayerKind::Sigmoid: return "sigmoid";
    case LayerKind::Dropout: return "dropout";
    case LayerKind::GroupNorm: return "group_norm";
    case LayerKind::LayerNorm: return "layer_norm";
    case LayerKind::Residual: return "residual";
    case LayerKind::Shortcut: return "shortcut";
    case LayerKind::EndResidual: return "end_residual";
    case LayerKind::Embedding: return "embedding";
    case LayerKind::MeanOverTime: return "mean_over_time";
    case LayerKind::LastStep: return "last_step";
    case LayerKind::Lstm: return "lstm";
    case LayerKind::Gru: return "gru";
    case LayerKind::RandomCrop: return "random_crop";
    case LayerKind::RandomFlip: return "random_flip";
  }
  return "unknown";
}

std::string text_of(const Tensor& t) {
  return t.image ? "an image of (" + std::to_string(t.c) + ", " + std::to_string(t.h) + ", " + std::to_string(t.w) + ")"
         : t.sequence ? "a sequence of (" + std::to_string(t.w) + ", " + std::to_string(t.c) + ")"
                      : "a vector of " + std::to_string(t.c);
}

class Planner {
 public:
  explicit Planner(const NetworkDescription& description) : given_(description), plan_(new NetworkPlan{}) {}

  std::unique_ptr<const NetworkPlan> make() {
    begin();
    for (std::size_t i = 0; i < given_.layers.size(); ++i) {
      layer_ = i;
      add(given_.layers[i]);
    }
    end();
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const std::string where = layer_ < given_.layers.size() ? "layer " + std::to_string(layer_) + " (" +
                                                                  name_of(given_.layers[layer_].kind) + "): "
                                                            : "layers: ";
    throw std::invalid_argument(where + what);
  }

  // a * b, where that is at most `most`.
  std::int64_t product(std::int64_t a, std::int64_t b, std::int64_t most, const char* what) const {
    std::int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result) || result > most) {
      fail(std::string(what) + " are too many: more than " + std::to_string(most));
    }
    return result;
  }

  Tensor& tensor(std::int32_t index) { return plan_->tensors[static_cast<std::size_t>(index)]; }
  std::int32_t last() const { return current_; }  // the tensor that the next layer takes

  std::int32_t add_tensor(std::int64_t c, std::int64_t h, std::int64_t w, bool image) {
    product(product(c, h, kMostNumbers, "the numbers of its output"), w, kMostNumbers, "the numbers of its output");
    Tensor made;
    made.c = c;
    made.h = h;
    made.w = w;
    made.image = image;
    return add_like(made);
  }

  // A tensor of that shape, without its halo.
  std::int32_t add_like(const Tensor& like) {
    Tensor made;
    made.c = like.c;
    made.h = like.h;
    made.w = like.w;
    made.image = like.image;
    made.sequence = like.sequence;
    plan_->tensors.push_back(made);
    current_ = static_cast<std::int32_t>(plan_->tensors.size()) - 1;
    return current_;
  }

  void begin() {
    layer_ = given_.layers.size();
    if (given_.layers.empty() || given_.layers.size() > static_cast<std::size_t>(kMostNetworkLayers)) {
      fail("expected 1 to " + std::to_string(kMostNetworkLayers) + " layers, got " +
           std::to_string(given_.layers.size()));
    }
    const std::int64_t* shape = given_.input_shape;
    if (shape[0] < 1 || shape[1] < 1 || shape[2] < 1) {
      fail("expected an input shape of positive numbers, got (" + std::to_string(shape[0]) + ", " +
           std::to_string(shape[1]) + ", " + std::to_string(shape[2]) + ")");
    }
    if (!(given_.label_smoothing >= 0 && given_.label_smoothing < 1)) {
      fail("expected a label smoothing of at least 0 and below 1, got " + std::to_string(given_.label_smoothing));
    }
    plan_->network.label_smoothing = given_.label_smoothing;
    const bool image = shape[1] > 1 || shape[2] > 1;
    add_tensor(shape[0], shape[1], shape[2], image);
    plan_->network.n_features = tensor(0).features();
    gets_gradient_ = {false};
    open_ = !image;
  }

  std::int64_t take_weights(std::int64_t n) {
    const std::int64_t at = plan_->network.dim;
    plan_->network.dim += n;
    if (plan_->network.dim > kMostWeights) {
      fail("the weights are too many: more than " + std::to_string(kMostWeights));
    }
    return at;
  }

  Operation& add_operation(OperationKind kind, const LayerRecord& record, std::int32_t in, std::int32_t out) {
    Operation made{};
    made.kind = kind;
    made.layer = static_cast<std::int32_t>(layer_);
    made.in = in;
    made.out = out;
    made.record = record;
    made.passes_back = gets_gradient_[static_cast<std::size_t>(in)];
    plan_->operations.push_back(made);
    gets_gradient_.resize(plan_->tensors.size(), made.passes_back);
    return plan_->operations.back();
  }

  void want_image() {
    Tensor& now = tensor(last());
    if (open_) {
      for (Tensor& t : plan_->tensors) {
        t.image = true;
      }
      open_ = false;
    }
    if (!now.image) {
      fail("expected an image of (channels, height, width), got " + text_of(now));
    }
  }

  void want_vector() {
    if (tensor(last()).image || tensor(last()).sequence) {
      fail("expected a vector, got " + text_of(tensor(last())) + "; put flatten before it");
    }
    open_ = false;
  }

  bool is_first() const { return plan_->tensors.size() == 1 && blocks_.empty(); }

  // The input may be an image of one channel: its rows of pixels are the steps.
  void want_sequence() {
    Tensor& now = tensor(last());
    if (is_first() && now.c == 1) {
      now.c = now.w;
      now.w = now.h;
      now.h = 1;
      now.image = false;
      now.sequence = true;
    }
    if (!now.sequence) {
      fail("expected a sequence of (time, features), got " + text_of(now));
    }
    open_ = false;
  }

  // Height and width behind a window that moves over the image.
  void window(const LayerRecord& r, std::int64_t (&out)[2]) {
    const Tensor& now = tensor(last());
    const std::int64_t size[2] = {now.h, now.w};
    for (int axis = 0; axis < 2; ++axis) {
      const char* which = axis == 0 ? "height" : "width";
      if (r.kernel[axis] < 1 || r.stride[axis] < 1 || r.padding[2 * axis] < 0 || r.padding[2 * axis + 1] < 0) {
        fail(std::string("expected a kernel and a stride of at least 1 and a padding of at least 0, got ") +
             std::to_string(r.kernel[axis]) + ", " + std::to_string(r.stride[axis]) + ", " +
             std::to_string(std::min(r.padding[2 * axis], r.padding[2 * axis + 1])) + " along the " + which);
      }
      const std::int64_t padded = size[axis] + r.padding[2 * axis] + r.padding[2 * axis + 1];
      if (r.kernel[axis] > padded) {
        fail("the kernel's " + std::string(which) + " of " + std::to_string(r.kernel[axis]) +
             " is larger than that of its input with padding, " + std::to_string(padded) + ": " + text_of(now));
      }
      out[axis] = (padded - r.kernel[axis]) / r.stride[axis] + 1;
    }
  }

  void add(const LayerRecord& record) {
    switch (record.kind) {
      case LayerKind::Conv2d: add_conv(record); return;
      case LayerKind::MaxPool:
      case LayerKind::AvgPool: add_pool(record); return;
      case LayerKind::Dense: add_dense(record); return;
      case LayerKind::Relu: add_relu(record); return;
      case LayerKind::Flatten: add_flatten(record); return;
      case LayerKind::GlobalAvg:
        want_image();
        add_mean(record);
        return;
      case LayerKind::MeanOverTime:
        want_sequence();
        add_mean(record);
        return;
      case LayerKind::RandomCrop:
      case LayerKind::RandomFlip: add_augment(record); return;
      case LayerKind::LastStep: add_last_step(record); return;
      case LayerKind::Lstm:
      case LayerKind::Gru: add_recurrent(record); return;
      case LayerKind::Embedding: add_embedding(record); return;
      case LayerKind::GroupNorm:
      case LayerKind::LayerNorm: add_norm(record); return;
      case LayerKind::Residual:
        blocks_.push_back({last(), -1});
        sealed_ = last();
        return;
      case LayerKind::Shortcut:
        if (blocks_.empty() || blocks_.back().body >= 0 || last() == blocks_.back().input) {
          fail("expected the layers of a residual block before it");
        }
        blocks_.back().body = last();
        current_ = blocks_.back().input;
        sealed_ = current_;
        return;
      case LayerKind::EndResidual: add_block(record); return;
      case LayerKind::Dropout:
        if (!(record.number >= 0 && record.number < 1)) {
          fail("expected a rate of at least 0 and below 1, got " + std::to_string(record.number));
        }
        add_pointwise(OperationKind::Dropout, record).number = plan_->network.n_draws++;
        return;
      case LayerKind::LeakyRelu:
        if (!std::isfinite(record.number)) {
          fail("expected a finite slope, got " + std::to_string(record.number));
        }
        add_pointwise(OperationKind::Pointwise, record);
        return;
      case LayerKind::Gelu:
      case LayerKind::Silu:
      case LayerKind::Tanh:
      case LayerKind::Sigmoid: add_pointwise(OperationKind::Pointwise, record); return;
    }
    fail("unknown kind " + std::to_string(static_cast<std::int32_t>(record.kind)));
  }

  void add_norm(const LayerRecord& r) {
    const std::int32_t in = last();
    const Tensor now = tensor(in);
    if (now.sequence) {
      fail("expected an image or a vector, got " + text_of(now));
    }
    const std::int64_t groups = r.kind == LayerKind::GroupNorm ? r.out : 1;
    if (groups < 1 || now.c % groups != 0) {
      fail("expected groups that divide " + std::to_string(now.c) + " channels, got " + std::to_string(groups));
    }
    if (!(std::isfinite(r.number) && r.number >= 0)) {
      fail("expected an epsilon of at least 0, got " + std::to_string(r.number));
    }
    Operation& made = add_pointwise(OperationKind::Norm, r);
    const std::int64_t n = r.kind == LayerKind::GroupNorm ? now.c : now.features();
    made.weight = r.bias ? take_weights(n) : -1;
    made.bias = r.bias ? take_weights(n) : -1;
    if (r.bias) {
      gets_gradient_[static_cast<std::size_t>(made.out)] = true;
    }
  }

  // The end of a residual block: the sum of its two branches.
  void add_block(const LayerRecord& r) {
    if (blocks_.empty() || blocks_.back().body < 0) {
      fail("expected a residual block with a shortcut before it");
    }
    const std::int32_t body = blocks_.back().body, shortcut = last();
    blocks_.pop_back();
    const Tensor one = tensor(body), two = tensor(shortcut);
    if (one.c != two.c || one.h != two.h || one.w != two.w || one.image != two.image || one.sequence != two.sequence) {
      fail("the block gives " + text_of(one) + " and its shortcut " + text_of(two) + "; they must be alike");
    }
    const std::int32_t out = add_like(one);
    Operation& made = add_operation(OperationKind::Add, r, body, out);
    made.other = shortcut;
    made.passes_back = made.passes_back || gets_gradient_[static_cast<std::size_t>(shortcut)];
    gets_gradient_[static_cast<std::size_t>(out)] = made.passes_back;
  }

  void add_flatten(const LayerRecord& r) {
    if (is_first()) {
      const std::int64_t n = tensor(0).features();  // a row as it comes is in PyTorch's order
      plan_->tensors[0] = Tensor{};
      plan_->tensors[0].c = n;
    } else if (tensor(last()).image || tensor(last()).sequence) {
      const std::int32_t in = last();
      const std::int32_t out = add_tensor(tensor(in).features(), 1, 1, false);
      add_operation(OperationKind::Flatten, r, in, out);
    }
    open_ = false;
  }

  void add_mean(const LayerRecord& r) {
    const std::int32_t in = last();
    const std::int32_t out = add_tensor(tensor(in).c, 1, 1, false);
    add_operation(OperationKind::GlobalAvg, r, in, out);
  }

  void add_embedding(const LayerRecord& r) {
    const Tensor now = tensor(last());
    if (!is_first() || now.image) {
      fail("expected tokens, which are the input of the first layer, got " + text_of(now));
    }
    if (r.out < 1 || r.vocabulary < 1) {
      fail("expected at least 1 feature and 1 token, got " + std::to_string(r.out) + " and " +
           std::to_string(r.vocabulary));
    }
    const std::int64_t weights = product(r.vocabulary, r.out, kMostWeights, "its weights");
    const std::int32_t in = last(), out = add_tensor(r.out, 1, now.c, false);
    tensor(out).sequence = true;
    Operation& made = add_operation(OperationKind::Embedding, r, in, out);
    made.weight = take_weights(weights);
    gets_gradient_[static_cast<std::size_t>(out)] = true;
    plan_->network.vocabulary = r.vocabulary;
    open_ = false;
  }

  void add_augment(const LayerRecord& r) {
    want_image();
    for (int axis = 0; axis < 2 && r.kind == LayerKind::RandomCrop; ++axis) {
      const std::int32_t padding = r.padding[2 * axis];
      if (padding < 0 || padding >= 1 << 16 || padding != r.padding[2 * axis + 1]) {
        fail("expected a padding of 0 to 65535, the same on both sides, got " + std::to_string(padding) + " and " +
             std::to_string(r.padding[2 * axis + 1]));
      }
    }
    add_pointwise(OperationKind::Augment, r).number = plan_->network.n_draws++;
  }

  void add_last_step(const LayerRecord& r) {
    want_sequence();
    const std::int32_t in = last();
    const std::int32_t out = add_tensor(tensor(in).c, 1, 1, false);
    add_operation(OperationKind::LastStep, r, in, out);
  }

  void add_recurrent(const LayerRecord& r) {
    want_sequence();
    if (r.out < 1) {
      fail("expected a width of at least 1, got " + std::to_string(r.out));
    }
    const std::int32_t in = last();
    const Tensor now = tensor(in);
    const std::int64_t gates = std::int64_t{r.kind == LayerKind::Gru ? 3 : 4} * r.out;
    const std::int64_t weights = product(gates, now.c + r.out, kMostWeights, "its weights");
    const std::int32_t out = add_tensor(r.out, 1, now.w, false);
    tensor(out).sequence = true;
    Operation& made = add_operation(OperationKind::Recurrent, r, in, out);
    made.weight = take_weights(weights);
    made.bias = r.bias ? take_weights(2 * gates) : -1;
    gets_gradient_[static_cast<std::size_t>(out)] = true;
    flops(made, static_cast<double>(now.w) * static_cast<double>(weights));
    kept_numbers_ += kRecurrentNumbers * product(r.out, now.w, kMostNumbers, "the numbers of its output");
  }

  Operation& add_pointwise(OperationKind kind, const LayerRecord& r) {
    const std::int32_t in = last();
    const Tensor now = tensor(in);
    return add_operation(kind, r, in, add_like(now));
  }

  void add_conv(const LayerRecord& r) {
    want_image();
    const std::int32_t in = last();
    std::int64_t size[2];
    window(r, size);
    if (r.out < 1 || r.groups < 1 || tensor(in).c % r.groups != 0 || r.out % r.groups != 0) {
      fail("expected groups that divide " + std::to_string(tensor(in).c) + " input and " + std::to_string(r.out) +
           " output channels, at least 1 of each, got " + std::to_string(r.groups));
    }
    Tensor& from = tensor(in);
    from.top = std::max<std::int64_t>(from.top, r.padding[0]);
    from.bottom = std::max<std::int64_t>(from.bottom, r.padding[1]);
    from.left = std::max<std::int64_t>(from.left, r.padding[2]);
    from.right = std::max<std::int64_t>(from.right, r.padding[3]);
    product(from.top + from.h + from.bottom,
            product(from.left + from.w + from.right, from.c, kMostNumbers, "the numbers of its padded input"),
            kMostNumbers, "the numbers of its padded input");
    const std::int64_t per_out = product(product(r.kernel[0], r.kernel[1], kMostNumbers, "the weights of a channel"),
                                         from.c / r.groups, kMostNumbers, "the weights of a channel");
    const std::int64_t weights = product(per_out, r.out, kMostWeights, "its weights");
    const std::int32_t out = add_tensor(r.out, size[0], size[1], true);
    Operation& made = add_operation(OperationKind::Conv, r, in, out);
    made.weight = take_weights(weights);
    made.bias = r.bias ? take_weights(r.out) : -1;
    made.conv_h = size[0];
    made.conv_w = size[1];
    gets_gradient_[static_cast<std::size_t>(out)] = true;
    flops(made, static_cast<double>(size[0] * size[1]) * static_cast<double>(weights));
  }

  void add_pool(const LayerRecord& r) {
    want_image();
    std::int64_t size[2];
    window(r, size);
    for (int axis = 0; axis < 2; ++axis) {
      if (2 * std::max(r.padding[2 * axis], r.padding[2 * axis + 1]) > r.kernel[axis]) {
        fail("expected a padding of at most half the kernel, got " +
             std::to_string(std::max(r.padding[2 * axis], r.padding[2 * axis + 1])) + " beside a kernel of " +
             std::to_string(r.kernel[axis]));
      }
    }
    const std::int32_t in = last();
    const bool two = r.kind == LayerKind::MaxPool && r.kernel[0] == 2 && r.kernel[1] == 2 && r.stride[0] == 2 &&
                     r.stride[1] == 2 && std::all_of(r.padding, r.padding + 4, [](std::int32_t n) { return n == 0; });
    const std::int64_t channels = tensor(in).c;
    if (two && ends_with_conv(in)) {
      Tensor& made = tensor(in);  // what the convolution alone would give is never stored
      Operation& conv = plan_->operations.back();
      conv.pooled = true;
      conv.conv_h = 2 * size[0];
      conv.conv_w = 2 * size[1];
      made.h = size[0];
      made.w = size[1];
      return;
    }
    const std::int32_t out = add_tensor(channels, size[0], size[1], true);
    add_operation(r.kind == LayerKind::MaxPool ? OperationKind::MaxPool : OperationKind::AvgPool, r, in, out);
  }

  // Whether the operation before is a convolution that may take in what comes next.
  bool ends_with_conv(std::int32_t in) const {
    return !plan_->operations.empty() && plan_->operations.back().kind == OperationKind::Conv &&
           plan_->operations.back().out == in && in != sealed_ && !plan_->operations.back().pooled;
  }

  void add_relu(const LayerRecord& r) {
    const std::int32_t in = last();
    if (!plan_->operations.empty() && plan_->operations.back().out == in && in != sealed_ &&
        (plan_->operations.back().kind == OperationKind::Conv ||
         plan_->operations.back().kind == OperationKind::Dense)) {
      plan_->operations.back().relu = true;  // of the largest, or the largest of those: the same
      return;
    }
    add_pointwise(OperationKind::Pointwise, r);
  }

  void add_dense(const LayerRecord& r) {
    want_vector();
    const std::int32_t in = last();
    if (r.out < 1) {
      fail("expected at least 1 output, got " + std::to_string(r.out));
    }
    const std::int64_t weights = product(tensor(in).c, r.out, kMostWeights, "its weights");
    const std::int32_t out = add_tensor(r.out, 1, 1, false);
    Operation& made = add_operation(OperationKind::Dense, r, in, out);
    made.weight = take_weights(weights);
    made.bias = r.bias ? take_weights(r.out) : -1;
    gets_gradient_[static_cast<std::size_t>(out)] = true;
    flops(made, static_cast<double>(weights));
  }

  // Forward, for the weights and, where it is wanted, for the input.
  void flops(const Operation& made, double products) {
    plan_->network.flops_per_row += 2 * products * (made.passes_back ? 3 : 2);
  }

  void end() {
    layer_ = given_.layers.size() - 1;
    want_vector();
    layer_ = given_.layers.size();
    if (!blocks_.empty()) {
      fail("expected end_residual for each residual, got " + std::to_string(blocks_.size()) + " too few");
    }
    if (plan_->network.dim == 0) {
      fail("expected a layer with weights, got none");
    }
    const Tensor& scores = tensor(last());
    if (scores.c > kMostNumbers / kMostBlockRows) {
      fail("expected at most " + std::to_string(kMostNumbers / kMostBlockRows) + " outputs, got " +
           std::to_string(scores.c));
    }
    plan_->network.n_outputs = static_cast<std::int32_t>(scores.c);
    add_operation(OperationKind::Scores, {}, last(), last());
    order_gradients();
    std::int64_t numbers = kept_numbers_;
    for (const Tensor& t : plan_->tensors) {
      numbers += t.size();
    }
    plan_->network.block_rows = std::clamp<std::int64_t>(kBlockNumbers / numbers / 4 * 4, 4, kMostBlockRows);
    Network& made = plan_->network;
    made.tensors = plan_->tensors.data();
    made.operations = plan_->operations.data();
    made.n_tensors = static_cast<std::int64_t>(plan_->tensors.size());
    made.n_operations = static_cast<std::int64_t>(plan_->operations.size());
  }

  // Backward, the first operation on a tensor sets its gradient, and the others add theirs.
  void order_gradients() {
    std::vector<bool> seen(plan_->tensors.size());
    const auto visit = [&](std::int32_t t) {
      const bool was = seen[static_cast<std::size_t>(t)];
      seen[static_cast<std::size_t>(t)] = true;
      return was;
    };
    for (std::size_t i = plan_->operations.size() - 1; i-- > 0;) {
      Operation& op = plan_->operations[i];
      op.adds_back = visit(op.in);
      op.adds_back_other = op.kind == OperationKind::Add && visit(op.other);
    }
  }

  struct Block {
    std::int32_t input;
    std::int32_t body;  // -1 before the shortcut begins
  };

  const NetworkDescription& given_;
  std::unique_ptr<NetworkPlan> plan_;
  std::size_t layer_ = 0;
  std::int32_t current_ = 0;
  std::int64_t kept_numbers_ = 0;    // of a row, beside tensors
  std::int32_t sealed_ = -1;         // a tensor that a block takes: no later layer is computed with the one before it
  std::vector<Block> blocks_;        // residual blocks that have not ended
  bool open_ = false;                // whether the input, (n, 1, 1), may still be an image or a vector
  std::vector<bool> gets_gradient_;  // by tensor: whether weights come before it
};

}  // namespace

std::unique_ptr<const NetworkPlan> plan_network(const NetworkDescription& description) {
  return Planner(description).make();
}

}  // namespace fedbuff
