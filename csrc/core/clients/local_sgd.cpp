#include "clients/local_sgd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "clients/compress_task.hpp"
#include "clients/control_variates.hpp"
#include "clients/custom.hpp"
#include "clients/read_problem.hpp"
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

template <class T>
std::unique_ptr<fb_local> make_checked(const fb_problem& given, const fb_local_config& config, FieldChecks& checks) {
  GivenWork<T> work;
  read_work(given, config, checks, work);
  return checks.ok() ? std::make_unique<Local<T>>(work.problem, std::move(work.options), std::move(work.plan))
                     : nullptr;
}

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

std::unique_ptr<fb_local> make_local(const fb_problem& problem, const fb_local_config& config, fb_dtype dtype,
                                     FieldChecks& checks) {
  return dtype == FB_F32 ? make_checked<float>(problem, config, checks) : make_checked<double>(problem, config, checks);
}

std::unique_ptr<fb_local> make_custom_local(fb_gradient gradient, void* context, std::int64_t n_clients,
                                            const std::int64_t* samples, const fb_local_config& config, fb_dtype dtype,
                                            std::int64_t dim, FieldChecks& checks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  checks.require(gradient != nullptr, "gradient", "a function, not null");
  checks.between("n_clients", n_clients, 1, kMost);
  checks.at_least("dim", dim, 1);
  if (!checks.each("samples", samples, n_clients, "1 to 2^31 - 1",
                   [](std::int64_t n) { return n >= 1 && n <= kMost; })) {
    return nullptr;
  }
  std::vector<std::int64_t> rows(samples, samples + n_clients);
  LocalOptions options;
  read_local(config, rows, dim, checks, options);
  if (!checks.ok()) {
    return nullptr;
  }
  if (dtype == FB_F32) {
    return std::make_unique<CustomLocal<float>>(gradient, context, dim, std::move(rows), std::move(options));
  }
  return std::make_unique<CustomLocal<double>>(gradient, context, dim, std::move(rows), std::move(options));
}

}  // namespace fedbuff
