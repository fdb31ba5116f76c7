// Networks on every CPU level against plain loops in double, and descriptions that do not fit together.
#include <algorithm>
#include <cstring>
#include <string>

#include "check.hpp"
#include "clients/workspace.hpp"
#include "kernels/dispatch.hpp"
#include "numbers/philox.hpp"
#include "clients/network_plan.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

LayerRecord conv(std::int32_t out, std::int32_t kernel, std::int32_t padding = 0, std::int32_t stride = 1,
                 std::int32_t groups = 1) {
  LayerRecord r;
  r.kind = LayerKind::Conv2d;
  r.out = out;
  r.groups = groups;
  std::fill(r.kernel, r.kernel + 2, kernel);
  std::fill(r.stride, r.stride + 2, stride);
  std::fill(r.padding, r.padding + 4, padding);
  return r;
}

LayerRecord pool(std::int32_t kernel, std::int32_t stride, std::int32_t padding = 0) {
  LayerRecord r = conv(0, kernel, padding, stride);
  r.kind = LayerKind::MaxPool;
  return r;
}

LayerRecord avg_pool(std::int32_t kernel, std::int32_t stride, std::int32_t padding = 0) {
  LayerRecord r = pool(kernel, stride, padding);
  r.kind = LayerKind::AvgPool;
  return r;
}

LayerRecord dense(std::int32_t out, bool bias = true) {
  LayerRecord r;
  r.kind = LayerKind::Dense;
  r.out = out;
  r.bias = bias;
  return r;
}

LayerRecord layer(LayerKind kind, double number = 0) {
  LayerRecord r;
  r.kind = kind;
  r.number = number;
  return r;
}

const LayerRecord kRelu = layer(LayerKind::Relu), kFlatten = layer(LayerKind::Flatten);

struct Image {
  std::int64_t c, h, w;
  std::vector<double> value;  // (c, h, w)
  std::int64_t index(std::int64_t k, std::int64_t y, std::int64_t x) const { return (k * h + y) * w + x; }
};

// Calls body(output, input, weight or -1), each by its number, for every product of a convolution, or every number of a
// pool's windows.
template <class Body>
void for_each_product(const LayerRecord& r, const Image& in, const Image& out, Body body) {
  const bool pools = r.kind == LayerKind::MaxPool || r.kind == LayerKind::AvgPool;
  const std::int64_t groups = pools ? in.c : r.groups, per = in.c / groups;
  for (std::int64_t o = 0; o < out.c; ++o) {
    for (std::int64_t y = 0; y < out.h; ++y) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        for (std::int64_t k = 0; k < per; ++k) {
          for (std::int64_t v = 0; v < r.kernel[0]; ++v) {
            for (std::int64_t u = 0; u < r.kernel[1]; ++u) {
              const std::int64_t row = y * r.stride[0] + v - r.padding[0], col = x * r.stride[1] + u - r.padding[2];
              if (row >= 0 && row < in.h && col >= 0 && col < in.w) {
                const std::int64_t channel = o / (out.c / groups) * per + k;
                body(out.index(o, y, x), in.index(channel, row, col),
                     ((o * per + k) * r.kernel[0] + v) * r.kernel[1] + u);
              }
            }
          }
        }
      }
    }
  }
}

Image after(const LayerRecord& r, const Image& in) {
  Image out = in;
  if (r.kind == LayerKind::GlobalAvg) {
    out.h = out.w = 1;
  } else if (r.kind == LayerKind::Conv2d || r.kind == LayerKind::MaxPool || r.kind == LayerKind::AvgPool) {
    out.c = r.kind == LayerKind::Conv2d ? r.out : in.c;
    out.h = (in.h + r.padding[0] + r.padding[1] - r.kernel[0]) / r.stride[0] + 1;
    out.w = (in.w + r.padding[2] + r.padding[3] - r.kernel[1]) / r.stride[1] + 1;
  } else if (r.kind == LayerKind::Flatten) {
    out = {in.c * in.h * in.w, 1, 1, {}};
  } else if (r.kind == LayerKind::Dense) {
    out.c = r.out;
  }
  out.value.assign(at(out.c * out.h * out.w), 0.0);
  return out;
}

std::int64_t weights_of(const LayerRecord& r, const Image& in) {
  return r.kind == LayerKind::Conv2d  ? r.out * (in.c / r.groups) * r.kernel[0] * r.kernel[1]
         : r.kind == LayerKind::Dense ? r.out * in.c
                                      : 0;
}

std::int64_t biases_of(const LayerRecord& r) {
  return (r.kind == LayerKind::Conv2d || r.kind == LayerKind::Dense) && r.bias ? r.out : 0;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double value_at(const LayerRecord& r, double x) {
  switch (r.kind) {
    case LayerKind::Relu: return x > 0 ? x : 0;
    case LayerKind::LeakyRelu: return x > 0 ? x : r.number * x;
    case LayerKind::Gelu: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case LayerKind::Silu: return x * sigmoid(x);
    case LayerKind::Tanh: return std::tanh(x);
    case LayerKind::Sigmoid: return sigmoid(x);
    default: return x;
  }
}

double slope_at(const LayerRecord& r, double x) {
  const double s = sigmoid(x), t = std::tanh(x);
  switch (r.kind) {
    case LayerKind::Relu: return x > 0 ? 1 : 0;
    case LayerKind::LeakyRelu: return x > 0 ? 1 : r.number;
    case LayerKind::Gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    case LayerKind::Silu: return s * (1 + x * (1 - s));
    case LayerKind::Tanh: return 1 - t * t;
    case LayerKind::Sigmoid: return s * (1 - s);
    default: return 1;
  }
}

// The output from the input where g is null; else the gradient of the input, and that of the weights is added.
void walk(const LayerRecord& r, Image& in, Image& out, const double* w, std::vector<double>* input_gradient,
          const std::vector<double>* g, double* weight_gradient) {
  const bool back = g != nullptr;
  const std::int64_t n_weights = weights_of(r, in), pixels = out.h * out.w;
  switch (r.kind) {
    default:
      for (std::size_t i = 0; i < in.value.size(); ++i) {
        back ? void((*input_gradient)[i] = (*g)[i] * slope_at(r, in.value[i]))
             : void(out.value[i] = value_at(r, in.value[i]));
      }
      return;
    case LayerKind::AvgPool:
    case LayerKind::GlobalAvg: {
      LayerRecord whole = r;
      if (r.kind == LayerKind::GlobalAvg) {
        whole = avg_pool(1, 1);
        whole.kernel[0] = static_cast<std::int32_t>(in.h);
        whole.kernel[1] = static_cast<std::int32_t>(in.w);
      }
      const double share = 1.0 / (whole.kernel[0] * whole.kernel[1]);
      for_each_product(whole, in, out, [&](std::int64_t o, std::int64_t i, std::int64_t) {
        back ? void((*input_gradient)[at(i)] += (*g)[at(o)] * share)
             : void(out.value[at(o)] += in.value[at(i)] * share);
      });
      return;
    }
    case LayerKind::MaxPool: {
      std::vector<std::int64_t> best(out.value.size(), -1);
      for_each_product(r, in, out, [&](std::int64_t o, std::int64_t i, std::int64_t) {
        if (best[at(o)] < 0 || in.value[at(i)] > in.value[at(best[at(o)])]) {
          best[at(o)] = i;
        }
      });
      for (std::size_t o = 0; o < best.size(); ++o) {
        back ? void((*input_gradient)[at(best[o])] += (*g)[o]) : void(out.value[o] = in.value[at(best[o])]);
      }
      return;
    }
    case LayerKind::Conv2d:
    case LayerKind::Dense: {
      LayerRecord as_conv = r;
      as_conv.kind = LayerKind::Conv2d;
      for_each_product(as_conv, in, out, [&](std::int64_t o, std::int64_t i, std::int64_t k) {
        if (back) {
          (*input_gradient)[at(i)] += (*g)[at(o)] * w[k];
          weight_gradient[k] += (*g)[at(o)] * in.value[at(i)];
        } else {
          out.value[at(o)] += in.value[at(i)] * w[k];
        }
      });
      for (std::int64_t o = 0; r.bias && o < out.c * pixels; ++o) {
        back ? void(weight_gradient[n_weights + o / pixels] += (*g)[at(o)])
             : void(out.value[at(o)] += w[n_weights + o / pixels]);
      }
      return;
    }
  }
}

// Loss of the mean over all rows, and its gradient.
template <class T>
double plain(const NetworkDescription& d, const std::vector<T>& x, const std::vector<std::int32_t>& label,
             const std::vector<T>& target, Head head, const std::vector<double>& w, std::vector<double>& gradient) {
  gradient.assign(w.size(), 0.0);
  const std::int64_t* shape = d.input_shape;
  const std::int64_t n_features = shape[0] * shape[1] * shape[2];
  const double share = 1.0 / static_cast<double>(label.size());
  double loss = 0;
  for (std::size_t row = 0; row < label.size(); ++row) {
    std::vector<Image> value(1, {shape[0], shape[1], shape[2], {}});
    value[0].value.assign(x.begin() + static_cast<std::int64_t>(row) * n_features,
                          x.begin() + static_cast<std::int64_t>(row + 1) * n_features);
    std::vector<std::int64_t> offset(1, 0);
    for (const LayerRecord& r : d.layers) {
      Image in = value.back(), out = after(r, in);
      walk(r, in, out, w.data() + offset.back(), nullptr, nullptr, nullptr);
      value.push_back(out);
      offset.push_back(offset.back() + weights_of(r, in) + biases_of(r));
    }
    const std::vector<double>& z = value.back().value;
    std::vector<double> g = z;
    const std::size_t n_outs = g.size();
    if (head == Head::Softmax) {
      const double top = *std::max_element(z.begin(), z.end());
      double total = 0;
      for (const double one : z) {
        total += std::exp(one - top);
      }
      for (std::size_t o = 0; o < n_outs; ++o) {
        const double wanted =
            d.label_smoothing / static_cast<double>(n_outs) + (o == at(label[row]) ? 1 - d.label_smoothing : 0);
        loss += share * wanted * (std::log(total) + top - z[o]);
        g[o] = share * (std::exp(z[o] - top) / total - wanted);
      }
    }
    for (std::size_t o = 0; head != Head::Softmax && o < n_outs; ++o) {
      const double y = static_cast<double>(target[row * n_outs + o]);
      loss += share * (head == Head::Squared ? (z[o] - y) * (z[o] - y) / 2
                                             : std::log1p(std::exp(-std::abs(z[o]))) + std::max(z[o], 0.0) - y * z[o]);
      g[o] = share * ((head == Head::Squared ? z[o] : sigmoid(z[o])) - y);
    }
    for (std::size_t l = d.layers.size(); l-- > 0;) {
      std::vector<double> back(value[l].value.size());
      walk(d.layers[l], value[l], value[l + 1], w.data() + offset[l], &back, &g, gradient.data() + offset[l]);
      g = back;
    }
  }
  return loss;
}

// One client whose rows and arrays are as long as they must be, so that a sanitizer sees a step beyond them.
template <class T>
struct Owned {
  std::unique_ptr<const NetworkPlan> plan;
  std::vector<T> x;
  std::vector<std::int32_t> token, label;
  std::vector<T> target;
  std::vector<std::int64_t> offsets;
  std::vector<double> weight{1.0};
  Problem<T> p{};

  Owned(const NetworkDescription& d, std::int64_t n_rows, Numbers& numbers, Head head = Head::Softmax)
      : plan(plan_network(d)), x(numbers.vector<T>(n_rows * plan->network.n_features)), offsets{0, n_rows} {
    for (std::int64_t r = 0; r < n_rows; ++r) {
      label.push_back(static_cast<std::int32_t>(numbers.below(plan->network.n_outputs)));
    }
    for (std::int64_t i = 0; i < n_rows * plan->network.n_outputs; ++i) {
      target.push_back(static_cast<T>(numbers.below(2)));
    }
    for (std::int64_t i = 0; plan->network.vocabulary > 0 && i < n_rows * plan->network.n_features; ++i) {
      token.push_back(static_cast<std::int32_t>(numbers.below(plan->network.vocabulary)));
    }
    p.token = token.empty() ? nullptr : token.data();
    p.target = target.data();
    p.family = Family::Layers;
    p.network = &plan->network;
    p.n_clients = 1;
    p.dim = plan->network.dim;
    p.max_rows = n_rows;
    p.offsets = offsets.data();
    p.client_weight = weight.data();
    p.x = x.data();
    p.label = label.data();
    p.n_features = plan->network.n_features;
    p.n_layers = 1;
    p.size[0] = static_cast<std::int32_t>(p.n_features);
    p.size[1] = plan->network.n_outputs;
    p.head = head;
  }
};

template <class T>
void gradient_agrees(const NetworkDescription& d, std::int64_t n_rows, Head head = Head::Softmax) {
  Numbers numbers(11);
  const Owned<T> owned(d, n_rows, numbers, head);
  auto w = numbers.vector<T>(owned.p.dim);
  for (T& number : w) {
    number *= T(0.5);
  }
  std::vector<double> want;
  const double loss = plain(d, owned.x, owned.label, owned.target, head, {w.begin(), w.end()}, want);
  Workspace<T> workspace(owned.p);
  std::vector<T> got(w.size());
  double size = 0;
  for (const double g : want) {
    size = std::max(size, std::abs(g));
  }
  CHECK(size > 1e-3);
  CHECK_NEAR(static_cast<T>(workspace.client_gradient(0, w.data(), got.data())), loss, 2000, 1.0, 0);
  for (std::int64_t j = 0; j < owned.p.dim; ++j) {
    CHECK_NEAR(got[at(j)], want[at(j)], 4000, size, j);
  }
  // A step of all rows moves by lr times that gradient; so does one whose batch is those rows, one by one.
  LocalConfig config{};
  config.steps = 1;
  config.lr = 0.5;
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    rows.push_back(n_rows - 1 - r);
  }
  for (const std::int64_t* batch :
       {static_cast<const std::int64_t*>(nullptr), static_cast<const std::int64_t*>(rows.data())}) {
    std::vector<T> delta(w.size());
    workspace.local_sgd(config, {1, 0, 0, batch == nullptr ? 0 : n_rows, batch}, w.data(), delta.data());
    for (std::int64_t j = 0; j < owned.p.dim; ++j) {
      CHECK_NEAR(delta[at(j)], 0.5 * want[at(j)], 4000, size + 1, j);
    }
  }
}

std::vector<NetworkDescription> descriptions() {
  LayerRecord skewed = conv(7, 3);
  skewed.kernel[1] = 4;
  skewed.stride[0] = 2;
  skewed.padding[0] = 2;
  skewed.padding[3] = 1;
  skewed.bias = false;
  LayerRecord far = conv(5, 2, 1, 3);  // numbers that no window has, and windows of padding alone
  far.padding[0] = far.padding[3] = 4;
  LayerRecord uneven = conv(18, 4, 0, 3, 2);
  uneven.kernel[1] = 2;
  uneven.padding[1] = 5;
  return {
      {{conv(16, 3, 1), kRelu, pool(2, 2), conv(32, 3, 1), kRelu, pool(2, 2), kFlatten, dense(10)}, {1, 12, 12}, 0},
      {{conv(6, 5, 2), kRelu, pool(2, 2), conv(16, 5), kRelu, pool(2, 2), kFlatten, dense(9), kRelu, dense(4)},
       {1, 16, 14},
       0},
      {{kRelu, skewed, pool(3, 2, 1), kRelu, conv(20, 2), pool(2, 2), conv(33, 1), kRelu, kFlatten, dense(7, false),
        kRelu},
       {3, 9, 13},
       0},
      {{conv(12, 3, 1, 1, 3), kRelu, conv(12, 3, 1, 1, 12), kRelu, conv(36, 3, 0, 2, 2), pool(2, 1), kFlatten,
        dense(4)},
       {6, 7, 8},
       0},
      {{conv(37, 7, 3), pool(2, 2), kRelu, kFlatten, dense(5)}, {19, 5, 6}, 0},
      {{conv(34, 1), far, kRelu, conv(4, 3, 1), conv(4, 2, 2, 1, 4), uneven, kFlatten, dense(3)}, {3, 10, 14}, 0},
      {{kFlatten, dense(11), kRelu, dense(3)}, {2, 3, 4}, 0},
      {{kRelu, conv(3, 1), kFlatten}, {5, 1, 1}, 0},
      {{conv(9, 3, 1), layer(LayerKind::Gelu), avg_pool(3, 2, 1), conv(5, 2), layer(LayerKind::LeakyRelu, 0.1),
        kFlatten, dense(12), layer(LayerKind::Tanh), dense(6), layer(LayerKind::Silu)},
       {2, 9, 8},
       0.2},
      {{layer(LayerKind::Sigmoid), conv(18, 3, 0, 2), layer(LayerKind::Silu), conv(21, 1), layer(LayerKind::GlobalAvg)},
       {1, 7, 9},
       0},
  };
}

void refuses(const NetworkDescription& d, const std::string& text) {
  std::string got = "nothing";
  try {
    plan_network(d);
  } catch (const std::invalid_argument& fault) {
    got = fault.what();
  }
  if (got.find(text) == std::string::npos) {
    check::fail(__FILE__, __LINE__, "expected '", text, "', got '", got, "'");
  }
}

}  // namespace

// A step with dropout is one whose network has the mask's numbers for inputs: masks are drawn by their definition.
template <class T>
void drops_as_defined() {
  Numbers numbers(12);
  constexpr std::int64_t kRows = 5, kBatch = 6, kFeatures = 2 * 3 * 5;
  const double rate = 0.3;
  const NetworkDescription d{
      {conv(2, 1), layer(LayerKind::Dropout, 0.5), layer(LayerKind::Dropout, rate), kFlatten, dense(3)}, {2, 3, 5}, 0};
  const Owned<T> owned(d, kRows, numbers);
  const auto w = numbers.vector<T>(owned.p.dim);
  Workspace<T> workspace(owned.p);
  LocalConfig config{};
  config.steps = 1;
  config.lr = 1;
  const std::int64_t rows[kBatch] = {4, 0, 0, 3, 1, 4};
  std::vector<T> delta(w.size());
  workspace.local_sgd(config, {77, 0, 8, kBatch, rows}, w.data(), delta.data());
  // By hand: the convolution is a product of channels; then masks; then scores.
  std::vector<double> want(3);
  for (std::uint32_t p = 0; p < kBatch; ++p) {
    std::vector<double> hidden(kFeatures), z(3);
    for (std::int64_t e = 0; e < kFeatures; ++e) {
      const std::int64_t channel = e / 15, pixel = e % 15;
      hidden[at(e)] = static_cast<double>(w[at(4 + channel)]);
      for (std::int64_t c = 0; c < 2; ++c) {
        hidden[at(e)] += static_cast<double>(w[at(channel * 2 + c)]) *
                         static_cast<double>(owned.x[at(rows[p] * kFeatures + c * 15 + pixel)]);
      }
      for (std::uint32_t k = 0; k < 2; ++k) {
        const double one = k == 0 ? 0.5 : rate;
        const PhiloxBlock a = philox4x32(77, 0, 8, 0, stream_word(Stream::Dropout, k));
        const PhiloxBlock b = philox4x32(std::uint64_t{a.word[1]} << 32 | a.word[0], p,
                                         static_cast<std::uint32_t>(e / 4), 0, stream_word(Stream::Dropout, 0));
        const bool stays = b.word[e % 4] >= static_cast<std::uint32_t>(one * 4294967296.0);
        hidden[at(e)] *= stays ? 1 / (1 - one) : 0;
      }
    }
    double total = 0;
    for (std::int64_t o = 0; o < 3; ++o) {
      z[at(o)] = static_cast<double>(w[at(6 + 3 * kFeatures + o)]);
      for (std::int64_t e = 0; e < kFeatures; ++e) {
        z[at(o)] += static_cast<double>(w[at(6 + o * kFeatures + e)]) * hidden[at(e)];
      }
      total += std::exp(z[at(o)]);
    }
    for (std::int64_t o = 0; o < 3; ++o) {
      want[at(o)] += (std::exp(z[at(o)]) / total - (o == owned.label[at(rows[p])] ? 1 : 0)) / kBatch;
    }
  }
  for (std::int64_t o = 0; o < 3; ++o) {
    CHECK_NEAR(delta[at(6 + 3 * kFeatures + o)], want[at(o)], 4000, 1.0, o);
  }
  // What is not training drops nothing, whatever was done before.
  const double before = workspace.client_gradient(0, w.data(), nullptr);
  workspace.local_sgd(config, {78, 0, 8, 0, nullptr}, w.data(), delta.data());
  CHECK_EQ(workspace.client_gradient(0, w.data(), nullptr), before);
}

TEST(network_dropout) {
  check::on_every_level([] { drops_as_defined<float>(), drops_as_defined<double>(); });
}

// Moved and turned images by their definition, seen through a dense layer.
template <class T>
void augments_as_defined() {
  Numbers numbers(12);
  constexpr std::int64_t kRows = 5, kBatch = 6, kH = 3, kW = 5;
  LayerRecord crop = layer(LayerKind::RandomCrop);
  crop.padding[0] = crop.padding[1] = 2;
  crop.padding[2] = crop.padding[3] = 1;
  const NetworkDescription d{{crop, layer(LayerKind::RandomFlip), kFlatten, dense(3)}, {2, kH, kW}, 0};
  const Owned<T> owned(d, kRows, numbers);
  const std::vector<T> w(at(owned.p.dim));  // of zeros: the gradient of a weight is its input times what is known
  Workspace<T> workspace(owned.p);
  LocalConfig config{};
  config.steps = 1;
  config.lr = 1;
  const std::int64_t rows[kBatch] = {4, 0, 0, 3, 1, 4};
  std::vector<T> delta(w.size());
  workspace.local_sgd(config, {77, 0, 8, kBatch, rows}, w.data(), delta.data());
  std::vector<double> want(w.size());
  for (std::uint32_t p = 0; p < kBatch; ++p) {
    const auto words = [&](std::uint32_t number) {
      const PhiloxBlock a = philox4x32(77, 0, 8, 0, stream_word(Stream::Augmentation, number));
      return philox4x32(std::uint64_t{a.word[1]} << 32 | a.word[0], p, 0, 0, stream_word(Stream::Augmentation, 0));
    };
    const std::int64_t down = std::int64_t{index_below(words(0).word[0], 5)} - 2;
    const std::int64_t right = std::int64_t{index_below(words(0).word[1], 3)} - 1;
    const bool turned = words(1).word[0] >= 1u << 31;
    for (std::int64_t c = 0; c < 2; ++c) {
      for (std::int64_t y = 0; y < kH; ++y) {
        for (std::int64_t x = 0; x < kW; ++x) {
          const std::int64_t v = y + down, u = (turned ? kW - 1 - x : x) + right;
          const bool there = v >= 0 && v < kH && u >= 0 && u < kW;
          const double number = there ? static_cast<double>(owned.x[at(((rows[p] * 2 + c) * kH + v) * kW + u)]) : 0.0;
          for (std::int64_t o = 0; o < 3; ++o) {
            want[at(o * 2 * kH * kW + (c * kH + y) * kW + x)] +=
                number * (1.0 / 3 - (o == owned.label[at(rows[p])] ? 1 : 0)) / kBatch;
          }
        }
      }
    }
  }
  for (std::int64_t j = 0; j < 3 * 2 * kH * kW; ++j) {
    CHECK_NEAR(delta[at(j)], want[at(j)], 100, 1.0, j);
  }
}

TEST(network_augmentation) {
  check::on_every_level([] { augments_as_defined<float>(), augments_as_defined<double>(); });
}

// The gradient against differences of the loss in double, and that of float against it.
void slopes_are_differences(const NetworkDescription& d) {
  constexpr std::int64_t kRows = 3;
  Numbers numbers(13), same(13);
  const Owned<double> owned(d, kRows, numbers);
  const Owned<float> rounded(d, kRows, same);
  auto w = numbers.vector<double>(owned.p.dim);
  Workspace<double> workspace(owned.p);
  Workspace<float> narrow(rounded.p);
  std::vector<double> got(w.size());
  std::vector<float> got_narrow(w.size());
  const std::vector<float> w_narrow(w.begin(), w.end());
  workspace.client_gradient(0, w.data(), got.data());
  narrow.client_gradient(0, w_narrow.data(), got_narrow.data());
  double size = 0;
  for (const double g : got) {
    size = std::max(size, std::abs(g));
  }
  CHECK(size > 1e-3);
  for (std::int64_t j = 0; j < owned.p.dim; ++j) {
    CHECK_NEAR(got_narrow[at(j)], got[at(j)], 20000, size, j);
    if (j % 7 == 0) {
      constexpr double kStep = 1e-6;
      const double here = w[at(j)];
      w[at(j)] = here + kStep;
      const double above = workspace.client_gradient(0, w.data(), nullptr);
      w[at(j)] = here - kStep;
      const double below = workspace.client_gradient(0, w.data(), nullptr);
      w[at(j)] = here;
      CHECK(std::abs((above - below) / (2 * kStep) - got[at(j)]) < 1e-6 * (1 + size));
    }
  }
}

LayerRecord norm(LayerKind kind, std::int32_t groups, bool bias = true) {
  LayerRecord r = layer(kind, 1e-3);
  r.out = groups;
  r.bias = bias;
  return r;
}

const LayerRecord kBlock = layer(LayerKind::Residual), kShortcut = layer(LayerKind::Shortcut),
                  kEnd = layer(LayerKind::EndResidual);

TEST(network_norms_and_blocks) {
  check::on_every_level([] {
    const LayerRecord group = norm(LayerKind::GroupNorm, 3), whole = norm(LayerKind::LayerNorm, 0);
    const LayerRecord tanh = layer(LayerKind::Tanh);
    const NetworkDescription stacks[] = {
        {{conv(18, 3, 1), group, tanh, conv(5, 2), norm(LayerKind::GroupNorm, 5, false), kFlatten, dense(3)},
         {2, 4, 5},
         0},
        {{whole, conv(4, 3), whole, tanh, kFlatten, dense(19), whole, dense(3)}, {1, 5, 6}, 0},
        // A block on its input, one with a projection, and one inside another.
        {{conv(6, 3, 1), kBlock, conv(6, 3, 1),    group,     tanh,       kShortcut,
          kEnd,          kBlock, conv(9, 3, 1, 2), group,     kShortcut,  conv(9, 1, 0, 2),
          kEnd,          tanh,   kBlock,           kBlock,    conv(9, 1), tanh,
          kShortcut,     kEnd,   conv(9, 3, 1),    kShortcut, kEnd,       layer(LayerKind::GlobalAvg),
          dense(4)},
         {2, 5, 7},
         0},
        {{kBlock, tanh, dense(6), kShortcut, kEnd, tanh, dense(2)}, {6, 1, 1}, 0},
        // What a block takes is not computed with what is behind it.
        {{conv(4, 3, 1), kBlock, layer(LayerKind::Silu), conv(4, 3, 1), kShortcut, kEnd, kBlock, tanh, pool(2, 2),
          kShortcut, pool(2, 2), kEnd, kFlatten, dense(3)},
         {1, 4, 4},
         0},
    };
    for (const NetworkDescription& d : stacks) {
      slopes_are_differences(d);
    }
  });
}

LayerRecord embedding(std::int32_t vocabulary, std::int32_t features) {
  LayerRecord r = layer(LayerKind::Embedding);
  r.vocabulary = vocabulary;
  r.out = features;
  return r;
}

const LayerRecord kMean = layer(LayerKind::MeanOverTime);

LayerRecord recurrent(LayerKind kind, std::int32_t width, bool bias = true) {
  LayerRecord r = layer(kind);
  r.out = width;
  r.bias = bias;
  return r;
}

const LayerRecord kLast = layer(LayerKind::LastStep);

TEST(network_recurrent) {
  check::on_every_level([] {
    for (const LayerKind kind : {LayerKind::Lstm, LayerKind::Gru}) {
      const NetworkDescription stacks[] = {
          {{embedding(7, 5), recurrent(kind, 18), recurrent(kind, 3), kLast, dense(3)}, {6, 1, 1}, 0},
          {{recurrent(kind, 33, false), layer(LayerKind::Tanh), kMean, dense(2)}, {1, 4, 7}, 0},
          {{embedding(3, 5), kBlock, recurrent(kind, 5), kShortcut, recurrent(kind, 5), kEnd, kFlatten, dense(2)},
           {3, 1, 1},
           0},
          {{recurrent(kind, 1), kLast, dense(2)}, {1, 1, 1}, 0},
      };
      for (const NetworkDescription& d : stacks) {
        slopes_are_differences(d);
      }
    }
  });
}

// The gradient of many rows is the mean of those of single rows.
TEST(network_recurrent_blocks) {
  check::on_every_level([] {
    Numbers numbers(5);
    const NetworkDescription d{
        {recurrent(LayerKind::Lstm, 21), recurrent(LayerKind::Gru, 9), kLast, dense(2)}, {1, 5, 3}, 0};
    const Owned<float> owned(d, 40, numbers);
    const auto w = numbers.vector<float>(owned.p.dim);
    Workspace<float> workspace(owned.p);
    LocalConfig config{};
    config.steps = 1;
    config.lr = 1;
    std::vector<double> sum(w.size());
    std::vector<float> delta(w.size());
    double size = 0;
    for (std::int64_t row = 0; row < 40; ++row) {
      workspace.local_sgd(config, {1, 0, 0, 1, &row}, w.data(), delta.data());
      for (std::size_t j = 0; j < w.size(); ++j) {
        sum[j] += static_cast<double>(delta[j]) / 40;
      }
    }
    workspace.client_gradient(0, w.data(), delta.data());
    for (const double number : sum) {
      size = std::max(size, std::abs(number));
    }
    for (std::int64_t j = 0; j < owned.p.dim; ++j) {
      CHECK_NEAR(delta[at(j)], sum[at(j)], 4000, size + 1, j);
    }
  });
}

TEST(network_sequences) {
  check::on_every_level([] {
    const LayerRecord tanh = layer(LayerKind::Tanh), drop = layer(LayerKind::Dropout, 0.25);
    const NetworkDescription stacks[] = {
        {{embedding(7, 19), tanh, drop, kFlatten, dense(3)}, {5, 1, 1}, 0},
        {{embedding(2, 3), kBlock, tanh, kShortcut, kEnd, kMean, dense(3)}, {9, 1, 1}, 0},
        {{kMean, dense(4)}, {1, 6, 21}, 0},
    };
    for (const NetworkDescription& d : stacks) {
      slopes_are_differences(d);
    }
  });
}

// Rows of the table whose tokens do not occur are neither read nor written: here there is none.
TEST(network_embedding_updates_what_occurs) {
  check::on_every_level([] {
    constexpr std::int64_t kFeatures = 5, kWords = 6, kRows = 4;
    Numbers numbers(3);
    Owned<float> owned({{embedding(kWords, kFeatures), kMean, dense(2)}, {3, 1, 1}, 0}, kRows, numbers);
    for (std::int32_t& token : owned.token) {
      token = token % 2 == 0 ? 1 : 4;
    }
    auto w = numbers.vector<float>(owned.p.dim);
    for (const std::int64_t word : {0, 2, 3, 5}) {
      w[at(word * kFeatures)] = std::numeric_limits<float>::quiet_NaN();
    }
    Workspace<float> workspace(owned.p);
    LocalConfig config{};
    config.steps = 3;
    config.lr = 0.5;
    std::vector<float> delta(w.size());
    workspace.local_sgd(config, {1, 0, 0, kRows, nullptr}, w.data(), delta.data());
    for (std::int64_t j = 0; j < owned.p.dim; ++j) {
      const std::int64_t word = j / kFeatures;
      if (word < kWords && word != 1 && word != 4) {
        CHECK(j % kFeatures == 0 ? std::isnan(delta[at(j)]) : delta[at(j)] == 0);
      } else {
        CHECK(std::isfinite(delta[at(j)]));
      }
    }
  });
}

// y = normal(x): of each group mean 0 and variance 1, seen through a layer that adds nothing to it.
TEST(network_group_norm_of_known_numbers) {
  check::on_every_level([] {
    LayerRecord exact = norm(LayerKind::GroupNorm, 2, false);
    exact.number = 0;
    const NetworkDescription d{{exact, conv(4, 1), kFlatten}, {4, 1, 1}, 0};
    Numbers numbers(1);
    Owned<double> owned(d, 1, numbers, Head::Squared);
    const double x[4] = {1, 3, -2, 6}, want[4] = {-1, 1, -1, 1};
    std::copy(x, x + 4, owned.x.begin());
    std::vector<double> w(20);
    for (std::size_t i = 0; i < 4; ++i) {
      w[5 * i] = 1;
    }
    double loss = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      loss += (want[i] - owned.target[i]) * (want[i] - owned.target[i]) / 2;
    }
    Workspace<double> workspace(owned.p);
    CHECK_NEAR(workspace.client_gradient(0, w.data(), nullptr), loss, 10, 4.0, 0);
  });
}

TEST(network_heads) {
  check::on_every_level([] {
    for (const Head head : {Head::Squared, Head::Logistic}) {
      gradient_agrees<float>({{kFlatten, dense(11), kRelu, dense(3)}, {2, 3, 4}, 0}, 9, head);
      gradient_agrees<double>({{conv(3, 3), kRelu, kFlatten, dense(1)}, {2, 6, 4}, 0}, 9, head);
    }
  });
}

TEST(network_gradients) {
  check::on_every_level([] {
    for (const NetworkDescription& d : descriptions()) {
      gradient_agrees<float>(d, 9);
      gradient_agrees<double>(d, 5);
    }
    gradient_agrees<double>(descriptions()[1], 131);  // more rows than a block has
  });
}

TEST(network_refuses_what_does_not_fit) {
  const LayerRecord one = dense(1);
  constexpr std::int32_t most_width = std::numeric_limits<std::int32_t>::max();
  refuses({{}, {1, 8, 8}, 0}, "expected 1 to 512 layers, got 0");
  refuses({std::vector<LayerRecord>(513, kRelu), {1, 8, 8}, 0}, "expected 1 to 512 layers, got 513");
  refuses({{one}, {0, 8, 8}, 0}, "expected an input shape of positive numbers, got (0, 8, 8)");
  refuses({{one}, {1, 8, 8}, 0},
          "layer 0 (dense): expected a vector, got an image of (1, 8, 8); put flatten before it");
  refuses({{kFlatten, one, conv(1, 1)}, {1, 8, 8}, 0},
          "layer 2 (conv2d): expected an image of (channels, height, width), "
          "got a vector of 1");
  refuses({{conv(2, 9)}, {1, 8, 8}, 0}, "layer 0 (conv2d): the kernel's height of 9 is larger than that of its input");
  refuses({{conv(2, 0)}, {1, 8, 8}, 0}, "layer 0 (conv2d): expected a kernel and a stride of at least 1");
  refuses({{conv(2, 3, 1, 0)}, {1, 8, 8}, 0}, "layer 0 (conv2d): expected a kernel and a stride of at least 1");
  refuses({{conv(2, 3, -1)}, {1, 8, 8}, 0}, "and a padding of at least 0, got 3, 1, -1 along the height");
  refuses({{conv(4, 3, 1, 1, 2)}, {3, 8, 8}, 0}, "expected groups that divide 3 input and 4 output channels");
  refuses({{conv(0, 3)}, {3, 8, 8}, 0}, "layer 0 (conv2d): expected groups that divide");
  refuses({{conv(4, 3), pool(2, 2, 2)}, {3, 8, 8}, 0},
          "layer 1 (max_pool): expected a padding of at most half the kernel");
  refuses({{kFlatten, dense(0)}, {3, 8, 8}, 0}, "layer 1 (dense): expected at least 1 output, got 0");
  refuses({{conv(4, 3)}, {3, 8, 8}, 0}, "layer 0 (conv2d): expected a vector, got an image of (4, 6, 6)");
  refuses({{kFlatten}, {3, 8, 8}, 0}, "expected a layer with weights, got none");
  refuses({{layer(static_cast<LayerKind>(99))}, {3, 8, 8}, 0}, "unknown kind 99");
  refuses({{kFlatten, one}, {3, 8, 8}, 1.0}, "expected a label smoothing of at least 0 and below 1");
  refuses({{kFlatten, layer(LayerKind::Dropout, 1.0), one}, {3, 8, 8}, 0},
          "layer 1 (dropout): expected a rate of at least 0");
  refuses({{kFlatten, layer(LayerKind::LeakyRelu, HUGE_VAL), one}, {3, 8, 8}, 0}, "expected a finite slope");
  refuses({{kFlatten, layer(LayerKind::GlobalAvg)}, {3, 8, 8}, 0}, "layer 1 (global_avg): expected an image");
  refuses({{kFlatten, norm(LayerKind::GroupNorm, 5), one}, {3, 2, 2}, 0},
          "layer 1 (group_norm): expected groups that divide 12 channels, got 5");
  refuses({{kFlatten, kBlock, one}, {3, 2, 2}, 0}, "expected end_residual for each residual, got 1 too few");
  refuses({{kFlatten, kBlock, kShortcut}, {3, 2, 2}, 0}, "layer 2 (shortcut): expected the layers of a residual block");
  refuses({{kFlatten, kEnd}, {3, 2, 2}, 0},
          "layer 1 (end_residual): expected a residual block with a shortcut before it");
  refuses({{kFlatten, kBlock, dense(5), kShortcut, kEnd}, {3, 2, 2}, 0},
          "layer 4 (end_residual): the block gives a vector of 5 and its shortcut a vector of 12; they must be alike");
  refuses({{dense(4), embedding(3, 2)}, {4, 1, 1}, 0}, "layer 1 (embedding): expected tokens, which are the input");
  refuses({{kMean, embedding(3, 2)}, {1, 2, 2}, 0}, "layer 1 (embedding): expected tokens");
  refuses({{embedding(3, 2), dense(2)}, {1, 2, 2}, 0}, "layer 0 (embedding): expected tokens, which are the input");
  refuses({{embedding(0, 2), dense(2)}, {4, 1, 1}, 0}, "expected at least 1 feature and 1 token, got 2 and 0");
  refuses({{embedding(3, 2), dense(2)}, {4, 1, 1}, 0},
          "layer 1 (dense): expected a vector, got a sequence of (4, 2); put flatten before it");
  refuses({{embedding(3, 2), conv(2, 1)}, {4, 1, 1}, 0}, "layer 1 (conv2d): expected an image of");
  refuses({{embedding(3, 2), norm(LayerKind::LayerNorm, 0)}, {4, 1, 1}, 0},
          "layer 1 (layer_norm): expected an image or a vector, got a sequence of (4, 2)");
  refuses({{recurrent(LayerKind::Lstm, 0)}, {1, 4, 5}, 0}, "layer 0 (lstm): expected a width of at least 1, got 0");
  refuses({{kFlatten, recurrent(LayerKind::Gru, 3)}, {4, 2, 1}, 0}, "layer 1 (gru): expected a sequence of");
  refuses({{kLast, kLast}, {1, 4, 5}, 0}, "layer 1 (last_step): expected a sequence of (time, features), got a vector");
  refuses({{recurrent(LayerKind::Lstm, most_width)}, {1, 4, 5}, 0}, "are too many");
  LayerRecord crop = layer(LayerKind::RandomCrop);
  crop.padding[0] = 1;
  refuses({{crop, kFlatten, one}, {3, 8, 8}, 0},
          "layer 0 (random_crop): expected a padding of 0 to 65535, the same on");
  refuses({{kFlatten, layer(LayerKind::RandomFlip), one}, {3, 8, 8}, 0}, "layer 1 (random_flip): expected an image of");
  refuses({{kFlatten, kMean}, {4, 1, 1}, 0}, "layer 1 (mean_over_time): expected a sequence of (time, features)");
  refuses({{kMean}, {3, 4, 5}, 0}, "layer 0 (mean_over_time): expected a sequence of (time, features), got an image");
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  refuses({{kFlatten, one}, {most, most, most}, 0}, "are too many");
  refuses({{conv(most, 1)}, {1, 999, 999}, 0}, "layer 0 (conv2d): the numbers of its output are too many");
  refuses({{conv(1, 1, most)}, {1, 9, 9}, 0}, "layer 0 (conv2d): the numbers of its");
  refuses({{kFlatten, dense(most), dense(most)}, {1, 9, 9}, 0}, "too many");
}
