// Networks: lists of layers, sound or not, through fb_network_check, and local SGD of those that fit together. A
// refusal has a text that ends where its memory does; the same call gives the same bits.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "input.hpp"
#include "kernels/dispatch.hpp"

namespace {

using fuzz::Input;

std::int32_t any_int32(Input& in) {
  return static_cast<std::int32_t>(static_cast<std::uint64_t>(in.whole()) & 0xffffffffu);
}

// A layer with numbers that mostly fit small images.
fb_layer any_layer(Input& in) {
  static constexpr std::int32_t kKinds[] = {
      FB_LAYER_CONV2D,     FB_LAYER_RELU,       FB_LAYER_MAX_POOL,   FB_LAYER_DENSE,
      FB_LAYER_AVG_POOL,   FB_LAYER_GLOBAL_AVG, FB_LAYER_FLATTEN,    FB_LAYER_GELU,
      FB_LAYER_LEAKY_RELU, FB_LAYER_SILU,       FB_LAYER_TANH,       FB_LAYER_SIGMOID,
      FB_LAYER_DROPOUT,    FB_LAYER_GROUP_NORM, FB_LAYER_LAYER_NORM, FB_LAYER_CONV2D};
  fb_layer layer = FB_LAYER_INIT;
  layer.kind = kKinds[in.below(16)];
  layer.out = static_cast<std::int32_t>(1 + in.below(6));
  const std::uint8_t bits = in.byte();
  for (int axis = 0; axis < 2; ++axis) {
    layer.kernel[axis] = 1 + (bits >> (2 * axis) & 1) + (bits >> (2 * axis + 1) & 1);
    layer.stride[axis] = 1 + (bits >> (4 + axis) & 1);
  }
  std::fill(layer.padding, layer.padding + 4, bits >> 6 & 1);
  layer.groups = in.one_in(4) ? static_cast<std::int32_t>(1 + in.below(3)) : 1;
  layer.bias = bits >> 7;
  layer.number = in.one_in(8) ? in.real() : 0.25;
  switch (in.below(96)) {
    case 0: layer.kind = any_int32(in); break;
    case 1: layer.out = any_int32(in); break;
    case 2: layer.kernel[in.below(2)] = any_int32(in); break;
    case 3: layer.stride[in.below(2)] = any_int32(in); break;
    case 4: layer.padding[in.below(4)] = any_int32(in); break;
    case 5: layer.groups = any_int32(in); break;
    case 6: layer.bias = any_int32(in); break;
    case 7: layer.vocabulary = any_int32(in); break;
    case 8: layer.kind = FB_LAYER_RESIDUAL + static_cast<std::int32_t>(in.below(3)); break;
    default: break;
  }
  return layer;
}

fb_layer of_kind(std::int32_t kind) {
  fb_layer layer = FB_LAYER_INIT;
  layer.kind = kind;
  return layer;
}

// Layers; some in blocks whose two ways are alike, most with a way to scores at their end.
std::vector<fb_layer> any_layers(Input& in) {
  std::vector<fb_layer> layers;
  for (std::int64_t n = in.below(7); n > 0; --n) {
    const fb_layer layer = any_layer(in);
    if (in.one_in(8)) {
      layers.push_back(of_kind(FB_LAYER_RESIDUAL));
      layers.push_back(layer);
      layers.push_back(of_kind(FB_LAYER_SHORTCUT));
      layers.push_back(layer);
      layers.push_back(of_kind(FB_LAYER_END_RESIDUAL));
    } else {
      layers.push_back(layer);
    }
  }
  if (!in.one_in(8)) {
    layers.push_back(of_kind(FB_LAYER_FLATTEN));
    layers.push_back(of_kind(FB_LAYER_DENSE));
    layers.back().out = static_cast<std::int32_t>(1 + in.below(4));
  }
  if (in.one_in(128)) {
    layers.resize(in.one_in(2) ? 512 : 513, of_kind(FB_LAYER_TANH));
  }
  return layers;
}

fb_network any_network(Input& in, const std::vector<fb_layer>& layers) {
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = static_cast<std::int32_t>(layers.size());
  network.layers = layers.data();
  network.label_smoothing = in.one_in(16) ? in.real() : 0.0;
  network.input_shape[0] = static_cast<std::int32_t>(1 + in.below(4));
  const bool vector = in.one_in(4);
  for (int axis = 1; axis < 3; ++axis) {
    network.input_shape[axis] = vector ? 1 : static_cast<std::int32_t>(1 + in.below(7));
  }
  switch (in.below(96)) {
    case 0: network.size = in.byte() % (sizeof network + 1); break;
    case 1: network.abi = in.byte(); break;
    case 2: network.n_layers = in.one_in(2) ? 0 : -in.byte(); break;
    case 3: network.layers = nullptr; break;
    case 4: network.input_shape[in.below(3)] = any_int32(in); break;
    default: break;
  }
  return network;
}

template <class T>
void train(Input& in, const fb_network& network, fb_dtype dtype, std::int64_t dim) {
  const std::int64_t features = std::int64_t{network.input_shape[0]} * network.input_shape[1] * network.input_shape[2];
  const std::int64_t n_clients = 1 + in.below(3), rows = n_clients * (1 + in.below(5));
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_LAYERS;
  problem.head = static_cast<std::int32_t>(in.below(3));
  problem.network = &network;
  problem.n_clients = n_clients;
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i <= n_clients; ++i) {
    offsets.push_back(i * (rows / n_clients));
  }
  const std::vector<T> x = in.numbers<T>(rows * features), target(static_cast<std::size_t>(rows * 8), T(1));
  const std::vector<std::int32_t> label(static_cast<std::size_t>(rows), 0);
  problem.offsets = offsets.data();
  problem.x = x.data();
  problem.target = target.data();
  problem.label = label.data();
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.steps = 1 + in.below(2);
  config.batch_size = in.below(4);
  config.seed = in.byte();
  config.lr = in.positive();
  config.epochs = in.one_in(4) ? 1 : 0;
  fb_local* local = nullptr;
  const fb_status status = fb_local_create(&problem, &config, dtype, &local);
  MUST((status == FB_OK) == (local != nullptr));
  if (local == nullptr) {
    return;
  }
  MUST(fb_local_dim(local) == dim && fb_local_n_clients(local) == n_clients);
  const std::vector<T> w = in.numbers<T>(dim);
  for (int calls = 0; calls < 2; ++calls) {
    std::vector<T> delta(w.size()), again(w.size());
    const std::int64_t client = in.below(n_clients);
    const fb_status first = fb_local_delta(local, dtype, dim, client, in.byte(), w.data(), delta.data());
    MUST(first == FB_OK);
    const std::uint8_t task = in.byte();
    MUST(fb_local_delta(local, dtype, dim, client, task, w.data(), delta.data()) == FB_OK);
    MUST(fb_local_delta(local, dtype, dim, client, task, w.data(), again.data()) == FB_OK);
    MUST(std::memcmp(delta.data(), again.data(), sizeof(T) * w.size()) == 0);
  }
  fb_local_destroy(&local);
}

// Whether a row of the network is so small that many can be trained on in a moment; outputs at most 8, as train() gives
// targets for them.
bool is_small(const fb_network& network, std::int64_t dim) {
  const fb_layer& last = network.layers[network.n_layers - 1];
  const std::int32_t* shape = network.input_shape;
  return dim <= 20000 && last.kind == FB_LAYER_DENSE && last.out <= 8 && network.n_layers < 64 && shape[0] < 64 &&
         shape[1] < 64 && shape[2] < 64 &&
         std::all_of(
             network.layers, network.layers + network.n_layers,
             [](const fb_layer& layer) { return *std::max_element(layer.padding, layer.padding + 4) < 64; });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  int n_levels = 0;
  const char* const* levels = fedbuff::available_levels();
  while (levels[n_levels] != nullptr) {
    ++n_levels;
  }
  MUST(fedbuff::force_level(levels[in.byte() % n_levels]));
  const std::vector<fb_layer> layers = any_layers(in);
  const fb_network network = any_network(in, layers);
  const bool asks_text = !in.one_in(4);
  std::vector<char> text(static_cast<std::size_t>(1 + in.below(200)), 'x');
  std::int64_t dim = -7;
  const fb_status status = fb_network_check(&network, in.one_in(16) ? nullptr : &dim, asks_text ? text.data() : nullptr,
                                            static_cast<std::int64_t>(text.size()));
  if (asks_text) {
    const auto length = static_cast<std::size_t>(std::find(text.begin(), text.end(), '\0') - text.begin());
    MUST(length < text.size() && (text.size() == 1 || (length == 0) == (status == FB_OK)));
  }
  MUST(status == FB_OK ? dim == -7 || dim >= 1 : status == FB_ERR_ARGUMENT || status == FB_ERR_ABI);
  if (status == FB_OK && dim > 0 && is_small(network, dim)) {
    in.one_in(2) ? train<double>(in, network, FB_F64, dim) : train<float>(in, network, FB_F32, dim);
  }
  return 0;
}
