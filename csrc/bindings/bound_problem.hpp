// A ProblemSpec read into views, with its arrays kept alive.
#pragma once

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "clients/local_sgd.hpp"
#include "gil.hpp"
#include "clients/network_plan.hpp"
#include "numpy_views.hpp"
#include "read_rule.hpp"
#include "clients/workspace.hpp"

namespace fedbuff::bind {

// The position of the field's value among the names.
template <class Enum>
Enum choice(const py::object& spec, const char* field, std::initializer_list<const char*> names) {
  const auto value = spec.attr(field).cast<std::string>();
  std::int32_t index = 0;
  for (const char* name : names) {
    if (value == name) {
      return static_cast<Enum>(index);
    }
    ++index;
  }
  throw py::value_error(std::string(field) + ": unknown value '" + value + "'");
}

inline NetworkDescription read_network(const py::object& spec) {
  NetworkDescription description;
  const auto shape = spec.attr("input_shape").cast<std::array<std::int64_t, 3>>();
  std::copy(shape.begin(), shape.end(), description.input_shape);
  description.label_smoothing = spec.attr("label_smoothing").cast<double>();
  for (const py::handle& layer : spec.attr("layers")) {
    const auto object = py::reinterpret_borrow<py::object>(layer);
    LayerRecord record;
    record.kind =
        choice<LayerKind>(object, "kind", {"conv2d",    "relu",       "max_pool",     "flatten",     "dense",
                                           "avg_pool",  "global_avg", "leaky_relu",   "gelu",        "silu",
                                           "tanh",      "sigmoid",    "dropout",      "group_norm",  "layer_norm",
                                           "residual",  "shortcut",   "end_residual", "embedding",   "mean_over_time",
                                           "last_step", "lstm",       "gru",          "random_crop", "random_flip"});
    record.out = layer.attr("out").cast<std::int32_t>();
    const auto kernel = layer.attr("kernel").cast<std::array<std::int32_t, 2>>();
    const auto stride = layer.attr("stride").cast<std::array<std::int32_t, 2>>();
    const auto padding = layer.attr("padding").cast<std::array<std::int32_t, 4>>();
    std::copy(kernel.begin(), kernel.end(), record.kernel);
    std::copy(stride.begin(), stride.end(), record.stride);
    std::copy(padding.begin(), padding.end(), record.padding);
    record.groups = layer.attr("groups").cast<std::int32_t>();
    record.bias = layer.attr("bias").cast<bool>();
    record.number = layer.attr("number").cast<double>();
    record.vocabulary = layer.attr("vocabulary").cast<std::int32_t>();
    description.layers.push_back(record);
  }
  return description;
}

// Memory that a problem points to and that no array of the spec holds.
using OwnedPlan = std::unique_ptr<const NetworkPlan>;

template <class T>
Problem<T> read_spec(const py::object& spec, OwnedPlan& plan) {
  const auto integer = [&](const char* field) { return spec.attr(field).cast<std::int64_t>(); };
  const auto number = [&](const char* field) { return spec.attr(field).cast<double>(); };
  Problem<T> p{};
  p.family = choice<Family>(spec, "family", {"net", "sparse", "quadratic", "layers"});
  p.n_clients = integer("n_clients");
  p.dim = integer("dim");
  p.client_weight = input<double>(spec.attr("client_weight"), "client_weight", {p.n_clients});
  if (p.family == Family::Quadratic) {
    p.center = input<T>(spec.attr("center"), "center", {p.n_clients, p.dim});
    p.curvature_form = choice<Curvature>(spec, "curvature_form", {"scalar", "diagonal", "dense"});
    const std::int64_t entries = p.curvature_form == Curvature::Scalar     ? 1
                                 : p.curvature_form == Curvature::Diagonal ? p.dim
                                                                           : p.dim * p.dim;
    p.curvature_shared = spec.attr("curvature").attr("shape")[py::int_(0)].cast<std::int64_t>() == 1;
    p.curvature = input<T>(spec.attr("curvature"), "curvature", {p.curvature_shared ? 1 : p.n_clients, entries});
    p.noise_variance = number("noise_variance");
    return p;
  }
  p.offsets = input<std::int64_t>(spec.attr("offsets"), "offsets", {p.n_clients + 1});
  const std::int64_t n_rows = p.offsets[p.n_clients];
  for (std::int64_t i = 0; i < p.n_clients; ++i) {
    p.max_rows = std::max(p.max_rows, p.rows(i));
  }
  std::vector<std::int32_t> sizes;
  if (p.family == Family::Layers) {
    plan = plan_network(read_network(spec.attr("network")));
    p.network = &plan->network;
    if (p.network->dim != p.dim || p.network->n_features > std::numeric_limits<std::int32_t>::max()) {
      throw py::value_error("dim: expected the " + std::to_string(p.network->dim) + " weights of the layers, got " +
                            std::to_string(p.dim));
    }
    sizes = {static_cast<std::int32_t>(p.network->n_features), p.network->n_outputs};
  } else {
    sizes = spec.attr("sizes").cast<std::vector<std::int32_t>>();
  }
  if (sizes.size() < 2 || sizes.size() > kMaxLayers + 1) {
    throw py::value_error("sizes: expected 2 to " + std::to_string(kMaxLayers + 1) + " layer sizes, got " +
                          std::to_string(sizes.size()));
  }
  p.n_layers = static_cast<std::int32_t>(sizes.size()) - 1;
  std::copy(sizes.begin(), sizes.end(), p.size);
  p.n_features = p.size[0];
  p.intercept = spec.attr("intercept").cast<bool>();
  p.activation = choice<Activation>(spec, "activation", {"relu", "tanh"});
  p.head = choice<Head>(spec, "head", {"squared", "logistic", "softmax"});
  p.l2 = number("l2");
  p.nonconvex = number("nonconvex");
  if (p.head == Head::Softmax) {
    p.label = input<std::int32_t>(spec.attr("label"), "label", {n_rows});
  } else if (p.size[p.n_layers] == 1) {
    p.target = input<T>(spec.attr("target"), "target", {n_rows});
  } else {
    p.target = input<T>(spec.attr("target"), "target", {n_rows, p.size[p.n_layers]});
  }
  if (p.family == Family::Sparse) {
    p.row_start = input<std::int64_t>(spec.attr("row_start"), "row_start", {n_rows + 1});
    p.x = input<T>(spec.attr("x"), "x", {p.row_start[n_rows]});
    p.column = input<std::int32_t>(spec.attr("column"), "column", {p.row_start[n_rows]});
  } else if (p.family == Family::Layers && p.network->vocabulary > 0) {
    p.token = input<std::int32_t>(spec.attr("token"), "token", {n_rows, p.n_features});
  } else if (!spec.attr("byte").is_none()) {
    p.byte = input<std::uint8_t>(spec.attr("byte"), "byte", {n_rows, p.n_features});
    p.scale = number("scale");
    p.shift = number("shift");
  } else {
    p.x = input<T>(spec.attr("x"), "x", {n_rows, p.n_features});
  }
  return p;
}

template <class T>
class BoundProblem {
 public:
  explicit BoundProblem(py::object spec) : spec_(std::move(spec)), work_(read_spec<T>(spec_, plan_)) {}

  // `local` is a LocalSpec.
  void local_sgd(const py::object& local, const py::object& w, std::int64_t client, std::uint32_t task,
                 std::uint64_t seed, std::int64_t batch, const py::object& rows, const py::object& delta_out,
                 const py::object& shift) {
    check_client(client);
    const LocalConfig config = read_local(local);
    Task one{seed, client, task, batch, nullptr, local.attr("steps_per_pass").cast<std::int64_t>()};
    if (!rows.is_none()) {
      one.rows = input<std::int64_t>(rows, "rows", {config.steps, batch});
      check_rows(one.rows, config.steps * batch, work_.problem().rows(client));
    }
    const T* from = model(w);
    T* out = output<T>(delta_out, "delta_out", {dim()});
    const T* off = shift.is_none() ? nullptr : input<T>(shift, "shift", {dim()});
    const GilReleased released;
    work_.local_sgd(config, one, from, out, off);
  }

  double client_gradient(std::int64_t client, const py::object& w, const py::object& gradient_out) {
    check_client(client);
    const T* from = model(w);
    T* out = maybe_output(gradient_out);
    const GilReleased released;
    return work_.client_gradient(client, from, out);
  }

  double gradient(const py::object& w, const py::object& gradient_out, int threads) {
    const T* from = model(w);
    T* out = maybe_output(gradient_out);
    const GilReleased released;
    return work_.gradient(from, out, threads, &hear_signals);
  }

  std::int64_t count_correct(std::int64_t begin, std::int64_t end, const py::object& w) {
    const T* from = model(w);
    const Problem<T>& p = work_.problem();
    if (p.family == Family::Quadratic || begin < 0 || end < begin || end > p.offsets[p.n_clients]) {
      throw py::value_error("begin, end: no such rows");
    }
    constexpr std::int64_t kRowsPerCall = 4096;
    std::int64_t correct = 0;
    const GilReleased released;
    for (; begin < end; begin += kRowsPerCall) {
      correct += work_.count_correct(begin, std::min(end, begin + kRowsPerCall), from);
      hear_signals();
    }
    return correct;
  }

  // A new fb_local over this problem, which must outlive it; the caller destroys it.
  std::uintptr_t local_handle(const py::object& plan, std::uint64_t seed) const {
    LocalOptions options = read_options(plan, work_.problem().n_clients, seed);
    return reinterpret_cast<std::uintptr_t>(make_local(work_.problem(), std::move(options)).release());
  }

  const Problem<T>& problem() const { return work_.problem(); }
  Workspace<T>& workspace() { return work_; }

 private:
  py::ssize_t dim() const { return work_.problem().dim; }
  const T* model(const py::object& w) const { return input<T>(w, "w", {dim()}); }
  T* maybe_output(const py::object& object) const {
    return object.is_none() ? nullptr : output<T>(object, "gradient_out", {dim()});
  }
  void check_client(std::int64_t client) const {
    if (client < 0 || client >= work_.problem().n_clients) {
      throw py::index_error("client " + std::to_string(client) + " of " + std::to_string(work_.problem().n_clients));
    }
  }
  static void check_rows(const std::int64_t* rows, std::int64_t n, std::int64_t n_rows) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (rows[i] < 0 || rows[i] >= n_rows) {
        throw py::index_error("rows: row " + std::to_string(rows[i]) + " of a client with " + std::to_string(n_rows));
      }
    }
  }

  py::object spec_;
  OwnedPlan plan_;
  Workspace<T> work_;
};

}  // namespace fedbuff::bind
