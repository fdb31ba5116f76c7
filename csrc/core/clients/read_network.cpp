#include "clients/read_network.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace fedbuff {

NetworkFault read_network(const fb_network* given, std::unique_ptr<const NetworkPlan>& plan_out) {
  if (given == nullptr) {
    return {FB_ERR_ARGUMENT, "network: expected one, got a null pointer"};
  }
  if (given->abi != FB_ABI_VERSION || given->size != sizeof(fb_network)) {
    return {FB_ERR_ABI, "network: a struct of another ABI"};
  }
  if (given->n_layers < 1 || given->n_layers > kMostNetworkLayers || given->layers == nullptr) {
    return {FB_ERR_ARGUMENT, "layers: expected 1 to " + std::to_string(kMostNetworkLayers) + " layers, got " +
                                 (given->layers == nullptr ? "a null pointer" : std::to_string(given->n_layers))};
  }
  NetworkDescription description;
  std::copy(given->input_shape, given->input_shape + 3, description.input_shape);
  description.label_smoothing = given->label_smoothing;
  for (const fb_layer* layer = given->layers; layer != given->layers + given->n_layers; ++layer) {
    LayerRecord record;
    record.kind = static_cast<LayerKind>(layer->kind);
    record.out = layer->out;
    std::copy(layer->kernel, layer->kernel + 2, record.kernel);
    std::copy(layer->stride, layer->stride + 2, record.stride);
    std::copy(layer->padding, layer->padding + 4, record.padding);
    record.groups = layer->groups;
    record.bias = layer->bias != 0;
    record.number = layer->number;
    record.vocabulary = layer->vocabulary;
    description.layers.push_back(record);
  }
  try {
    plan_out = plan_network(description);
  } catch (const std::invalid_argument& fault) {
    return {FB_ERR_ARGUMENT, fault.what()};
  }
  return {FB_OK, {}};
}

}  // namespace fedbuff
