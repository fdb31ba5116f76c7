// What a client minimises, as plain views, and how it minimises it. Nothing here owns memory.
#pragma once

#include <cstdint>

#include "kernels/network.hpp"

namespace fedbuff {

enum class Head : std::int32_t { Squared = 0, Logistic = 1, Softmax = 2 };
enum class Activation : std::int32_t { Relu = 0, Tanh = 1 };
enum class Curvature : std::int32_t { Scalar = 0, Diagonal = 1, Dense = 2 };
enum class Family : std::int32_t { Net = 0, Sparse = 1, Quadratic = 2, Layers = 3 };

inline constexpr int kMaxLayers = 16;

// One problem: n_clients objectives over one contiguous array of rows. Client i owns rows offsets[i] .. offsets[i + 1].
//
//   Net        dense rows through zero or more hidden layers into a head. Weights layer by layer, (out, in) row-major,
//              then the bias where there is one. No hidden layer: least squares, logistic or softmax regression.
//   Sparse     CSR rows, one output, squared or logistic head.
//   Layers     dense rows through the layers of a network. n_layers is 1: n_features and outputs.
//   Quadratic  f_i(w) = (w - c_i)' A_i (w - c_i) / 2 with additive Gaussian gradient noise.
template <class T>
struct Problem {
  Family family;
  std::int64_t n_clients;
  std::int64_t dim;
  std::int64_t max_rows;        // of the largest client
  const std::int64_t* offsets;  // (n_clients + 1), Net and Sparse
  const double* client_weight;  // (n_clients), sums to 1: f = sum_i client_weight[i] f_i

  // Net, Sparse and Layers
  const T* x;                 // (n_rows, n_features) row-major; Sparse: the stored values
  const std::int32_t* token;  // (n_rows, n_features), Layers that begin with an embedding: in the place of x
  const std::uint8_t* byte;   // (n_rows, n_features), Layers: in the place of x; b stands for scale * b + shift
  double scale, shift;
  const T* target;                // (n_rows), Layers (n_rows, outputs), for Squared and Logistic (0 or 1)
  const std::int32_t* label;      // (n_rows) for Softmax
  const std::int32_t* column;     // Sparse: column of each stored value
  const std::int64_t* row_start;  // Sparse: (n_rows + 1)
  std::int64_t n_features;
  std::int32_t n_layers;              // weight matrices: 1 without hidden layers
  std::int32_t size[kMaxLayers + 1];  // n_features, hidden sizes, outputs
  bool intercept;
  Activation activation;
  Head head;
  double l2;               // + l2 / 2 |w|^2
  double nonconvex;        // + nonconvex * sum w^2 / (1 + w^2)
  const Network* network;  // Layers

  // Quadratic
  const T* center;     // (n_clients, dim)
  const T* curvature;  // scalar (1), diagonal (dim) or dense (dim, dim); times n_clients unless shared
  Curvature curvature_form;
  bool curvature_shared;
  double noise_variance;  // E|xi|^2 of the noise of one sample

  std::int64_t rows(std::int64_t client) const {
    return family == Family::Quadratic ? 0 : offsets[client + 1] - offsets[client];
  }
};

// LocalSGD of one task: w <- w - lr * step, `steps` times, from a private copy of the downloaded model.
struct LocalConfig {
  std::int64_t steps;
  double lr;
  double momentum;                     // v <- momentum v + g, step = v; v starts at zero with every task
  double weight_decay;                 // g + weight_decay w
  double prox;                         // g + prox (w - w_start)
  const double* lr_factors = nullptr;  // (steps) where not null: lr is multiplied by that of the step
  double scale = 1;                    // of the delta

  bool plain() const { return momentum == 0 && weight_decay == 0 && prox == 0; }
  double lr_at(std::int64_t step) const { return lr_factors == nullptr ? lr : lr * lr_factors[step]; }
};

// One client's pass. batch == 0 is the exact local gradient. `rows`, where not null, gives the batches: (steps, batch)
// row numbers within the client; otherwise they are drawn by Philox from (seed, client, task, step), or, with
// steps_per_pass > 0, the client's rows are gone through in a shuffled order (numbers/shuffle.hpp) that is another one
// in each pass: step q takes the rows at batch * (q % steps_per_pass) and after, as many as there are.
struct Task {
  std::uint64_t seed;
  std::int64_t client;
  std::uint32_t number;
  std::int64_t batch;
  const std::int64_t* rows;
  std::int64_t steps_per_pass = 0;

  // Rows of a step's batch, of a client that has n_rows.
  std::int64_t batch_at(std::int64_t step, std::int64_t n_rows) const {
    if (steps_per_pass == 0) {
      return batch;
    }
    const std::int64_t left = n_rows - step % steps_per_pass * batch;
    return left < batch ? left : batch;
  }
};

// A task with the model that it starts from and where its delta goes, both (dim); they may not overlap. `shift` (dim),
// where not null, is taken off every gradient; there is no momentum and no weight decay then.
template <class T>
struct LocalTask {
  Task task;
  const T* w;
  T* delta_out;
  const T* shift = nullptr;
};

}  // namespace fedbuff
