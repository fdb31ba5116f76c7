// The plan of a network, made once per problem from what a caller describes: a flat list of layers. Here are the
// checks, the memory and the exceptions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/export.hpp"
#include "kernels/network.hpp"

namespace fedbuff {

struct NetworkDescription {
  std::vector<LayerRecord> layers;
  std::int64_t input_shape[3];  // channels, height, width
  double label_smoothing = 0;
};

inline constexpr std::int64_t kMostNetworkLayers = 512;

// Immutable; `network` points into the other two.
struct NetworkPlan {
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;
  Network network;
};

// Throws std::invalid_argument with a text that names the layer, std::bad_alloc.
FB_CORE_API std::unique_ptr<const NetworkPlan> plan_network(const NetworkDescription& description);

}  // namespace fedbuff
