// A network as the kernels see it: shapes, offsets of weights, which layers are computed together.
// clients/network_plan.hpp makes one of what a caller describes; level/network.inl walks through it. Nothing here owns
// memory.
#pragma once

#include <cstdint>

#include "compiler/always_inline.hpp"

namespace fedbuff {

enum class LayerKind : std::int32_t {
  Conv2d = 0,
  Relu = 1,
  MaxPool = 2,
  Flatten = 3,
  Dense = 4,
  AvgPool = 5,
  GlobalAvg = 6,
  LeakyRelu = 7,
  Gelu = 8,
  Silu = 9,
  Tanh = 10,
  Sigmoid = 11,
  Dropout = 12,
  GroupNorm = 13,
  LayerNorm = 14,
  Residual = 15,
  Shortcut = 16,
  EndResidual = 17,
  Embedding = 18,
  MeanOverTime = 19,
  LastStep = 20,
  Lstm = 21,
  Gru = 22,
  RandomCrop = 23,
  RandomFlip = 24,
};

// A residual block is written flat: Residual, its layers, Shortcut, the layers of its shortcut (none: the input
// itself), EndResidual, which adds the two.
//
// A layer as it is described. A field that a kind has no use for is left as it is here.
struct LayerRecord {
  LayerKind kind = LayerKind::Flatten;
  std::int32_t out = 0;                    // channels, outputs, features, width; GroupNorm: groups
  std::int32_t kernel[2] = {1, 1};         // height, width: Conv2d, pools
  std::int32_t stride[2] = {1, 1};         // the same
  std::int32_t padding[4] = {0, 0, 0, 0};  // top, bottom, left, right
  std::int32_t groups = 1;                 // Conv2d
  bool bias = true;                        // Conv2d, Dense; norms: weight and bias; Lstm, Gru: two biases
  double number = 0;                       // LeakyRelu: slope below zero; Dropout: rate; norms: epsilon
  std::int32_t vocabulary = 0;             // Embedding: how many tokens there are
};

inline constexpr std::int64_t kMostBlockRows = 128;

// The activations of one row between two operations. An image lies by pixels, its channels side by side, within a halo
// of zeros that the convolutions and pools behind it want: (top + h + bottom, left + w + right, c). A sequence lies
// step by step: (1, w, c). A vector is (1, 1, c).
struct Tensor {
  std::int64_t c = 1, h = 1, w = 1;
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  bool image = false, sequence = false;

  // Numbers from a pixel to the one below it, numbers of a row, and where the first pixel stands.
  FB_ALWAYS_INLINE std::int64_t line() const { return (left + w + right) * c; }
  FB_ALWAYS_INLINE std::int64_t size() const { return (top + h + bottom) * line(); }
  FB_ALWAYS_INLINE std::int64_t first() const { return top * line() + left * c; }
  FB_ALWAYS_INLINE std::int64_t features() const { return c * h * w; }
};

enum class OperationKind : std::int32_t {
  Conv,
  MaxPool,
  AvgPool,
  GlobalAvg,
  Flatten,
  Dense,
  Pointwise,
  Dropout,
  Norm,
  Add,
  Embedding,
  LastStep,
  Recurrent,
  Augment,
  Scores
};

// One or more layers that are computed together. Weights and bias are offsets in the model; bias is -1 where there is
// none.
//
//   Conv       convolution; then, where `relu`, ReLU; then, where `pooled`, the largest of 2 x 2 (the two commute)
//   Dense      weights; then, where `relu`, ReLU
//   Pointwise  a function of each number, by the record's kind
//   Dropout    numbers are dropped by chance while a client trains
//   Norm       numbers of a group of channels less their mean, over their deviation; times a weight, plus a bias, of
//              each channel; LayerNorm: of each number, in the order (c, h, w), and all channels are one group
//   Add        in + other
//   GlobalAvg  the mean of each channel over all pixels, or all steps
//   Flatten    a vector of an image, in the order (c, h, w), or of a sequence, step by step
//   Embedding  a row of the weights for each token of a row; it is the first operation
//   LastStep   the last step of a sequence
//   Augment    the image moved, or turned from left to right, by chance while a client trains
//   Recurrent  LSTM or GRU, from a state of zeros: all states. The input's weights (gates, features), the last state's
//              (gates, width); then the bias of each
//   Scores     the last vector becomes the scores of the head
struct Operation {
  OperationKind kind;
  std::int32_t layer;    // its first one, by its place in the description
  std::int32_t in, out;  // tensors
  std::int32_t other;    // Add: the second input
  LayerRecord record;
  std::int64_t weight = 0, bias = -1;
  bool relu = false;
  bool pooled = false;
  bool adds_back = false;               // whether the gradient of `in` is added to that of a later operation on it
  bool adds_back_other = false;         // the same of `other`
  bool passes_back = true;              // whether something before it wants the gradient of its input
  std::int32_t number = 0;              // Dropout, Augment: which one of the network's
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
  std::int32_t n_draws;     // operations that depend on chance
  std::int32_t vocabulary;  // rows are tokens below it; 0: rows are numbers
  double flops_per_row;     // of loss and gradient
  double label_smoothing;
};

}  // namespace fedbuff
