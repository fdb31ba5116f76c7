// The table of kernels: one per CPU level and dtype, chosen once, above every loop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace fedbuff {

// How the sum of a buffer moves the model.
//   SGD   v <- momentum v + sum / norm;  w <- w - lr v        (momentum 0: w <- w - (lr / norm) sum, v unused)
//   Adam  as in the paper of that name on g = sum / norm + weight_decay w, with bias correction
struct StepConfig {
  double lr;
  double norm;
  double momentum;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  std::int64_t step;  // 1 at the first server step; Adam's bias correction
};

// Every function is total on finite and non-finite numbers, allocates nothing and throws nothing. Outputs are last and
// end in _out; they alias no input unless said.
template <class T>
struct Kernels {
  // Bytes of scratch memory that one thread needs, 64-byte aligned and zero before its first use with a problem.
  std::size_t (*scratch_bytes)(const Problem<T>& problem);

  // delta_out = w - (w after config.steps steps), for each task. What a task gives does not depend on the others.
  void (*local_sgd)(const Problem<T>& problem, const LocalConfig& config, const LocalTask<T>* tasks,
                    std::int64_t n_tasks, void* scratch);

  // sum (dim), unless null, += the gradient at w of the sum of weight[i] f_i over clients begin .. end; its value is
  // returned. A null weight is one. Rows in their order; a few hundred at a time in T, those sums in double.
  double (*clients_gradient)(const Problem<T>& problem, std::int64_t begin, std::int64_t end, const double* weight,
                             const T* w, void* scratch, double* sum);

  // How many of rows [begin, end) the model puts in the right class. Net and Sparse with Logistic or Softmax heads.
  std::int64_t (*count_correct)(const Problem<T>& problem, std::int64_t begin, std::int64_t end, const T* w,
                                void* scratch);

  // sum_out = sum + weight * (delta + (current - start)), the inner bracket only where start is not null; a null sum is
  // zero. Returns whether every delta was finite. sum_out may be sum.
  bool (*accumulate)(std::int64_t dim, const T* sum, const T* delta, T weight, const T* current, const T* start,
                     T* sum_out);

  // w_out = w - scale * sum_k weight[k] * delta[k], one pass, added in the order of k. w_out may be w.
  void (*aggregate)(std::int64_t dim, const T* w, std::int64_t n_deltas, const T* const* delta, const T* weight,
                    T scale, T* w_out);

  // Moves w to w_out (which may be w) by the sum of a buffer. velocity (dim) is read and written where momentum != 0.
  void (*sgd_step)(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* velocity, T* w_out);

  // The same with Adam; first and second (dim) are its moments.
  void (*adam_step)(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second,
                    T* w_out);

  // Whether no element is NaN or infinite.
  bool (*all_finite)(std::int64_t dim, const T* x);

  // sum of x[j] * y[j] in double: norms and distances.
  double (*dot)(std::int64_t dim, const T* x, const T* y);
};

struct KernelTable {
  const char* name;
  Kernels<float> f32;
  Kernels<double> f64;

  template <class T>
  const Kernels<T>& of() const {
    if constexpr (sizeof(T) == 4) {
      return f32;
    } else {
      return f64;
    }
  }
};

}  // namespace fedbuff
