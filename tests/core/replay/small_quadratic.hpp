// A quadratic problem of a few clients and numbers, with what it points to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "check.hpp"
#include "clients/workspace.hpp"

struct SmallQuadratic {
  std::vector<double> center, curvature, client_weight;
  fedbuff::Problem<double> fields{};
  std::unique_ptr<fedbuff::Workspace<double>> workspace;

  SmallQuadratic(std::int64_t n_clients, std::int64_t dim, double noise_variance)
      : center(check::Numbers(3).vector<double>(n_clients * dim)),
        curvature{0.5},
        client_weight(static_cast<std::size_t>(n_clients), 1.0 / static_cast<double>(n_clients)) {
    fields.family = fedbuff::Family::Quadratic;
    fields.n_clients = n_clients;
    fields.dim = dim;
    fields.client_weight = client_weight.data();
    fields.center = center.data();
    fields.curvature = curvature.data();
    fields.curvature_form = fedbuff::Curvature::Scalar;
    fields.curvature_shared = true;
    fields.noise_variance = noise_variance;
    workspace = std::make_unique<fedbuff::Workspace<double>>(fields);
  }
};
