#include "clients/read_problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "clients/read_network.hpp"
#include "kernels/kernels.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kMostSteps = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();  // of a client
constexpr std::int64_t kMostClients = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostDim = std::int64_t{1} << 56;  // its bytes can be counted, and a layer's weights added to it
constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;

bool all_below(const std::int32_t* number, std::int64_t n, std::int32_t bound, const char* field, FieldChecks& checks) {
  return checks.each(field, number, n, "a number from 0 to those there are",
                     [=](std::int32_t x) { return x >= 0 && x < bound; });
}

// ---- local steps ----

template <class Number>
ByClient<Number> by_client(Number one, const Number* each, std::int64_t n_clients) {
  return each == nullptr ? ByClient<Number>(one) : ByClient<Number>(std::vector<Number>(each, each + n_clients));
}

void check_rate(const fb_learning_rate* rate, const char* field, FieldChecks& checks) {
  if (rate != nullptr) {
    const auto good = [](double x) { return std::isfinite(x) && x >= 0; };
    checks.require(good(rate->lr) && rate->decay >= FB_DECAY_NONE && rate->decay <= FB_DECAY_INVERSE_SQRT &&
                       rate->steps >= 1 && good(rate->factor) && good(rate->floor) && rate->floor <= 1 &&
                       rate->warm_up >= 0,
                   field,
                   "lr and factor of at least 0, a decay of fb_decay, steps of at least 1, a floor of 0 to 1 and "
                   "warm_up of at least 0");
  }
}

void check_method(const fb_local_config& c, FieldChecks& checks) {
  checks.between("method", c.method, FB_METHOD_SGD, FB_METHOD_FEDDYN);
  if (c.method == FB_METHOD_FEDNOVA) {
    checks.not_negative("effective_steps", c.effective_steps);
    checks.require(c.momentum < 1, "momentum", "below 1 with FB_METHOD_FEDNOVA", c.momentum);
    checks.require(c.prox == 0 && c.lr_by_step == nullptr, "method",
                   "no prox and no lr_by_step with FB_METHOD_FEDNOVA");
  } else {
    checks.require(c.effective_steps == 0, "effective_steps", "0 without FB_METHOD_FEDNOVA", c.effective_steps);
  }
  if (c.method == FB_METHOD_FEDDYN) {
    checks.positive("alpha", c.alpha);
  } else {
    checks.require(c.alpha == 0, "alpha", "0 without FB_METHOD_FEDDYN", c.alpha);
  }
  if (c.method == FB_METHOD_SCAFFOLD || c.method == FB_METHOD_FEDDYN) {
    checks.require(
        c.momentum == 0 && c.weight_decay == 0 && c.prox == 0 && c.lr_by_version == nullptr && c.lr_by_step == nullptr,
        "method", "no momentum, weight_decay, prox and rates that follow something with it");
  }
}

// A number, or those of all clients where they are given.
template <class Number, class Good>
void check_each(const char* one_name, Number one, const char* each_name, const Number* each, std::int64_t n_clients,
                const char* expected, Good good, FieldChecks& checks) {
  if (each == nullptr) {
    checks.require(good(one), one_name, expected, static_cast<double>(one));
  } else {
    checks.each(each_name, each, n_clients, expected, good);
  }
}

void check_config(const fb_local_config& c, std::int64_t n_clients, FieldChecks& checks) {
  if (c.epochs != 0) {
    checks.between("epochs", c.epochs, 0, kMostSteps);
    checks.require(c.client_steps == nullptr, "client_steps", "null with epochs");
  } else {
    check_each(
        "steps", c.steps, "client_steps", c.client_steps, n_clients, "1 to 2^32 - 1",
        [](std::int64_t n) { return n >= 1 && n <= kMostSteps; }, checks);
  }
  checks.flag("drop_last", c.drop_last);
  const bool above_zero = c.method == FB_METHOD_SCAFFOLD;
  check_each(
      "lr", c.lr, "client_lr", c.client_lr, n_clients,
      above_zero ? "a finite number above 0" : "a finite number of at least 0",
      [=](double x) { return std::isfinite(x) && (above_zero ? x > 0 : x >= 0); }, checks);
  checks.not_negative("momentum", c.momentum);
  checks.not_negative("weight_decay", c.weight_decay);
  checks.not_negative("prox", c.prox);
  check_each(
      "batch_size", c.batch_size, "batch_sizes", c.batch_sizes, n_clients, "0 to 2^30",
      [](std::int64_t n) { return n >= 0 && n <= kMostBatch; }, checks);
  check_rate(c.lr_by_version, "lr_by_version", checks);
  check_rate(c.lr_by_step, "lr_by_step", checks);
  check_method(c, checks);
}

LearningRate rate_of(const fb_learning_rate& rate) {
  return {rate.lr, static_cast<Decay>(rate.decay), rate.steps, rate.factor, rate.floor, rate.warm_up};
}

// What the gradients of so many steps weigh together in the delta, when lr is 1.
double weight_of_gradients(std::int64_t steps, double momentum) {
  const auto n = static_cast<double>(steps);
  return momentum == 0 ? n : (n - momentum * (1 - std::pow(momentum, n)) / (1 - momentum)) / (1 - momentum);
}

ByClient<double> fednova_scale(const fb_local_config& c, const ByClient<std::int64_t>& steps, std::int64_t n_clients) {
  std::vector<double> weight(static_cast<std::size_t>(n_clients));
  double sum = 0;
  for (std::int64_t i = 0; i < n_clients; ++i) {
    weight[static_cast<std::size_t>(i)] = weight_of_gradients(steps[i], c.momentum);
    sum += weight[static_cast<std::size_t>(i)];
  }
  const double common = c.effective_steps > 0 ? c.effective_steps : sum / static_cast<double>(n_clients);
  std::transform(weight.begin(), weight.end(), weight.begin(), [=](double one) { return common / one; });
  return ByClient<double>(std::move(weight));
}

// Steps that a client makes in one pass over its rows; 0 where there is no batch.
std::int64_t steps_per_pass(std::int64_t n_rows, std::int64_t batch, bool drop_last) {
  return batch == 0 ? 1 : drop_last ? n_rows / batch : (n_rows - 1) / batch + 1;
}

void read_compression(const fb_local_config& c, std::int64_t dim, FieldChecks& checks, Compression& how) {
  const bool keeps = c.compress == FB_COMPRESS_TOP_K || c.compress == FB_COMPRESS_RANDOM_K;
  const bool control = c.method == FB_METHOD_SCAFFOLD || c.method == FB_METHOD_FEDDYN;
  checks.between("compress", c.compress, FB_COMPRESS_NONE, FB_COMPRESS_BF16);
  checks.flag("compress_feedback", c.compress_feedback);
  checks.require(c.compress == FB_COMPRESS_NONE || !control, "compress", "none with a method that keeps a state");
  checks.require(c.compress == FB_COMPRESS_NONE || dim <= std::numeric_limits<std::int32_t>::max(), "compress",
                 "a model of at most 2^31 - 1 numbers");
  checks.require(c.compress_feedback == 0 || (c.compress != FB_COMPRESS_NONE && c.compress != FB_COMPRESS_QSGD),
                 "compress_feedback", "0 without compression and with FB_COMPRESS_QSGD");
  checks.require(keeps ? c.compress_share > 0 && c.compress_share <= 1 : c.compress_share == 0, "compress_share",
                 keeps ? "a number above 0, up to 1" : "0 with this fb_compress", c.compress_share);
  if (c.compress == FB_COMPRESS_QSGD) {
    checks.between("compress_levels", c.compress_levels, 1, kMostLevels);
  } else {
    checks.between("compress_levels", c.compress_levels, 0, 0);
  }
  how.kind = static_cast<Compressor>(c.compress);
  how.kept = keeps && checks.ok() ? numbers_kept(c.compress_share, dim) : 0;
  how.levels = static_cast<double>(c.compress_levels);
  how.error_feedback = c.compress_feedback == 1;
}

void read_passes(const fb_local_config& c, const std::vector<std::int64_t>& rows, FieldChecks& checks,
                 LocalOptions& options) {
  std::vector<std::int64_t> steps, per_pass;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t n = steps_per_pass(rows[i], options.batch[static_cast<std::int64_t>(i)], c.drop_last != 0);
    if (n < 1 || n > kMostSteps / c.epochs) {
      checks.require(false, "epochs", "between 1 and 2^32 - 1 steps of every client");
      return;
    }
    per_pass.push_back(n);
    steps.push_back(c.epochs * n);
  }
  options.steps = ByClient<std::int64_t>(std::move(steps));
  options.steps_per_pass = ByClient<std::int64_t>(std::move(per_pass));
}

// ---- problems ----

template <class T>
bool read_layers(const fb_problem& given, FieldChecks& checks, GivenWork<T>& work) {
  Problem<T>& p = work.problem;
  const NetworkFault fault = read_network(given.network, work.plan);
  if (!checks.require(fault.status == FB_OK, "network", ("layers that fit together: " + fault.text).c_str()) ||
      !checks.require(work.plan->network.n_features <= std::numeric_limits<std::int32_t>::max(), "network",
                      "at most 2^31 - 1 features")) {
    return false;
  }
  p.network = &work.plan->network;
  p.n_layers = 1;
  p.size[0] = static_cast<std::int32_t>(p.network->n_features);
  p.size[1] = p.network->n_outputs;
  p.dim = p.network->dim;
  p.token = given.token;
  p.byte = given.byte;
  p.scale = given.scale;
  p.shift = given.shift;
  if (p.byte != nullptr) {
    checks.require(given.x == nullptr, "x", "null where there is byte");
    checks.finite("scale", p.scale);
    checks.finite("shift", p.shift);
  }
  return checks.ok();
}

// The same of layers that are given by their sizes.
template <class T>
bool read_sizes(const fb_problem& given, FieldChecks& checks, Problem<T>& p) {
  checks.between("n_layers", given.n_layers, 1, kMaxLayers);
  checks.require(given.activation == FB_RELU || given.activation == FB_TANH, "activation", "one of fb_activation");
  checks.flag("intercept", given.intercept);
  if (!checks.ok() || !checks.each("layer_size", given.layer_size, given.n_layers + 1, "at least 1",
                                   [](std::int32_t size) { return size >= 1; })) {
    return false;
  }
  std::copy(given.layer_size, given.layer_size + given.n_layers + 1, p.size);
  p.n_layers = given.n_layers;
  p.intercept = given.intercept != 0;
  p.activation = static_cast<Activation>(given.activation);
  for (int l = 1; l <= p.n_layers; ++l) {
    p.dim += (std::int64_t{p.size[l - 1]} + (p.intercept ? 1 : 0)) * p.size[l];
    if (!checks.require(p.dim <= kMostDim, "layer_size", "at most 2^56 weights")) {
      return false;
    }
  }
  return true;
}

template <class T>
void read_quadratic(const fb_problem& given, FieldChecks& checks, Problem<T>& p) {
  if (!checks.require(given.layer_size != nullptr && given.layer_size[0] >= 1, "layer_size", "dim, at least 1")) {
    return;
  }
  p.dim = given.layer_size[0];
  p.center = static_cast<const T*>(given.center);
  p.curvature = static_cast<const T*>(given.curvature);
  p.curvature_form = static_cast<Curvature>(given.curvature_form);
  p.curvature_shared = given.curvature_shared != 0;
  p.noise_variance = given.noise_variance;
  checks.between("curvature_form", given.curvature_form, FB_SCALAR, FB_DENSE);
  checks.flag("curvature_shared", given.curvature_shared);
  checks.require(p.center != nullptr, "center", "an array, not null");
  checks.require(p.curvature != nullptr, "curvature", "an array, not null");
  checks.not_negative("noise_variance", p.noise_variance);
}

// Rows, and what is known of them.
template <class T>
void read_rows(const fb_problem& given, FieldChecks& checks, Problem<T>& p) {
  const std::int64_t n_rows = p.offsets[p.n_clients];
  const std::int32_t n_outputs = p.size[p.n_layers];
  p.x = static_cast<const T*>(given.x);
  p.target = static_cast<const T*>(given.target);
  p.label = given.label;
  p.column = given.column;
  p.row_start = given.row_start;
  if (p.family == Family::Layers && p.network->vocabulary > 0) {
    checks.require(p.byte == nullptr, "byte", "null where there is token");
    all_below(p.token, n_rows * p.n_features, p.network->vocabulary, "token", checks);
  } else {
    checks.require(p.x != nullptr || p.byte != nullptr, "x", "an array, not null");
  }
  if (p.head == Head::Softmax) {
    all_below(p.label, n_rows, n_outputs, "label", checks);
  } else {
    checks.require(p.target != nullptr, "target", "an array, not null");
    checks.require(n_outputs == 1 || p.family == Family::Layers, "layer_size", "one output with this head");
  }
  if (p.family == Family::Sparse) {
    checks.between("n_layers", p.n_layers, 1, 1);
    checks.require(p.head != Head::Softmax, "head", "FB_SQUARED or FB_LOGISTIC with FB_SPARSE");
    if (checks.ascends("row_start", p.row_start, n_rows, 0)) {
      all_below(p.column, p.row_start[n_rows], p.size[0], "column", checks);
    }
  }
}

template <class T>
void read_problem(const fb_problem& given, FieldChecks& checks, GivenWork<T>& work) {
  Problem<T>& p = work.problem;
  checks.between("family", given.family, FB_NET, FB_LAYERS);
  if (!checks.between("n_clients", given.n_clients, 1, kMostClients)) {
    return;
  }
  p.family = static_cast<Family>(given.family);
  p.n_clients = given.n_clients;
  if (p.family == Family::Quadratic) {
    read_quadratic(given, checks, p);
    return;
  }
  checks.between("head", given.head, FB_SQUARED, FB_SOFTMAX);
  checks.not_negative("l2", given.l2);
  checks.not_negative("nonconvex", given.nonconvex);
  if (!checks.ascends("offsets", given.offsets, p.n_clients, 1) ||
      !(p.family == Family::Layers ? read_layers(given, checks, work) : read_sizes(given, checks, p))) {
    return;
  }
  p.n_features = p.size[0];
  p.head = static_cast<Head>(given.head);
  p.l2 = given.l2;
  p.nonconvex = given.nonconvex;
  p.offsets = given.offsets;
  for (std::int64_t i = 0; i < p.n_clients; ++i) {
    p.max_rows = std::max(p.max_rows, p.rows(i));
  }
  if (checks.require(p.max_rows <= kMostRows, "offsets", "at most 2^31 - 1 rows of a client")) {
    read_rows(given, checks, p);
  }
}

}  // namespace

void read_local(const fb_local_config& config, const std::vector<std::int64_t>& samples, std::int64_t dim,
                FieldChecks& checks, LocalOptions& options) {
  const auto n_clients = static_cast<std::int64_t>(samples.size());
  check_config(config, n_clients, checks);
  if (!checks.ok()) {
    return;
  }
  options.steps = by_client(config.steps, config.client_steps, n_clients);
  options.lr = by_client(config.lr, config.client_lr, n_clients);
  options.batch = by_client(config.batch_size, config.batch_sizes, n_clients);
  options.momentum = config.momentum;
  options.weight_decay = config.weight_decay;
  options.method = static_cast<Method>(config.method);
  options.prox = options.method == Method::Feddyn ? config.alpha : config.prox;
  options.seed = config.seed;
  read_compression(config, dim, checks, options.compress);
  if (config.epochs > 0) {
    read_passes(config, samples, checks, options);
  }
  if (!checks.ok()) {
    return;
  }
  if (config.method == FB_METHOD_FEDNOVA) {
    options.scale = fednova_scale(config, options.steps, n_clients);
  }
  if (config.lr_by_version != nullptr) {
    options.by_version = true;
    options.version_rate = rate_of(*config.lr_by_version);
  }
  if (config.lr_by_step != nullptr) {
    const std::vector<std::int64_t>& steps = options.steps.values();
    options.lr_factors.resize(static_cast<std::size_t>(*std::max_element(steps.begin(), steps.end())));
    const LearningRate rate = rate_of(*config.lr_by_step);
    for (std::size_t q = 0; q < options.lr_factors.size(); ++q) {
      options.lr_factors[q] = rate.at(static_cast<std::int64_t>(q));
    }
  }
}

template <class T>
void read_work(const fb_problem& problem, const fb_local_config& config, FieldChecks& checks, GivenWork<T>& work) {
  read_problem(problem, checks, work);
  if (!checks.ok()) {
    return;
  }
  const Problem<T>& p = work.problem;
  checks.require(config.epochs <= 0 || p.family != Family::Quadratic, "epochs",
                 "0 with FB_QUADRATIC, which has no rows", static_cast<double>(config.epochs));
  std::vector<std::int64_t> rows(static_cast<std::size_t>(p.n_clients));
  for (std::int64_t i = 0; i < p.n_clients; ++i) {
    rows[static_cast<std::size_t>(i)] = p.rows(i);
  }
  read_local(config, rows, p.dim, checks, work.options);
}

template void read_work(const fb_problem&, const fb_local_config&, FieldChecks&, GivenWork<float>&);
template void read_work(const fb_problem&, const fb_local_config&, FieldChecks&, GivenWork<double>&);

}  // namespace fedbuff
