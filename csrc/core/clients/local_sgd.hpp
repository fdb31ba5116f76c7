// A problem and a way to work on it: what a client does with the model that it downloaded.
#pragma once

#include <cstdint>
#include <memory>

#include "clients/client_work.hpp"
#include "clients/local_options.hpp"
#include "compiler/export.hpp"
#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"
#include "numbers/field_checks.hpp"

// All calls are thread-safe.
struct fb_local {
  virtual ~fb_local() = default;
  // Throws where memory or the host's gradient fails.
  virtual fb_status delta(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task,
                          std::int64_t version, const void* w, void* delta_out) = 0;
  // With a method that keeps a state of clients, and only then; control is null where the method has none.
  virtual fb_status delta_state(fb_dtype dtype, std::int64_t dim, std::int64_t client, std::uint32_t task,
                                std::int64_t version, const void* w, const void* control, void* state,
                                void* delta_out) = 0;
  virtual std::int64_t dim() const = 0;
  virtual std::int64_t n_clients() const = 0;
};

namespace fedbuff {

// The problem's arrays must outlive it. Throws std::bad_alloc.
template <class T>
FB_CORE_API std::unique_ptr<fb_local> make_local(const Problem<T>& problem, LocalOptions options);

// Local SGD on a built-in problem, for the replay engine.
template <class T>
FB_CORE_API std::unique_ptr<ClientWork<T>> make_local_sgd(const Problem<T>& problem, LocalOptions options);

// From the C ABI's structs, which were read and not checked; null, and `checks` says why, where they make no sense.
std::unique_ptr<fb_local> make_local(const fb_problem& problem, const fb_local_config& config, fb_dtype dtype,
                                     FieldChecks& checks);
std::unique_ptr<fb_local> make_custom_local(fb_gradient gradient, void* context, std::int64_t n_clients,
                                            const std::int64_t* samples, const fb_local_config& config, fb_dtype dtype,
                                            std::int64_t dim, FieldChecks& checks);

}  // namespace fedbuff
