// Clients whose gradient is a compiled function of the caller's, run inside the engine without Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clients/client_work.hpp"
#include "clients/local_options.hpp"
#include "compiler/export.hpp"
#include "kernels/problem.hpp"

namespace fedbuff {

// gradient_out (dim) = the mean gradient at w over n_rows of the client's rows, numbered within the client. Returns 0,
// or a code that ends the run. Called from many threads at once.
template <class T>
using GradientFunction = std::int32_t (*)(std::int64_t client, std::int64_t n_rows, const std::int64_t* rows,
                                          const T* w, T* gradient_out, void* context);

template <class T>
struct CustomProblem {
  GradientFunction<T> gradient;
  void* context;
  std::int64_t dim;
  std::vector<std::int64_t> samples;  // rows of each client
};

// Local SGD with it.
template <class T>
FB_CORE_API std::unique_ptr<ClientWork<T>> make_custom(CustomProblem<T> problem, LocalOptions options);

// gradient_out = sum_i weight[i] * (full gradient of client i), added in double in the order of clients.
// Throws std::runtime_error with the client where the function returns a code.
template <class T>
FB_CORE_API void custom_gradient(const CustomProblem<T>& problem, const double* weight, const T* w, T* gradient_out);

}  // namespace fedbuff
