// Networks on every CPU level against plain loops in double, and descriptions that do not fit together.
#include <algorithm>
#include <cstring>
#include <string>

#include "check.hpp"
#include "clients/workspace.hpp"
#include "kernels/dispatch.hpp"
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

LayerRecord dense(std::int32_t out, bool bias = true) {
  LayerRecord r;
  r.kind = LayerKind::Dense;
  r.out = out;
  r.bias = bias;
  return r;
}

LayerRecord layer(LayerKind kind) {
  LayerRecord r;
  r.kind = kind;
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
  const bool pools = r.kind == LayerKind::MaxPool;
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
  if (r.kind == LayerKind::Conv2d || r.kind == LayerKind::MaxPool) {
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

// The output from the input where g is null; else the gradient of the input, and that of the weights is added.
void walk(const LayerRecord& r, Image& in, Image& out, const double* w, std::vector<double>* input_gradient,
          const std::vector<double>* g, double* weight_gradient) {
  const bool back = g != nullptr;
  const std::int64_t n_weights = weights_of(r, in), pixels = out.h * out.w;
  switch (r.kind) {
    case LayerKind::Relu:
    case LayerKind::Flatten:
      for (std::size_t i = 0; i < in.value.size(); ++i) {
        const bool passes = r.kind == LayerKind::Flatten || in.value[i] > 0;
        back ? void((*input_gradient)[i] = passes ? (*g)[i] : 0) : void(out.value[i] = passes ? in.value[i] : 0);
      }
      return;
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
             const std::vector<double>& w, std::vector<double>& gradient) {
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
    std::vector<double> g = value.back().value;
    const double top = *std::max_element(g.begin(), g.end());
    double total = 0;
    for (double& z : g) {
      z = std::exp(z - top);
      total += z;
    }
    loss += share * (std::log(total) + top - value.back().value[at(label[row])]);
    for (double& z : g) {
      z *= share / total;
    }
    g[at(label[row])] -= share;
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
  std::vector<std::int32_t> label;
  std::vector<std::int64_t> offsets;
  std::vector<double> weight{1.0};
  Problem<T> p{};

  Owned(const NetworkDescription& d, std::int64_t n_rows, Numbers& numbers)
      : plan(plan_network(d)), x(numbers.vector<T>(n_rows * plan->network.n_features)), offsets{0, n_rows} {
    for (std::int64_t r = 0; r < n_rows; ++r) {
      label.push_back(static_cast<std::int32_t>(numbers.below(plan->network.n_outputs)));
    }
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
    p.head = Head::Softmax;
  }
};

template <class T>
void gradient_agrees(const NetworkDescription& d, std::int64_t n_rows) {
  Numbers numbers(11);
  const Owned<T> owned(d, n_rows, numbers);
  auto w = numbers.vector<T>(owned.p.dim);
  for (T& number : w) {
    number *= T(0.5);
  }
  std::vector<double> want;
  const double loss = plain(d, owned.x, owned.label, {w.begin(), w.end()}, want);
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
      {{kFlatten, dense(11), kRelu, dense(3)}, {2, 3, 4}, 0},
      {{conv(3, 1), kFlatten}, {5, 1, 1}, 0},
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
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  refuses({{kFlatten, one}, {most, most, most}, 0}, "are too many");
  refuses({{conv(most, 1)}, {1, 999, 999}, 0}, "layer 0 (conv2d): the numbers of its output are too many");
  refuses({{conv(1, 1, most)}, {1, 9, 9}, 0}, "layer 0 (conv2d): the numbers of its");
  refuses({{kFlatten, dense(most), dense(most)}, {1, 9, 9}, 0}, "too many");
}
