// SCAFFOLD and FedDyn around a task's local steps: what is taken off the gradients, and the client's state afterwards.
//
//            shift, off every gradient    state_out
//   SCAFFOLD state - control              shift + delta / (steps lr)
//   FedDyn   state                        shift + alpha delta
#pragma once

#include <algorithm>
#include <cstdint>

#include "clients/local_options.hpp"
#include "kernels/dispatch.hpp"

namespace fedbuff {

// shift_out from the client's state, null for zeros, and the server's control variate; all (dim). shift_out may be
// state.
template <class T>
void make_shift(Method method, std::int64_t dim, const T* state, const T* control, T* shift_out) {
  if (method == Method::Scaffold) {
    kernels().of<T>().accumulate(dim, state, control, T(-1), nullptr, nullptr, shift_out);
  } else if (state == nullptr) {
    std::fill_n(shift_out, dim, T(0));
  } else if (state != shift_out) {
    std::copy_n(state, dim, shift_out);
  }
}

// The shift becomes the state after a task with this delta.
template <class T>
void make_state(Method method, const LocalConfig& config, std::int64_t dim, const T* delta, T* shift) {
  const double rate = method == Method::Scaffold ? 1.0 / (static_cast<double>(config.steps) * config.lr) : config.prox;
  kernels().of<T>().accumulate(dim, shift, delta, static_cast<T>(rate), nullptr, nullptr, shift);
}

}  // namespace fedbuff
