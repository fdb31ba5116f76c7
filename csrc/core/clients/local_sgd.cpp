#include "clients/local_sgd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "clients/compress_task.hpp"
#include "clients/control_variates.hpp"
#include "clients/custom.hpp"
#include "clients/read_network.hpp"
#include "clients/workspace.hpp"
#include "kernels/dispatch.hpp"

namespace fedbuff {

namespace {

template <class T>
constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;

fb_status check(fb_dtype own, std::int64_t own_dim, std::int64_t n_clients, fb_dtype dtype, std::int64_t dim,
                std::int64_t client) {
  return dtype != own                        ? FB_ERR_DTYPE
         : dim != own_dim                    ? FB_ERR_SIZE
         : client < 0 || client >= n_clients ? FB_ERR_ARGUMENT
                                             : FB_OK;
}

// Whether there is a state, and a control variate of the server's where the method has one.
bool takes_state(const LocalOptions& options, const void* control) {
  return options.keeps_state() && (options.method == Method::Scaffold) == (control != nullptr);
}

template <class T>
class Local final : public fb_local {
 public:
  Local(const Problem<T>& problem, LocalOptions options, std::unique_ptr<const NetworkPlan> plan = nullptr)
      : plan_(std::move(plan)), work_(problem), options_(std::move(options)) {}

  fb_status delta(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task, std::int64_t version,
                  const void* w, void* delta_out) override {
    if (const fb_status status = check(kDtype<T>, this->dim(), n_clients(), dtype, dim, client); status != FB_OK) {
      return status;
    }
    if (options_.keeps_state()) {
      return FB_ERR_ARGUMENT;
    }
    auto* delta = static_cast<T*>(delta_out);
    work_.local_sgd(options_.config(client, version), options_.task(client, task), static_cast<const T*>(w), delta);
    if (options_.compress.kind != Compressor::None) {
      const auto scratch = compression_memory();
      compress(options_.compress, options_.compression_key(client, task), dim, static_cast<const T*>(delta),
               scratch.get(), delta);
    }
    return FB_OK;
  }
  fb_status delta_state(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task, std::int64_t version,
                        const void* w, const void* control, void* state, void* delta_out) override {
    if (const fb_status status = check(kDtype<T>, this->dim(), n_clients(), dtype, dim, client); status != FB_OK) {
      return status;
    }
    if (!takes_state(options_, control)) {
      return FB_ERR_ARGUMENT;
    }
    auto* shift = static_cast<T*>(state);
    auto* delta = static_cast<T*>(delta_out);
    const LocalConfig config = options_.config(client, version);
    if (!options_.has_control_variates()) {
      const auto scratch = compression_memory();
      work_.local_sgd(config, options_.task(client, task), static_cast<const T*>(w), delta);
      compress_with_feedback(options_.compress, options_.compression_key(client, task), dim, delta,
                             static_cast<const T*>(shift), shift, scratch.get());
      return FB_OK;
    }
    make_shift(options_.method, dim, shift, static_cast<const T*>(control), shift);
    work_.local_sgd(config, options_.task(client, task), static_cast<const T*>(w), delta, shift);
    make_state(options_.method, config, dim, delta, shift);
    return FB_OK;
  }
  std::int64_t dim() const override { return work_.problem().dim; }
  std::int64_t n_clients() const override { return work_.problem().n_clients; }

 private:
  std::unique_ptr<unsigned char[]> compression_memory() const {
    return std::make_unique<unsigned char[]>(compression_scratch(options_.compress, work_.problem().dim, sizeof(T)));
  }

  const std::unique_ptr<const NetworkPlan> plan_;  // what the problem points to, unless somebody else owns that
  Workspace<T> work_;
  const LocalOptions options_;
};

constexpr double kTinyFlops = 2000;  // passing a task to another core costs about as much as this

template <class T>
class LocalSgdWork final : public ClientWork<T> {
 public:
  LocalSgdWork(const Problem<T>& problem, LocalOptions options) : problem_(problem), options_(std::move(options)) {}

  std::size_t scratch_bytes() const override {
    return kernel_bytes() + compression_scratch(options_.compress, problem_.dim, sizeof(T));
  }

  void run(const ClientTask<T>* tasks, std::int64_t n_tasks, void* scratch) override {
    LocalTask<T> local[kMaxTasksPerRun];
    for (std::int64_t i = 0; i < n_tasks; ++i) {  // prefetched: with many clients these are not in the cache
      __builtin_prefetch(&options_.batch[tasks[i].row->client]);
      if (problem_.offsets != nullptr) {
        __builtin_prefetch(problem_.offsets + tasks[i].row->client);
      }
    }
    if (options_.keeps_state() || options_.compress.kind != Compressor::None) {
      for (std::int64_t i = 0; i < n_tasks; ++i) {
        run_one(tasks[i], scratch);
      }
      return;
    }
    for (std::int64_t i = 0; i < n_tasks; ++i) {
      const ReplayRow& row = *tasks[i].row;
      local[i] = {options_.task(row.client, row.task), tasks[i].w, tasks[i].delta_out};
    }
    if (options_.has_one_config()) {
      kernels().of<T>().local_sgd(problem_, options_.config(0, 0), local, n_tasks, scratch);
      return;
    }
    for (std::int64_t i = 0; i < n_tasks; ++i) {
      const LocalConfig config = options_.config(tasks[i].row->client, tasks[i].row->version);
      kernels().of<T>().local_sgd(problem_, config, local + i, 1, scratch);
    }
  }

  double flops() const override {
    const std::int64_t batch = options_.batch[0], steps = options_.steps[0];
    const std::int64_t rows = problem_.family == Family::Quadratic ? 1 : batch > 0 ? batch : problem_.max_rows;
    if (problem_.family == Family::Layers) {
      return problem_.network->flops_per_row * static_cast<double>(steps * rows);
    }
    return 4.0 * static_cast<double>(steps * rows) * static_cast<double>(problem_.dim);
  }

  bool is_tiny() const override { return flops() < kTinyFlops && !keeps_state(); }
  bool keeps_state() const override { return options_.keeps_state(); }

 private:
  // In whole cache lines.
  std::size_t kernel_bytes() const { return (kernels().of<T>().scratch_bytes(problem_) + 63) / 64 * 64; }

  // A task with something beside its local steps.
  void run_one(const ClientTask<T>& task, void* scratch) const {
    const ReplayRow& row = *task.row;
    const LocalConfig config = options_.config(row.client, row.version);
    const bool corrects = options_.has_control_variates();
    if (corrects) {
      make_shift(options_.method, problem_.dim, task.state, task.control, task.state_out);
    }
    const LocalTask<T> one{options_.task(row.client, row.task), task.w, task.delta_out,
                           corrects ? task.state_out : nullptr};
    kernels().of<T>().local_sgd(problem_, config, &one, 1, scratch);
    if (corrects) {
      make_state(options_.method, config, problem_.dim, task.delta_out, task.state_out);
    }
    compress_task(options_, problem_.dim, task, static_cast<char*>(scratch) + kernel_bytes());
  }

  const Problem<T> problem_;
  const LocalOptions options_;
};

template <class T>
class CustomLocal final : public fb_local {
 public:
  CustomLocal(fb_gradient gradient, void* context, std::int64_t dim, std::vector<std::int64_t> samples,
              LocalOptions options)
      : gradient_(gradient),
        context_(context),
        dim_(dim),
        n_clients_(static_cast<std::int64_t>(samples.size())),
        takes_control_(options.method == Method::Scaffold),
        work_(make_custom<T>({&call, this, dim, std::move(samples)}, std::move(options))) {}

  fb_status delta(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task, std::int64_t version,
                  const void* w, void* delta_out) override {
    if (const fb_status status = check(kDtype<T>, dim_, n_clients_, dtype, dim, client); status != FB_OK) {
      return status;
    }
    if (work_->keeps_state()) {
      return FB_ERR_ARGUMENT;
    }
    const ReplayRow row{static_cast<std::int32_t>(client), task, version, 0, 1.0, 1.0};
    const ClientTask<T> one{&row, static_cast<const T*>(w), static_cast<T*>(delta_out)};
    const auto scratch = std::make_unique<unsigned char[]>(work_->scratch_bytes());
    work_->run(&one, 1, scratch.get());
    return FB_OK;
  }
  fb_status delta_state(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task, std::int64_t version,
                        const void* w, const void* control, void* state, void* delta_out) override {
    if (const fb_status status = check(kDtype<T>, dim_, n_clients_, dtype, dim, client); status != FB_OK) {
      return status;
    }
    if (!work_->keeps_state() || takes_control_ != (control != nullptr)) {
      return FB_ERR_ARGUMENT;
    }
    const ReplayRow row{static_cast<std::int32_t>(client), task, version, 0, 1.0, 1.0};
    ClientTask<T> one{&row, static_cast<const T*>(w), static_cast<T*>(delta_out)};
    one.control = static_cast<const T*>(control);
    one.state = one.state_out = static_cast<T*>(state);
    const auto scratch = std::make_unique<unsigned char[]>(work_->scratch_bytes());
    work_->run(&one, 1, scratch.get());
    return FB_OK;
  }
  std::int64_t dim() const override { return dim_; }
  std::int64_t n_clients() const override { return n_clients_; }

 private:
  static std::int32_t call(std::int64_t client, std::int64_t n_rows, const std::int64_t* rows, const T* w,
                           T* gradient_out, void* self) {
    const auto* local = static_cast<CustomLocal*>(self);
    return local->gradient_(client, n_rows, rows, w, gradient_out, local->context_);
  }

  const fb_gradient gradient_;
  void* const context_;
  const std::int64_t dim_, n_clients_;
  const bool takes_control_;
  const std::unique_ptr<ClientWork<T>> work_;
};

bool finite_from_zero(double x) { return std::isfinite(x) && x >= 0; }

bool is_flag(std::int32_t x) { return x == 0 || x == 1; }

// Whether start[0] .. start[n] ascend from 0, by at least `step`.
bool ascends(const std::int64_t* start, std::int64_t n, std::int64_t step) {
  if (start == nullptr || start[0] != 0) {
    return false;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    if (start[i + 1] < start[i] || start[i + 1] - start[i] < step) {
      return false;
    }
  }
  return true;
}

bool all_below(const std::int32_t* number, std::int64_t n, std::int32_t bound) {
  return number != nullptr && std::all_of(number, number + n, [=](std::int32_t x) { return x >= 0 && x < bound; });
}

constexpr std::int64_t kMostSteps = std::numeric_limits<std::uint32_t>::max();

// Whether a number, or those of all clients where they are given, are valid.
template <class Number, class Valid>
bool all_valid(Number one, const Number* each, std::int64_t n_clients, Valid valid) {
  return each == nullptr ? valid(one) : std::all_of(each, each + n_clients, valid);
}

template <class Number>
ByClient<Number> by_client(Number one, const Number* each, std::int64_t n_clients) {
  return each == nullptr ? ByClient<Number>(one) : ByClient<Number>(std::vector<Number>(each, each + n_clients));
}

bool valid_rate(const fb_learning_rate* rate) {
  return rate == nullptr ||
         (finite_from_zero(rate->lr) && rate->decay >= FB_DECAY_NONE && rate->decay <= FB_DECAY_INVERSE_SQRT &&
          rate->steps >= 1 && finite_from_zero(rate->factor) && finite_from_zero(rate->floor) && rate->floor <= 1 &&
          rate->warm_up >= 0);
}

LearningRate rate_of(const fb_learning_rate& rate) {
  return {rate.lr, static_cast<Decay>(rate.decay), rate.steps, rate.factor, rate.floor, rate.warm_up};
}

bool valid_method(const fb_local_config& c) {
  if (c.method == FB_METHOD_FEDNOVA) {
    return finite_from_zero(c.effective_steps) && c.alpha == 0 && c.momentum < 1 && c.prox == 0 &&
           c.lr_by_step == nullptr;
  }
  const bool plain =
      c.momentum == 0 && c.weight_decay == 0 && c.prox == 0 && c.lr_by_version == nullptr && c.lr_by_step == nullptr;
  return c.effective_steps == 0 && (c.method == FB_METHOD_SGD        ? c.alpha == 0
                                    : c.method == FB_METHOD_SCAFFOLD ? c.alpha == 0 && plain
                                    : c.method == FB_METHOD_FEDDYN   ? c.alpha > 0 && std::isfinite(c.alpha) && plain
                                                                     : false);
}

bool valid_config(const fb_local_config& c, std::int64_t n_clients) {
  const auto valid_steps = [](std::int64_t n) { return n >= 1 && n <= kMostSteps; };
  const auto valid_batch = [](std::int64_t b) { return b >= 0 && b <= std::int64_t{1} << 30; };
  return (c.epochs > 0 ? c.epochs <= kMostSteps && c.client_steps == nullptr
                       : c.epochs == 0 && all_valid(c.steps, c.client_steps, n_clients, valid_steps)) &&
         is_flag(c.drop_last) && all_valid(c.lr, c.client_lr, n_clients, finite_from_zero) &&
         finite_from_zero(c.momentum) && finite_from_zero(c.weight_decay) && finite_from_zero(c.prox) &&
         all_valid(c.batch_size, c.batch_sizes, n_clients, valid_batch) && valid_rate(c.lr_by_version) &&
         valid_rate(c.lr_by_step) && valid_method(c) &&
         (c.method != FB_METHOD_SCAFFOLD || all_valid(c.lr, c.client_lr, n_clients, [](double lr) { return lr > 0; }));
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

// False where it makes no sense for a model of this size.
bool read_compression(const fb_local_config& c, std::int64_t dim, Compression& how) {
  const bool keeps = c.compress == FB_COMPRESS_TOP_K || c.compress == FB_COMPRESS_RANDOM_K;
  const bool control = c.method == FB_METHOD_SCAFFOLD || c.method == FB_METHOD_FEDDYN;
  if (c.compress < FB_COMPRESS_NONE || c.compress > FB_COMPRESS_BF16 || !is_flag(c.compress_feedback) ||
      (c.compress != FB_COMPRESS_NONE && (control || dim > std::numeric_limits<std::int32_t>::max())) ||
      (c.compress_feedback == 1 && (c.compress == FB_COMPRESS_NONE || c.compress == FB_COMPRESS_QSGD)) ||
      (keeps ? !(c.compress_share > 0 && c.compress_share <= 1) : c.compress_share != 0) ||
      (c.compress == FB_COMPRESS_QSGD ? c.compress_levels < 1 || c.compress_levels > kMostLevels
                                      : c.compress_levels != 0)) {
    return false;
  }
  how.kind = static_cast<Compressor>(c.compress);
  how.kept = keeps ? numbers_kept(c.compress_share, dim) : 0;
  how.levels = static_cast<double>(c.compress_levels);
  how.error_feedback = c.compress_feedback == 1;
  return true;
}

// n_rows(client) is how many rows a client has. False where passes are asked for and a client makes no step, or more
// than can be counted.
template <class Rows>
bool read_options(const fb_local_config& c, std::int64_t n_clients, std::int64_t dim, Rows n_rows,
                  LocalOptions& options) {
  options.steps = by_client(c.steps, c.client_steps, n_clients);
  options.lr = by_client(c.lr, c.client_lr, n_clients);
  options.batch = by_client(c.batch_size, c.batch_sizes, n_clients);
  options.momentum = c.momentum;
  options.weight_decay = c.weight_decay;
  options.method = static_cast<Method>(c.method);
  if (!read_compression(c, dim, options.compress)) {
    return false;
  }
  options.prox = options.method == Method::Feddyn ? c.alpha : c.prox;
  options.seed = c.seed;
  if (c.epochs > 0) {
    std::vector<std::int64_t> steps(static_cast<std::size_t>(n_clients)), per_pass(steps.size());
    for (std::int64_t i = 0; i < n_clients; ++i) {
      const std::int64_t n = steps_per_pass(n_rows(i), options.batch[i], c.drop_last != 0);
      if (n < 1 || n > kMostSteps / c.epochs) {
        return false;
      }
      per_pass[static_cast<std::size_t>(i)] = n;
      steps[static_cast<std::size_t>(i)] = c.epochs * n;
    }
    options.steps = ByClient<std::int64_t>(std::move(steps));
    options.steps_per_pass = ByClient<std::int64_t>(std::move(per_pass));
  }
  if (c.method == FB_METHOD_FEDNOVA) {
    options.scale = fednova_scale(c, options.steps, n_clients);
  }
  if (c.lr_by_version != nullptr) {
    options.by_version = true;
    options.version_rate = rate_of(*c.lr_by_version);
  }
  if (c.lr_by_step != nullptr) {
    const std::vector<std::int64_t>& steps = options.steps.values();
    options.lr_factors.resize(static_cast<std::size_t>(*std::max_element(steps.begin(), steps.end())));
    const LearningRate rate = rate_of(*c.lr_by_step);
    for (std::size_t q = 0; q < options.lr_factors.size(); ++q) {
      options.lr_factors[q] = rate.at(static_cast<std::int64_t>(q));
    }
  }
  return true;
}

constexpr std::int64_t kMostDim = std::int64_t{1} << 56;  // its bytes can be counted, and a layer's weights added to it

// What the kernels want of a problem's layers; false where they do not fit together.
template <class T>
bool read_layers(const fb_problem& given, Problem<T>& p, std::unique_ptr<const NetworkPlan>& plan) {
  if (read_network(given.network, plan).status != FB_OK ||
      plan->network.n_features > std::numeric_limits<std::int32_t>::max()) {
    return false;
  }
  p.network = &plan->network;
  p.n_layers = 1;
  p.size[0] = static_cast<std::int32_t>(plan->network.n_features);
  p.size[1] = plan->network.n_outputs;
  p.dim = plan->network.dim;
  p.token = given.token;
  p.byte = given.byte;
  p.scale = given.scale;
  p.shift = given.shift;
  return p.byte == nullptr || (given.x == nullptr && std::isfinite(p.scale) && std::isfinite(p.shift));
}

// The same of those that are given by their sizes.
template <class T>
bool read_sizes(const fb_problem& given, Problem<T>& p) {
  if (given.layer_size == nullptr || given.n_layers < 1 || given.n_layers > kMaxLayers ||
      (given.activation != FB_RELU && given.activation != FB_TANH) || !is_flag(given.intercept)) {
    return false;
  }
  std::copy(given.layer_size, given.layer_size + given.n_layers + 1, p.size);
  p.n_layers = given.n_layers;
  p.intercept = given.intercept != 0;
  p.activation = static_cast<Activation>(given.activation);
  for (int l = 0; l <= p.n_layers; ++l) {
    if (p.size[l] < 1 || p.dim > kMostDim) {
      return false;
    }
    p.dim += l == 0 ? 0 : (std::int64_t{p.size[l - 1]} + (p.intercept ? 1 : 0)) * p.size[l];
  }
  return p.dim <= kMostDim;
}

// The problem as the kernels want it; false where something is missing or does not fit.
template <class T>
bool read_problem(const fb_problem& given, Problem<T>& p, std::unique_ptr<const NetworkPlan>& plan) {
  p.family = static_cast<Family>(given.family);
  p.n_clients = given.n_clients;
  if (p.family == Family::Quadratic) {
    if (given.layer_size == nullptr) {
      return false;
    }
    p.dim = given.layer_size[0];
    p.center = static_cast<const T*>(given.center);
    p.curvature = static_cast<const T*>(given.curvature);
    p.curvature_form = static_cast<Curvature>(given.curvature_form);
    p.curvature_shared = given.curvature_shared != 0;
    p.noise_variance = given.noise_variance;
    return p.dim >= 1 && given.curvature_form >= FB_SCALAR && given.curvature_form <= FB_DENSE &&
           is_flag(given.curvature_shared) && p.center != nullptr && p.curvature != nullptr &&
           finite_from_zero(p.noise_variance);
  }
  const bool known = given.head >= FB_SQUARED && given.head <= FB_SOFTMAX && finite_from_zero(given.l2) &&
                     finite_from_zero(given.nonconvex) && ascends(given.offsets, given.n_clients, 1) &&
                     (p.family == Family::Layers ? read_layers(given, p, plan) : read_sizes(given, p));
  if (!known) {
    return false;
  }
  p.n_features = p.size[0];
  p.head = static_cast<Head>(given.head);
  p.l2 = given.l2;
  p.nonconvex = given.nonconvex;
  p.offsets = given.offsets;
  for (std::int64_t i = 0; i < p.n_clients; ++i) {
    p.max_rows = std::max(p.max_rows, p.rows(i));
  }
  const std::int64_t n_rows = p.offsets[p.n_clients];
  const std::int32_t n_outputs = p.size[p.n_layers];
  const bool tokens = p.family == Family::Layers && p.network->vocabulary > 0;
  if (tokens ? !all_below(p.token, n_rows * p.n_features, p.network->vocabulary) || p.byte != nullptr
             : given.x == nullptr && p.byte == nullptr) {
    return false;
  }
  p.x = static_cast<const T*>(given.x);
  p.target = static_cast<const T*>(given.target);
  p.label = given.label;
  p.column = given.column;
  p.row_start = given.row_start;
  if (p.max_rows > std::numeric_limits<std::int32_t>::max() ||
      (p.head == Head::Softmax ? !all_below(p.label, n_rows, n_outputs)
                               : p.target == nullptr || (n_outputs != 1 && p.family != Family::Layers))) {
    return false;
  }
  return p.family != Family::Sparse || (p.n_layers == 1 && p.head != Head::Softmax && ascends(p.row_start, n_rows, 0) &&
                                        all_below(p.column, p.row_start[n_rows], p.size[0]));
}

template <class T>
fb_status make_checked(const fb_problem& given, const fb_local_config& config, std::unique_ptr<fb_local>& local_out) {
  Problem<T> problem{};
  std::unique_ptr<const NetworkPlan> plan;
  if (!read_problem(given, problem, plan)) {
    return FB_ERR_ARGUMENT;
  }
  LocalOptions options;
  const bool has_rows = problem.family != Family::Quadratic;
  if ((config.epochs > 0 && !has_rows) ||
      !read_options(config, given.n_clients, problem.dim, [&](std::int64_t i) { return problem.rows(i); }, options)) {
    return FB_ERR_ARGUMENT;
  }
  local_out = std::make_unique<Local<T>>(problem, std::move(options), std::move(plan));
  return FB_OK;
}

constexpr std::int64_t kMostClients = std::numeric_limits<std::int32_t>::max();

}  // namespace

template <class T>
std::unique_ptr<fb_local> make_local(const Problem<T>& problem, LocalOptions options) {
  return std::make_unique<Local<T>>(problem, std::move(options));
}

template std::unique_ptr<fb_local> make_local(const Problem<float>&, LocalOptions);
template std::unique_ptr<fb_local> make_local(const Problem<double>&, LocalOptions);

template <class T>
std::unique_ptr<ClientWork<T>> make_local_sgd(const Problem<T>& problem, LocalOptions options) {
  return std::make_unique<LocalSgdWork<T>>(problem, std::move(options));
}

template std::unique_ptr<ClientWork<float>> make_local_sgd(const Problem<float>&, LocalOptions);
template std::unique_ptr<ClientWork<double>> make_local_sgd(const Problem<double>&, LocalOptions);

fb_status make_local(const fb_problem& problem, const fb_local_config& config, fb_dtype dtype,
                     std::unique_ptr<fb_local>& local_out) {
  if (problem.family < FB_NET || problem.family > FB_LAYERS || problem.n_clients < 1 ||
      problem.n_clients > kMostClients || !valid_config(config, problem.n_clients)) {
    return FB_ERR_ARGUMENT;
  }
  return dtype == FB_F32 ? make_checked<float>(problem, config, local_out)
                         : make_checked<double>(problem, config, local_out);
}

fb_status make_custom_local(fb_gradient gradient, void* context, std::int64_t n_clients, const std::int64_t* samples,
                            const fb_local_config& config, fb_dtype dtype, std::int64_t dim,
                            std::unique_ptr<fb_local>& local_out) {
  if (gradient == nullptr || samples == nullptr || n_clients < 1 || n_clients > kMostClients || dim < 1 ||
      !valid_config(config, n_clients) ||
      std::any_of(
          samples, samples + n_clients,
          [](std::int64_t n) { return n < 1 || n > std::numeric_limits<std::int32_t>::max(); })) {
    return FB_ERR_ARGUMENT;
  }
  LocalOptions options;
  if (!read_options(config, n_clients, dim, [=](std::int64_t i) { return samples[i]; }, options)) {
    return FB_ERR_ARGUMENT;
  }
  const auto make = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    local_out = std::make_unique<CustomLocal<T>>(
        gradient, context, dim, std::vector<std::int64_t>(samples, samples + n_clients), std::move(options));
  };
  if (dtype == FB_F32) {
    make(static_cast<float*>(nullptr));
  } else {
    make(static_cast<double*>(nullptr));
  }
  return FB_OK;
}

}  // namespace fedbuff
