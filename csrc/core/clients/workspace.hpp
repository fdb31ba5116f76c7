// A problem that many threads work on: scratch memory for each call, and the gradient over all clients.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "compiler/export.hpp"
#include "kernels/problem.hpp"

namespace fedbuff {

template <class T>
class Workspace {
 public:
  explicit Workspace(const Problem<T>& problem) : problem_(problem) {}

  // delta_out = w - (w after config.steps local steps); delta_out may not overlap w. `shift` as in LocalTask.
  FB_CORE_API void local_sgd(const LocalConfig& config, const Task& task, const T* w, T* delta_out,
                             const T* shift = nullptr);

  // Value of f_client; its gradient into gradient_out unless null.
  FB_CORE_API double client_gradient(std::int64_t client, const T* w, T* gradient_out);

  // The same for f = sum_i client_weight[i] f_i. Clients are cut into parts that depend on the problem alone, each part
  // is summed in double, and the parts are added in order, as they become ready: the bits do not depend on `threads`.
  // `after_part`, unless null, is called on the caller's thread after each part that it did; where it throws, no
  // further part is begun, gradient_out stays as it was, and the exception comes out.
  FB_CORE_API double gradient(const T* w, T* gradient_out, int threads, void (*after_part)() = nullptr);

  // Rows [begin, end) that are put in the right class.
  FB_CORE_API std::int64_t count_correct(std::int64_t begin, std::int64_t end, const T* w);

  const Problem<T>& problem() const { return problem_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;
  class Loan;

  Memory take();
  void give_back(Memory memory);

  Problem<T> problem_;
  std::mutex mutex_;
  std::vector<Memory> idle_;  // room for all that were made, so that giving back cannot fail
  std::size_t n_made_ = 0;
};

extern template class Workspace<float>;
extern template class Workspace<double>;

}  // namespace fedbuff
