// A network as the kernels see it: shapes, offsets of weights, which layers are computed together.
// clients/network_plan.hpp makes one of what a caller describes; level/network.inl walks through it. Nothing here owns
// memory.
#pragma once

#include <cstdint>

#include "always_inline.hpp"

namespace fedbuff {

enum class LayerKind : std::int32_t {
  Conv2d = 0,
  Relu = 1,
  MaxPool = 2,
  Flatten = 3,
  Dense = 4,
};

// A layer as it is described. A field that a kind has no use for is left as it is here.
struct LayerRecord {
  LayerKind kind = LayerKind::Flatten;
  std::int32_t out = 0;                    // Conv2d: output channels; Dense: outputs
  std::int32_t kernel[2] = {1, 1};         // height, width: Conv2d, pools
  std::int32_t stride[2] = {1, 1};         // the same
  std::int32_t padding[4] = {0, 0, 0, 0};  // top, bottom, left, right
  std::int32_t groups = 1;                 // Conv2d
  bool bias = true;                        // Conv2d, Dense
  double number = 0;
  std::int32_t vocabulary = 0;
};

inline constexpr std::int64_t kMostBlockRows = 128;

// The activations of one row between two operations. An image lies by pixels, its channels side by side, within a halo
// of zeros that the convolutions and pools behind it want: (top + h + bottom, left + w + right, c). A vector is (1, 1,
// c).
struct Tensor {
  std::int64_t c = 1, h = 1, w = 1;
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  bool image = false;

  FB_ALWAYS_INLINE std::int64_t line() const {
    return (left + w + right) * c;
  }  // numbers from a pixel to the one below it
  FB_ALWAYS_INLINE std::int64_t size() const { return (top + h + bottom) * line(); }  // numbers of a row
  FB_ALWAYS_INLINE std::int64_t first() const { return top * line() + left * c; }     // where the first pixel stands
  FB_ALWAYS_INLINE std::int64_t features() const { return c * h * w; }
};

enum class OperationKind : std::int32_t { Conv, MaxPool, Flatten, Dense, Relu, Scores };

// One or more layers that are computed together. Weights and bias are offsets in the model; bias is -1 where there is
// none.
//
//   Conv     convolution; then, where `relu`, ReLU; then, where `pooled`, the largest of 2 x 2 (the two commute)
//   Dense    weights; then, where `relu`, ReLU
//   Scores   the last vector becomes the scores of the head
struct Operation {
  OperationKind kind;
  std::int32_t layer;    // its first one, by its place in the description
  std::int32_t in, out;  // tensors
  LayerRecord record;
  std::int64_t weight = 0, bias = -1;
  bool relu = false;
  bool pooled = false;
  bool passes_back = true;              // whether something before it wants the gradient of its input
  std::int64_t conv_h = 0, conv_w = 0;  // Conv: pixels of the convolution that are computed
};

struct Network {
  const Tensor* tensors;  // (n_tensors), the first of them the input
  const Operation* operations;
  std::int64_t n_tensors, n_operations;
  std::int64_t dim;
  std::int64_t n_features;
  std::int64_t block_rows;  // rows that pass through together: a multiple of 4, at most 128
  std::int32_t n_outputs;
  double flops_per_row;  // of loss and gradient
  double label_smoothing;
};

}  // namespace fedbuff
