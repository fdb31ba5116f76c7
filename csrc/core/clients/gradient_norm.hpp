// |grad f(w)|^2 of a built-in problem at one model after the other, on one thread.
//
// A quadratic has the closed form grad f(w) = H (w - c), H = sum_i p_i A_i, or H w - g, g = sum_i p_i A_i c_i, where
// the clients' curvatures differ: H and c or g are made once, in double, in the order of the clients. A model then
// costs O(d), O(d^2) where A is dense, instead of a pass over all clients. Every other problem takes
// Workspace::gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/export.hpp"
#include "kernels/problem.hpp"
#include "clients/workspace.hpp"

namespace fedbuff {

template <class T>
class GradientNorm {
 public:
  FB_CORE_API explicit GradientNorm(const Problem<T>& problem);
  FB_CORE_API double squared(const T* w);

 private:
  double quadratic(const T* w);

  Workspace<T> work_;
  std::vector<T> gradient_;        // (dim), Net and Sparse
  std::vector<double> curvature_;  // H: (1), (dim) or (dim, dim)
  std::vector<double> center_;     // c, where the curvature is shared
  std::vector<double> linear_;     // g, where it is not
  std::vector<double> moved_;      // (dim) w - c or w
};

extern template class GradientNorm<float>;
extern template class GradientNorm<double>;

}  // namespace fedbuff
