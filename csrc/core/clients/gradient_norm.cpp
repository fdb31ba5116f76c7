#include "clients/gradient_norm.hpp"

#include "kernels/dispatch.hpp"

namespace fedbuff {

namespace {

// out[j] = sum_k a[j, k] x[k], for a scalar, diagonal or dense a.
template <class A>
double product(Curvature form, const A* a, const double* x, std::int64_t dim, std::int64_t j) {
  if (form != Curvature::Dense) {
    return static_cast<double>(a[form == Curvature::Diagonal ? j : 0]) * x[j];
  }
  double sum = 0;
  for (std::int64_t k = 0; k < dim; ++k) {
    sum += static_cast<double>(a[j * dim + k]) * x[k];
  }
  return sum;
}

}  // namespace

template <class T>
GradientNorm<T>::GradientNorm(const Problem<T>& problem) : work_(problem) {
  const std::int64_t dim = problem.dim;
  if (problem.family != Family::Quadratic) {
    gradient_.resize(static_cast<std::size_t>(dim));
    return;
  }
  const bool shared = problem.curvature_shared;
  const std::int64_t entries = problem.curvature_form == Curvature::Scalar     ? 1
                               : problem.curvature_form == Curvature::Diagonal ? dim
                                                                               : dim * dim;
  moved_.resize(static_cast<std::size_t>(dim));
  curvature_.resize(static_cast<std::size_t>(entries));
  (shared ? center_ : linear_).resize(static_cast<std::size_t>(dim));
  for (std::int64_t e = 0; shared && e < entries; ++e) {
    curvature_[static_cast<std::size_t>(e)] = static_cast<double>(problem.curvature[e]);
  }
  for (std::int64_t i = 0; i < problem.n_clients; ++i) {
    const double weight = problem.client_weight[i];
    const T* c = problem.center + i * dim;
    const T* a = problem.curvature + (shared ? 0 : i * entries);
    for (std::int64_t j = 0; j < dim; ++j) {
      moved_[static_cast<std::size_t>(j)] = static_cast<double>(c[j]);
    }
    for (std::int64_t j = 0; j < dim; ++j) {
      if (shared) {
        center_[static_cast<std::size_t>(j)] += weight * static_cast<double>(c[j]);
      } else {
        linear_[static_cast<std::size_t>(j)] += weight * product(problem.curvature_form, a, moved_.data(), dim, j);
      }
    }
    for (std::int64_t e = 0; !shared && e < entries; ++e) {
      curvature_[static_cast<std::size_t>(e)] += weight * static_cast<double>(a[e]);
    }
  }
}

template <class T>
double GradientNorm<T>::squared(const T* w) {
  const Problem<T>& problem = work_.problem();
  if (problem.family == Family::Quadratic) {
    return quadratic(w);
  }
  work_.gradient(w, gradient_.data(), 1);
  return kernels().of<T>().dot(problem.dim, gradient_.data(), gradient_.data());
}

template <class T>
double GradientNorm<T>::quadratic(const T* w) {
  const Problem<T>& problem = work_.problem();
  const std::int64_t dim = problem.dim;
  for (std::int64_t j = 0; j < dim; ++j) {
    const std::size_t at = static_cast<std::size_t>(j);
    moved_[at] = static_cast<double>(w[j]) - (problem.curvature_shared ? center_[at] : 0.0);
  }
  double sum = 0;
  for (std::int64_t j = 0; j < dim; ++j) {
    const double g = product(problem.curvature_form, curvature_.data(), moved_.data(), dim, j) -
                     (problem.curvature_shared ? 0.0 : linear_[static_cast<std::size_t>(j)]);
    sum += g * g;
  }
  return sum;
}

template class GradientNorm<float>;
template class GradientNorm<double>;

}  // namespace fedbuff
