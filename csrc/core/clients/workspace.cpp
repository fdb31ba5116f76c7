#include "clients/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "kernels/dispatch.hpp"
#include "memory/huge_pages.hpp"
#include "threads/parallel.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kMostParts = 64;
constexpr std::int64_t kFewestParts = 8;                    // where there are as many clients and they fit at all
constexpr std::int64_t kPartBytes = std::int64_t{1} << 21;  // of partial sums at most, so that they stay in a cache
constexpr std::int64_t kMostPartBytes = std::int64_t{1} << 28;

std::int64_t count_parts(std::int64_t n_clients, std::int64_t dim) {
  const std::int64_t few = std::max<std::int64_t>(2, std::min(kFewestParts, kMostPartBytes / (8 * dim)));
  const std::int64_t fit = std::max(few, kPartBytes / (8 * dim));
  return std::min({n_clients, kMostParts, fit});
}

// How many threads a pass over all rows is worth: each must have about ten microseconds of it, since to wake a thread
// takes as long.
template <class T>
int worth_threads(const Problem<T>& problem, int threads) {
  constexpr double kNumbersAThread = 1 << 16;
  if (problem.family == Family::Layers) {
    return threads;  // what a row takes does not follow from the sizes
  }
  const std::int64_t n = problem.n_clients;
  const double rows = static_cast<double>(problem.family == Family::Quadratic ? n : problem.offsets[n]);
  const double numbers = problem.family == Family::Sparse ? static_cast<double>(problem.row_start[problem.offsets[n]])
                                                          : rows * static_cast<double>(problem.dim);
  return static_cast<int>(std::min<double>(threads, 1.0 + numbers / kNumbersAThread));
}

// The first client of a part. Where parts are many, later ones are smaller, down to a seventh of the first, so that
// threads that take them in turn end at about the same time.
std::int64_t part_begin(std::int64_t part, std::int64_t parts, std::int64_t n_clients) {
  const double x = static_cast<double>(part) / static_cast<double>(parts);
  const double share = parts > kFewestParts ? x * (1.75 - 0.75 * x) : x;
  return static_cast<std::int64_t>(share * static_cast<double>(n_clients));
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
  Memory memory(HugePages<char>().allocate(bytes));
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
void Workspace<T>::local_sgd(const LocalConfig& config, const Task& task, const T* w, T* delta_out, const T* shift) {
  const Loan scratch(*this);
  const LocalTask<T> one{task, w, delta_out, shift};
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
double Workspace<T>::gradient(const T* w, T* gradient_out, int threads, void (*after_part)()) {
  const std::size_t dim = gradient_out == nullptr ? 0 : static_cast<std::size_t>(problem_.dim);
  const std::int64_t parts = count_parts(problem_.n_clients, problem_.dim);
  const std::unique_ptr<double[]> sum(new double[static_cast<std::size_t>(parts) * dim]);  // (parts, dim)
  std::vector<double> value(static_cast<std::size_t>(parts));
  std::vector<char> finished(value.size());
  std::mutex mutex;
  std::size_t next = 0;  // the first part that was not added to the others yet
  const std::thread::id caller = std::this_thread::get_id();
  run_parallel(parts, worth_threads(problem_, threads), [&](std::int64_t part) {
    const auto at = static_cast<std::size_t>(part);
    double* own = dim == 0 ? nullptr : sum.get() + at * dim;
    std::fill(own, own + dim, 0.0);
    const std::int64_t begin = part_begin(part, parts, problem_.n_clients);
    const std::int64_t end = part_begin(part + 1, parts, problem_.n_clients);
    if (begin < end) {
      const Loan scratch(*this);
      value[at] =
          kernels().of<T>().clients_gradient(problem_, begin, end, problem_.client_weight, w, scratch.get(), own);
    }
    if (after_part != nullptr && std::this_thread::get_id() == caller) {
      after_part();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    finished[at] = 1;
    for (; next < finished.size() && finished[next] != 0; ++next) {
      if (next > 0) {
        value[0] += value[next];
        const double* more = sum.get() + next * dim;
        for (std::size_t j = 0; j < dim; ++j) {
          sum[j] += more[j];
        }
      }
    }
  });
  std::transform(sum.get(), sum.get() + dim, gradient_out, [](double total) { return static_cast<T>(total); });
  return value[0];
}

template class Workspace<float>;
template class Workspace<double>;

}  // namespace fedbuff
