#include "workspace.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "dispatch.hpp"
#include "parallel.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kMostParts = 32;
constexpr std::int64_t kFewestParts = 8;                    // where there are as many clients and they fit at all
constexpr std::int64_t kPartBytes = std::int64_t{1} << 22;  // of partial sums: what more of them cost would show
constexpr std::int64_t kMostPartBytes = std::int64_t{1} << 28;

std::int64_t count_parts(std::int64_t n_clients, std::int64_t dim) {
  const std::int64_t few = std::max<std::int64_t>(2, std::min(kFewestParts, kMostPartBytes / (8 * dim)));
  const std::int64_t fit = std::max(few, kPartBytes / (8 * dim));
  return std::min({n_clients, kMostParts, fit});
}

}  // namespace

// Scratch memory for the time of one call.
template <class T>
class Workspace<T>::Loan {
 public:
  explicit Loan(Workspace& owner) : owner_(owner), memory_(owner.take()) {}
  ~Loan() { owner_.give_back(std::move(memory_)); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  void* get() const { return memory_.get(); }

 private:
  Workspace& owner_;
  Memory memory_;
};

template <class T>
typename Workspace<T>::Memory Workspace<T>::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      Memory memory = std::move(idle_.back());
      idle_.pop_back();
      return memory;
    }
  }
  const std::size_t bytes = std::max<std::size_t>(64, kernels().of<T>().scratch_bytes(problem_));
  Memory memory(std::aligned_alloc(64, bytes));
  if (!memory) {
    throw std::bad_alloc();
  }
  std::memset(memory.get(), 0, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.reserve(++n_made_);
  return memory;
}

template <class T>
void Workspace<T>::give_back(Memory memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.size() < idle_.capacity()) {
    idle_.push_back(std::move(memory));
  }
}

template <class T>
void Workspace<T>::local_sgd(const LocalConfig& config, const Task& task, const T* w, T* delta_out) {
  const Loan scratch(*this);
  const LocalTask<T> one{task, w, delta_out};
  kernels().of<T>().local_sgd(problem_, config, &one, 1, scratch.get());
}

template <class T>
double Workspace<T>::client_gradient(std::int64_t client, const T* w, T* gradient_out) {
  const Loan scratch(*this);
  std::vector<double> sum(gradient_out == nullptr ? 0 : static_cast<std::size_t>(problem_.dim));
  const double value = kernels().of<T>().clients_gradient(problem_, client, client + 1, nullptr, w, scratch.get(),
                                                          gradient_out == nullptr ? nullptr : sum.data());
  for (std::size_t j = 0; j < sum.size(); ++j) {
    gradient_out[j] = static_cast<T>(sum[j]);
  }
  return value;
}

template <class T>
std::int64_t Workspace<T>::count_correct(std::int64_t begin, std::int64_t end, const T* w) {
  const Loan scratch(*this);
  return kernels().of<T>().count_correct(problem_, begin, end, w, scratch.get());
}

template <class T>
double Workspace<T>::gradient(const T* w, T* gradient_out, int threads) {
  const std::size_t dim = static_cast<std::size_t>(problem_.dim);
  const std::int64_t parts = count_parts(problem_.n_clients, problem_.dim);
  const bool wanted = gradient_out != nullptr;
  std::vector<double> sum(wanted ? static_cast<std::size_t>(parts) * dim : 0);
  std::vector<double> value(static_cast<std::size_t>(parts));
  run_parallel(parts, threads, [&](std::int64_t part) {
    const Loan scratch(*this);
    const std::int64_t begin = problem_.n_clients * part / parts;
    const std::int64_t end = problem_.n_clients * (part + 1) / parts;
    value[static_cast<std::size_t>(part)] =
        kernels().of<T>().clients_gradient(problem_, begin, end, problem_.client_weight, w, scratch.get(),
                                           wanted ? sum.data() + static_cast<std::size_t>(part) * dim : nullptr);
  });
  double f = 0;
  for (const double part : value) {
    f += part;
  }
  if (wanted) {
    for (std::size_t part = 1; part < value.size(); ++part) {
      for (std::size_t j = 0; j < dim; ++j) {
        sum[j] += sum[part * dim + j];
      }
    }
    std::transform(sum.begin(), sum.begin() + static_cast<std::ptrdiff_t>(dim), gradient_out,
                   [](double total) { return static_cast<T>(total); });
  }
  return f;
}

template class Workspace<float>;
template class Workspace<double>;

}  // namespace fedbuff
