// The C ABI: checks what a C caller may get wrong, and turns exceptions into status codes. No algorithm here.
#include <cmath>
#include <new>
#include <type_traits>
#include <vector>

#include "dispatch.hpp"
#include "fedbuff/fedbuff.h"
#include "server.hpp"

namespace {

// The one place where exceptions end.
template <class Body>
fb_status guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return FB_ERR_MEMORY;
  } catch (...) {
    return FB_ERR_ARGUMENT;
  }
}

bool valid_dtype(fb_dtype dtype) { return dtype == FB_F32 || dtype == FB_F64; }

bool finite_at_least(double x, double low) { return std::isfinite(x) && x >= low; }

bool valid_rule(const fb_rule* rule) {
  return rule != nullptr && rule->size >= sizeof(fb_rule) && rule->base >= FB_BASE_START &&
         rule->base <= FB_BASE_CURRENT && rule->norm >= FB_NORM_ONE && rule->norm <= FB_NORM_CLIENTS &&
         (rule->optimizer == FB_SGD || rule->optimizer == FB_ADAM) && rule->buffer_size >= 1 &&
         (rule->norm != FB_NORM_CLIENTS || rule->n_clients >= 1) && rule->max_staleness >= -1 &&
         finite_at_least(rule->lr, 0) && finite_at_least(rule->momentum, 0) && finite_at_least(rule->beta1, 0) &&
         finite_at_least(rule->beta2, 0) && finite_at_least(rule->epsilon, 0) && finite_at_least(rule->weight_decay, 0);
}

// Calls body with a typed null pointer for the dtype: static_cast<T*>.
template <class Body>
void with_dtype(fb_dtype dtype, Body body) {
  if (dtype == FB_F32) {
    body(static_cast<float*>(nullptr));
  } else {
    body(static_cast<double*>(nullptr));
  }
}

}  // namespace

extern "C" {

uint32_t fb_abi_version(void) { return FB_ABI_VERSION; }

const char* fb_level(void) { return fedbuff::kernels().name; }

const char* fb_status_text(fb_status status) {
  switch (status) {
    case FB_OK: return "ok";
    case FB_ERR_ARGUMENT: return "an argument is null or out of range";
    case FB_ERR_MEMORY: return "out of memory";
    case FB_ERR_NEVER_GIVEN: return "the server never gave out that version";
    case FB_ERR_NOTHING_DUE: return "that version has no download left to return";
    case FB_ERR_NOT_FINITE: return "the delta holds a NaN or an infinity";
    case FB_ERR_ZERO_NORM: return "the weights of this buffer sum to zero";
    case FB_ERR_SHORT_TABLE: return "the table of staleness weights is too short";
  }
  return "unknown status";
}

fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0, fb_server** server_out) {
  if (!valid_rule(rule) || !valid_dtype(dtype) || dim < 1 || w0 == nullptr || server_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    *server_out = fedbuff::make_server(*rule, dtype, dim, w0).release();
    return FB_OK;
  });
}

void fb_server_destroy(fb_server* server) { delete server; }

int64_t fb_server_dim(const fb_server* server) { return server->dim(); }
int64_t fb_server_version(const fb_server* server) { return server->version(); }
int64_t fb_server_fill(const fb_server* server) { return server->fill(); }
int64_t fb_server_dropped(const fb_server* server) { return server->dropped(); }
int64_t fb_server_outstanding(const fb_server* server) { return server->outstanding(); }
int64_t fb_server_live_models(const fb_server* server) { return server->live_models(); }

fb_model* fb_server_model(fb_server* server) { return server->download(nullptr); }
const void* fb_model_data(const fb_model* model) { return model->data; }
void fb_model_release(fb_model* model) {
  if (model != nullptr) {
    model->release();
  }
}

fb_status fb_server_download(fb_server* server, int64_t* version_out, fb_model** model_out) {
  if (server == nullptr || version_out == nullptr || model_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  *model_out = server->download(version_out);
  return FB_OK;
}

fb_status fb_server_cancel(fb_server* server, int64_t version) {
  return server == nullptr ? FB_ERR_ARGUMENT : server->cancel(version);
}

fb_status fb_server_set_staleness(fb_server* server, const double* weight, int64_t n_weights) {
  if (server == nullptr || weight == nullptr || n_weights < 1) {
    return FB_ERR_ARGUMENT;
  }
  for (int64_t t = 0; t < n_weights; ++t) {
    if (!finite_at_least(weight[t], 0)) {
      return FB_ERR_ARGUMENT;
    }
  }
  return guarded([&] {
    server->set_staleness(weight, n_weights);
    return FB_OK;
  });
}

fb_status fb_server_upload(fb_server* server, const void* delta, int64_t version, double e, int32_t* outcome_out) {
  if (server == nullptr || delta == nullptr || !finite_at_least(e, 0)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->upload(delta, version, e, outcome_out); });
}

fb_status fb_server_clone(fb_server* server, fb_server** server_out) {
  if (server == nullptr || server_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    *server_out = server->clone().release();
    return FB_OK;
  });
}

fb_status fb_server_get_state(fb_server* server, fb_server_state* state) {
  if (server == nullptr || state == nullptr || state->size < sizeof(fb_server_state)) {
    return FB_ERR_ARGUMENT;
  }
  server->get_state(*state);
  return FB_OK;
}

fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                            fb_server** server_out) {
  if (!valid_rule(rule) || !valid_dtype(dtype) || dim < 1 || state == nullptr ||
      state->size < sizeof(fb_server_state) || state->w == nullptr || state->sum == nullptr || state->version < 0 ||
      state->fill < 0 || state->fill >= rule->buffer_size || state->n_due < 0 || server_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  const bool momentum = rule->optimizer == FB_ADAM || rule->momentum != 0;
  if ((momentum && state->first == nullptr) || (rule->optimizer == FB_ADAM && state->second == nullptr)) {
    return FB_ERR_ARGUMENT;
  }
  for (int64_t i = 0; i < state->n_due; ++i) {
    const int64_t version = state->due_version[i];
    const bool needs_model = rule->base == FB_BASE_CURRENT && version != state->version;
    if (version < 0 || version > state->version || (i > 0 && version <= state->due_version[i - 1]) ||
        state->due[i] < 1 || (needs_model && state->kept[i] == nullptr)) {
      return FB_ERR_ARGUMENT;
    }
  }
  return guarded([&] {
    auto server = fedbuff::make_server(*rule, dtype, dim, state->w);
    server->restore(*state);
    *server_out = server.release();
    return FB_OK;
  });
}

fb_status fb_accumulate(fb_dtype dtype, int64_t dim, const void* sum, const void* delta, double weight, void* sum_out) {
  if (!valid_dtype(dtype) || dim < 1 || delta == nullptr || sum_out == nullptr || !std::isfinite(weight)) {
    return FB_ERR_ARGUMENT;
  }
  bool finite = true;
  with_dtype(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    finite = fedbuff::kernels().of<T>().accumulate(dim, static_cast<const T*>(sum), static_cast<const T*>(delta),
                                                   static_cast<T>(weight), nullptr, nullptr, static_cast<T*>(sum_out));
  });
  return finite ? FB_OK : FB_ERR_NOT_FINITE;
}

fb_status fb_step(fb_dtype dtype, int64_t dim, const void* w, const void* sum, double scale, void* w_out) {
  if (!valid_dtype(dtype) || dim < 1 || w == nullptr || sum == nullptr || w_out == nullptr || !std::isfinite(scale)) {
    return FB_ERR_ARGUMENT;
  }
  with_dtype(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    fedbuff::StepConfig config{};
    config.lr = scale;
    config.norm = 1;
    fedbuff::kernels().of<T>().sgd_step(dim, static_cast<const T*>(w), static_cast<const T*>(sum), config, nullptr,
                                        static_cast<T*>(w_out));
  });
  return FB_OK;
}

fb_status fb_aggregate(fb_dtype dtype, int64_t dim, const void* w, int64_t n_deltas, const void* const* delta,
                       const void* weight, double scale, void* w_out) {
  if (!valid_dtype(dtype) || dim < 1 || w == nullptr || n_deltas < 0 || w_out == nullptr || !std::isfinite(scale) ||
      (n_deltas > 0 && (delta == nullptr || weight == nullptr))) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    with_dtype(dtype, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      std::vector<const T*> typed(static_cast<std::size_t>(n_deltas));
      for (std::size_t k = 0; k < typed.size(); ++k) {
        typed[k] = static_cast<const T*>(delta[k]);
      }
      fedbuff::kernels().of<T>().aggregate(dim, static_cast<const T*>(w), n_deltas, typed.data(),
                                           static_cast<const T*>(weight), static_cast<T>(scale),
                                           static_cast<T*>(w_out));
    });
    return FB_OK;
  });
}

}  // extern "C"
