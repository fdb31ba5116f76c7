#include "clients/custom.hpp"

#include <numeric>
#include <stdexcept>
#include <string>

#include "clients/compress_task.hpp"
#include "clients/control_variates.hpp"
#include "numbers/philox.hpp"
#include "numbers/shuffle.hpp"

namespace fedbuff {

namespace {

template <class T>
void call(const CustomProblem<T>& problem, std::int64_t client, const std::vector<std::int64_t>& rows, const T* w,
          T* gradient_out) {
  const std::int32_t code =
      problem.gradient(client, static_cast<std::int64_t>(rows.size()), rows.data(), w, gradient_out, problem.context);
  if (code != 0) {
    throw std::runtime_error("gradient: it returned " + std::to_string(code) + " for client " + std::to_string(client));
  }
}

std::vector<std::int64_t> all_rows(std::int64_t n) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

template <class T>
class CustomWork final : public ClientWork<T> {
 public:
  CustomWork(CustomProblem<T> problem, LocalOptions options)
      : problem_(std::move(problem)), options_(std::move(options)) {}

  std::size_t scratch_bytes() const override { return compression_scratch(options_.compress, problem_.dim, sizeof(T)); }
  bool keeps_state() const override { return options_.keeps_state(); }
  double flops() const override { return 4.0 * static_cast<double>(options_.steps[0] * problem_.dim); }

  void run(const ClientTask<T>* tasks, std::int64_t n_tasks, void* scratch) override {
    for (std::int64_t i = 0; i < n_tasks; ++i) {
      const ClientTask<T>& task = tasks[i];
      const bool corrects = options_.has_control_variates();
      if (corrects) {
        make_shift(options_.method, problem_.dim, task.state, task.control, task.state_out);
      }
      run_one(*task.row, task.w, task.delta_out, corrects ? task.state_out : nullptr);
      if (corrects) {
        const LocalConfig config = options_.config(task.row->client, task.row->version);
        make_state(options_.method, config, problem_.dim, task.delta_out, task.state_out);
      }
      compress_task(options_, problem_.dim, task, scratch);
    }
  }

 private:
  void run_one(const ReplayRow& row, const T* start, T* delta_out, const T* shift) const {
    const auto dim = static_cast<std::size_t>(problem_.dim);
    const auto client = static_cast<std::size_t>(row.client);
    std::vector<T> w(start, start + dim);
    std::vector<T> gradient(dim);
    std::vector<T> velocity(dim);
    const LocalConfig config = options_.config(row.client, row.version);
    const Task task = options_.task(row.client, row.task);
    std::vector<std::int64_t> rows = all_rows(task.batch == 0 ? problem_.samples[client] : task.batch);
    const T momentum = static_cast<T>(config.momentum);
    const T decay = static_cast<T>(config.weight_decay);
    const T prox = static_cast<T>(config.prox);
    for (std::int64_t q = 0; q < config.steps; ++q) {
      if (task.batch != 0) {
        draw(task, q, rows);
      }
      const T lr = static_cast<T>(config.lr_at(q));
      call(problem_, row.client, rows, w.data(), gradient.data());
      for (std::size_t j = 0; shift != nullptr && j < dim; ++j) {
        gradient[j] -= shift[j];
      }
      for (std::size_t j = 0; j < dim; ++j) {
        velocity[j] = momentum * velocity[j] + (gradient[j] + decay * w[j] + prox * (w[j] - start[j]));
        w[j] -= lr * velocity[j];
      }
    }
    for (std::size_t j = 0; j < dim; ++j) {
      delta_out[j] = start[j] - w[j];
    }
    const T scale = static_cast<T>(config.scale);
    for (std::size_t j = 0; scale != 1 && j < dim; ++j) {
      delta_out[j] *= scale;
    }
  }

  void draw(const Task& task, std::int64_t step, std::vector<std::int64_t>& rows_out) const {
    const std::int64_t n_rows = problem_.samples[static_cast<std::size_t>(task.client)];
    const auto client = static_cast<std::uint32_t>(task.client), n = static_cast<std::uint32_t>(n_rows);
    if (task.steps_per_pass > 0) {
      const std::int64_t pass = step / task.steps_per_pass, first = step % task.steps_per_pass * task.batch;
      const Shuffle shuffle(task.seed, client, task.number, static_cast<std::uint32_t>(pass), n);
      rows_out.resize(static_cast<std::size_t>(task.batch_at(step, n_rows)));
      for (std::size_t i = 0; i < rows_out.size(); ++i) {
        rows_out[i] = shuffle.at(static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i));
      }
      return;
    }
    for (std::size_t i = 0; i < rows_out.size(); i += 4) {
      const PhiloxBlock block = philox4x32(task.seed, client, task.number, static_cast<std::uint32_t>(step),
                                           stream_word(Stream::Batches, static_cast<std::uint32_t>(i / 4)));
      for (std::size_t k = 0; k < 4 && i + k < rows_out.size(); ++k) {
        rows_out[i + k] = index_below(block.word[k], n);
      }
    }
  }

  const CustomProblem<T> problem_;
  const LocalOptions options_;
};

}  // namespace

template <class T>
std::unique_ptr<ClientWork<T>> make_custom(CustomProblem<T> problem, LocalOptions options) {
  return std::make_unique<CustomWork<T>>(std::move(problem), std::move(options));
}

template <class T>
void custom_gradient(const CustomProblem<T>& problem, const double* weight, const T* w, T* gradient_out) {
  const auto dim = static_cast<std::size_t>(problem.dim);
  std::vector<T> one(dim);
  std::vector<double> sum(dim);
  for (std::size_t i = 0; i < problem.samples.size(); ++i) {
    call(problem, static_cast<std::int64_t>(i), all_rows(problem.samples[i]), w, one.data());
    for (std::size_t j = 0; j < dim; ++j) {
      sum[j] += weight[i] * static_cast<double>(one[j]);
    }
  }
  for (std::size_t j = 0; j < dim; ++j) {
    gradient_out[j] = static_cast<T>(sum[j]);
  }
}

template std::unique_ptr<ClientWork<float>> make_custom(CustomProblem<float>, LocalOptions);
template std::unique_ptr<ClientWork<double>> make_custom(CustomProblem<double>, LocalOptions);
template void custom_gradient(const CustomProblem<float>&, const double*, const float*, float*);
template void custom_gradient(const CustomProblem<double>&, const double*, const double*, double*);

}  // namespace fedbuff
