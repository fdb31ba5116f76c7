// The C ABI: checks what a C caller may get wrong, and turns exceptions into status codes. No algorithm here.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "abi/check_rule.hpp"
#include "abi/error_text.hpp"
#include "abi/handles.hpp"
#include "server/buffer.hpp"
#include "kernels/dispatch.hpp"
#include "fedbuff/fedbuff.h"
#include "numbers/fixed_point.hpp"
#include "clients/local_sgd.hpp"
#include "clients/read_network.hpp"
#include "threads/core_chunks.hpp"
#include "abi/queue.hpp"
#include "server/rule.hpp"
#include "server/server.hpp"
#include "threads/ticket_queue.hpp"

static_assert(sizeof(std::size_t) >= 8, "sizes of the C ABI have 64 bits, and so must addresses");

namespace {

using fedbuff::create;
using fedbuff::destroy;
using fedbuff::guarded;
using fedbuff::is_float;
using fedbuff::read;
using fedbuff::read_struct;
using fedbuff::refuse;

constexpr int64_t kNoNumber = -1;
constexpr int64_t kMostCount = int64_t{1} << 62;  // of a state's counts: what is added to one stays within 64 bits

bool finite_at_least(double x, double low) { return std::isfinite(x) && x >= low; }

// A valid rule, for a model of a possible size.
fb_status read_rule(const fb_rule* given, fb_dtype dtype, std::int64_t dim, fb_rule& rule_out) {
  fedbuff::clear_error();
  if (const fb_status status = read_struct(given, rule_out); status != FB_OK) {
    return status;
  }
  fedbuff::FieldChecks checks;
  check_rule(rule_out, checks);
  checks.between("dtype", dtype, FB_F32, FB_F64);
  checks.at_least("dim", dim, 1);
  return refuse(checks);
}

// Reads an executor; none where it is null.
fb_status read_executor(const fb_executor* given, fb_executor& executor_out) {
  executor_out = fb_executor{};
  if (given == nullptr) {
    return FB_OK;
  }
  const fb_status status = read_struct(given, executor_out);
  return status != FB_OK ? status : executor_out.run == nullptr ? FB_ERR_ARGUMENT : FB_OK;
}

// Calls body with a typed null pointer for the dtype: static_cast<T*>.
template <class Body>
auto with_dtype(fb_dtype dtype, Body body) {
  return dtype == FB_F32 ? body(static_cast<float*>(nullptr)) : body(static_cast<double*>(nullptr));
}

// As destroy, but of an object of another process nothing is freed: its threads were using it.
template <class Handle>
void destroy_unless_lost(Handle** handle) {
  if (handle != nullptr && *handle != nullptr && (*handle)->is_lost()) {
    *handle = nullptr;
  }
  destroy(handle);
}

template <class Object>
fb_status set_executor(Object* object, const fb_executor* given) {
  if (object == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  fb_executor executor;
  const fb_status status = read_executor(given, executor);
  if (status != FB_OK) {
    return status;
  }
  return guarded([&] {
    object->set_executor(given == nullptr ? nullptr : &executor);
    return FB_OK;
  });
}

}  // namespace

extern "C" {

uint32_t fb_abi_version(void) { return FB_ABI_VERSION; }

fb_status fb_require_abi(uint32_t abi) { return abi == FB_ABI_VERSION ? FB_OK : FB_ERR_ABI; }

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
    case FB_ERR_ABI: return "a struct of another version of fedbuff.h than this library's";
    case FB_ERR_DTYPE: return "the array has another dtype";
    case FB_ERR_SIZE: return "the array has another size";
    case FB_ERR_OVERFLOW: return "a sum does not fit its type";
    case FB_ERR_TICKET: return "that ticket was never given out, or was used already";
    case FB_ERR_CLOSED: return "closed";
    case FB_ERR_EMPTY: return "no event is pending";
    case FB_ERR_HOST: return "a function of the host's failed";
    case FB_ERR_DIVERGED: return "the server step would make the model infinite or NaN";
    case FB_ERR_FORKED: return "the process was forked while other threads used it";
    case FB_ERR_CLIENT: return "the rule looks at clients, and this is none of them";
    case FB_ERR_BUSY: return "another thread is inside, or a function that it calls";
    case FB_ERR_FILE: return "the file cannot be read or written, or is of something else";
  }
  return "unknown status";
}

fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0, fb_server** server_out) {
  fb_rule read;
  if (const fb_status status = read_rule(rule, dtype, dim, read); status != FB_OK) {
    return status;
  }
  if (w0 == nullptr || server_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return create(server_out, [&] { return fedbuff::make_server(read, dtype, dim, w0); });
}

void fb_server_destroy(fb_server** server) { destroy_unless_lost(server); }

fb_status fb_server_close(fb_server* server) {
  if (server == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    server->close();
    return FB_OK;
  });
}

fb_dtype fb_server_dtype(const fb_server* server) { return server == nullptr ? -1 : server->dtype(); }
int64_t fb_server_dim(const fb_server* server) { return server == nullptr ? -1 : server->dim(); }
int64_t fb_server_version(const fb_server* server) {
  return read(server, [](auto& s) { return s.version(); }, kNoNumber);
}
int64_t fb_server_fill(const fb_server* server) {
  return read(server, [](auto& s) { return s.fill(); }, kNoNumber);
}
int64_t fb_server_dropped(const fb_server* server) {
  return read(server, [](auto& s) { return s.dropped(); }, kNoNumber);
}
int64_t fb_server_outstanding(const fb_server* server) {
  return read(server, [](auto& s) { return s.outstanding(); }, kNoNumber);
}
int64_t fb_server_live_models(const fb_server* server) {
  return read(server, [](auto& s) { return s.live_models(); }, kNoNumber);
}

fb_model* fb_server_model(fb_server* server) {
  return read(server, [](auto& s) { return s.model(); }, static_cast<fb_model*>(nullptr));
}
const void* fb_model_data(const fb_model* model) { return model == nullptr ? nullptr : model->data; }
void fb_model_release(fb_model* model) {
  if (model != nullptr) {
    model->release();
  }
}

fb_status fb_server_download(fb_server* server, int64_t* version_out, fb_model** model_out) {
  if (server == nullptr || version_out == nullptr || model_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->download(version_out, model_out); });
}

fb_status fb_server_download_to(fb_server* server, fb_dtype dtype, int64_t dim, void* w_out, int64_t* version_out) {
  if (server == nullptr || w_out == nullptr || version_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  if (dtype != server->dtype() || dim != server->dim()) {
    return dtype != server->dtype() ? FB_ERR_DTYPE : FB_ERR_SIZE;
  }
  fb_model* model = nullptr;
  const fb_status status = guarded([&] { return server->download(version_out, &model); });
  if (status == FB_OK) {
    std::memcpy(w_out, model->data, static_cast<std::size_t>(dim) * (dtype == FB_F32 ? sizeof(float) : sizeof(double)));
    model->release();
  }
  return status;
}

fb_status fb_server_cancel(fb_server* server, int64_t version) {
  return server == nullptr ? FB_ERR_ARGUMENT : guarded([&] { return server->cancel(version); });
}

fb_status fb_server_set_staleness(fb_server* server, const double* weight, int64_t n_weights) {
  if (server == nullptr || weight == nullptr || n_weights < 1 ||
      !std::all_of(weight, weight + n_weights, [](double s) { return finite_at_least(s, 0); })) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    server->set_staleness(weight, n_weights);
    return FB_OK;
  });
}

fb_status fb_server_set_staleness_at(fb_server* server, int64_t staleness, double weight) {
  if (server == nullptr || staleness < 0 || !finite_at_least(weight, 0)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    server->set_staleness_at(staleness, weight);
    return FB_OK;
  });
}

fb_status fb_server_take_ticket(fb_server* server, int64_t* ticket_out) {
  if (server == nullptr || ticket_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->take_ticket(ticket_out); });
}

fb_status fb_server_cancel_ticket(fb_server* server, int64_t ticket) {
  return server == nullptr ? FB_ERR_ARGUMENT : guarded([&] { return server->cancel_ticket(ticket); });
}

fb_status fb_server_upload(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, int64_t version, double e,
                           int64_t ticket, int32_t* outcome_out) {
  return fb_server_upload_from(server, dtype, dim, delta, version, e, -1, ticket, outcome_out);
}

fb_status fb_server_upload_from(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, int64_t version,
                                double e, int64_t client, int64_t ticket, int32_t* outcome_out) {
  if (server == nullptr || delta == nullptr || !finite_at_least(e, 0)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->upload(dtype, dim, delta, version, e, client, ticket, outcome_out); });
}

fb_status fb_server_upload_change(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, const void* change,
                                  int64_t version, double e, int64_t ticket, int32_t* outcome_out) {
  if (server == nullptr || delta == nullptr || change == nullptr || !finite_at_least(e, 0)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->upload_change(dtype, dim, delta, change, version, e, ticket, outcome_out); });
}

fb_status fb_server_step(fb_server* server) {
  return server == nullptr ? FB_ERR_ARGUMENT : guarded([&] { return server->step(); });
}

int64_t fb_server_overdue(const fb_server* server, int64_t n, int64_t* version_out, int64_t* tasks_out) {
  if (n < 0 || (n > 0 && (version_out == nullptr || tasks_out == nullptr))) {
    return kNoNumber;
  }
  return read(server, [&](auto& s) { return s.overdue(n, version_out, tasks_out); }, kNoNumber);
}

fb_status fb_server_upload_models(fb_server* server, fb_dtype dtype, int64_t dim, int64_t n, fb_model_upload* uploads) {
  if (server == nullptr || n < 0 || (n > 0 && uploads == nullptr)) {
    return FB_ERR_ARGUMENT;
  }
  const auto is_good = [&](const fb_model_upload& upload) {
    const std::int64_t* end = upload.part_end;
    return upload.start != nullptr && upload.part != nullptr && end != nullptr && upload.n_parts > 0 &&
           finite_at_least(upload.e, 0) && end[0] >= 0 && std::is_sorted(end, end + upload.n_parts) &&
           end[upload.n_parts - 1] == dim &&
           std::none_of(upload.part, upload.part + upload.n_parts, [](const void* part) { return part == nullptr; });
  };
  if (!std::all_of(uploads, uploads + n, is_good)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return server->upload_models(dtype, dim, n, uploads); });
}

fb_status fb_server_set_table(fb_server* server, void* memory, int64_t bytes) {
  return server == nullptr ? FB_ERR_ARGUMENT : guarded([&] { return server->set_table(memory, bytes); });
}

fb_status fb_server_set_executor(fb_server* server, const fb_executor* executor) {
  return set_executor(server, executor);
}

fb_status fb_server_clone(fb_server* server, fb_server** server_out) {
  if (server == nullptr || server_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return create(server_out, [&] { return server->clone(); });
}

fb_status fb_server_get_state(fb_server* server, fb_server_state* state) {
  fb_server_state wanted_state;
  if (const fb_status status = read_struct(state, wanted_state); status != FB_OK) {
    return status;
  }
  const bool wanted = wanted_state.due != nullptr;
  if (server == nullptr || wanted != (wanted_state.due_version != nullptr) ||
      wanted != (wanted_state.kept != nullptr)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    server->get_state(wanted_state);
    std::memcpy(state, &wanted_state, std::min<std::size_t>(wanted_state.size, sizeof wanted_state));
    return FB_OK;
  });
}

fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                            fb_server** server_out) {
  fb_rule r;
  fb_server_state s;
  if (const fb_status status = read_rule(rule, dtype, dim, r); status != FB_OK) {
    return status;
  }
  if (const fb_status status = read_struct(state, s); status != FB_OK) {
    return status;
  }
  if (s.w == nullptr || s.sum == nullptr || s.version < 0 || s.version > kMostCount || s.dropped < 0 ||
      s.dropped > kMostCount || s.fill < 0 || (r.trigger == FB_TRIGGER_BUFFER && s.fill >= r.buffer_size) ||
      s.fill > kMostCount || s.n_due < 0 || server_out == nullptr ||
      (s.n_due > 0 && (s.due == nullptr || s.due_version == nullptr || s.kept == nullptr))) {
    return FB_ERR_ARGUMENT;
  }
  if (s.staleness < 0 || s.n_arrays < 0 || (s.n_arrays > 0 && s.arrays == nullptr)) {
    return FB_ERR_ARGUMENT;
  }
  for (int64_t i = 0; i < s.n_arrays; ++i) {
    if (s.arrays[i].name == nullptr || s.arrays[i].data == nullptr) {
      return FB_ERR_ARGUMENT;
    }
  }
  int64_t n_tasks = 0;
  for (int64_t i = 0; i < s.n_due; ++i) {
    const int64_t version = s.due_version[i];
    const bool needs_model = fedbuff::needs_start(r) && version != s.version;
    if (version < 0 || version > s.version || (i > 0 && version <= s.due_version[i - 1]) || s.due[i] < 1 ||
        s.due[i] > kMostCount - n_tasks || (needs_model && s.kept[i] == nullptr)) {
      return FB_ERR_ARGUMENT;
    }
    n_tasks += s.due[i];
  }
  return guarded([&] {
    auto server = fedbuff::make_server(r, dtype, dim, s.w);
    const fb_status status = server->restore(s);
    if (status == FB_OK) {
      *server_out = server.release();
    }
    return status;
  });
}

fb_status fb_buffer_create(fb_dtype dtype, int64_t dim, double unit, fb_buffer** buffer_out) {
  fedbuff::clear_error();
  fedbuff::FieldChecks checks;
  checks.between("dtype", dtype, FB_F32, FB_F64);
  checks.at_least("dim", dim, 1);
  checks.not_negative("unit", unit);
  if (!checks.ok() || buffer_out == nullptr) {
    return checks.ok() ? FB_ERR_ARGUMENT : refuse(checks);
  }
  return create(buffer_out, [&] { return fedbuff::make_buffer(dtype, dim, unit); });
}

void fb_buffer_destroy(fb_buffer** buffer) { destroy_unless_lost(buffer); }

fb_status fb_buffer_close(fb_buffer* buffer) {
  if (buffer == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    buffer->close();
    return FB_OK;
  });
}

fb_status fb_buffer_set_executor(fb_buffer* buffer, const fb_executor* executor) {
  return set_executor(buffer, executor);
}

fb_status fb_buffer_take_ticket(fb_buffer* buffer, int64_t* ticket_out) {
  if (buffer == nullptr || ticket_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return buffer->take_ticket(ticket_out); });
}

fb_status fb_buffer_cancel_ticket(fb_buffer* buffer, int64_t ticket) {
  return buffer == nullptr ? FB_ERR_ARGUMENT : guarded([&] { return buffer->cancel_ticket(ticket); });
}

fb_status fb_buffer_add(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* delta, double weight,
                        int64_t ticket) {
  if (buffer == nullptr || delta == nullptr || !std::isfinite(weight)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return buffer->add(dtype, dim, delta, weight, ticket); });
}

int64_t fb_buffer_dim(const fb_buffer* buffer) { return buffer == nullptr ? -1 : buffer->dim(); }
int64_t fb_buffer_count(const fb_buffer* buffer) {
  return read(buffer, [](auto& b) { return b.count(); }, kNoNumber);
}
const void* fb_buffer_sum(fb_buffer* buffer) {
  return read(buffer, [](auto& b) { return b.sum(); }, static_cast<const void*>(nullptr));
}

fb_status fb_buffer_clear(fb_buffer* buffer) {
  if (buffer == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    buffer->clear();
    return FB_OK;
  });
}

fb_status fb_buffer_step(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* w, double lr, void* w_out) {
  if (buffer == nullptr || w == nullptr || w_out == nullptr || !std::isfinite(lr)) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return buffer->step(dtype, dim, w, lr, w_out); });
}

fb_status fb_network_check(const fb_network* network, int64_t* dim_out, char* text_out, int64_t text_size) {
  return guarded([&] {
    std::unique_ptr<const fedbuff::NetworkPlan> plan;
    const fedbuff::NetworkFault fault = fedbuff::read_network(network, plan);
    if (dim_out != nullptr && plan != nullptr) {
      *dim_out = plan->network.dim;
    }
    if (text_out != nullptr && text_size > 0) {
      const std::size_t n = std::min(fault.text.size(), static_cast<std::size_t>(text_size) - 1);
      std::memcpy(text_out, fault.text.data(), n);
      text_out[n] = '\0';
    }
    return fault.status;
  });
}

fb_status fb_local_create(const fb_problem* problem, const fb_local_config* config, fb_dtype dtype,
                          fb_local** local_out) {
  fb_problem p;
  fb_local_config c;
  fedbuff::clear_error();
  if (const fb_status status = read_struct(problem, p); status != FB_OK) {
    return status;
  }
  if (const fb_status status = read_struct(config, c); status != FB_OK) {
    return status;
  }
  if (!is_float(dtype) || local_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    fedbuff::FieldChecks checks;
    auto local = fedbuff::make_local(p, c, dtype, checks);
    if (local != nullptr) {
      *local_out = local.release();
    }
    return refuse(checks);
  });
}

fb_status fb_local_create_custom(fb_gradient gradient, void* context, int64_t n_clients, const int64_t* samples,
                                 const fb_local_config* config, fb_dtype dtype, int64_t dim, fb_local** local_out) {
  fb_local_config c;
  fedbuff::clear_error();
  if (const fb_status status = read_struct(config, c); status != FB_OK) {
    return status;
  }
  if (!is_float(dtype) || local_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] {
    fedbuff::FieldChecks checks;
    auto local = fedbuff::make_custom_local(gradient, context, n_clients, samples, c, dtype, dim, checks);
    if (local != nullptr) {
      *local_out = local.release();
    }
    return refuse(checks);
  });
}

void fb_local_destroy(fb_local** local) { destroy(local); }

int64_t fb_local_dim(const fb_local* local) { return local == nullptr ? -1 : local->dim(); }
int64_t fb_local_n_clients(const fb_local* local) { return local == nullptr ? -1 : local->n_clients(); }

fb_status fb_local_delta(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task, const void* w,
                         void* delta_out) {
  return fb_local_delta_at(local, dtype, dim, client, task, 0, w, delta_out);
}

fb_status fb_local_delta_at(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                            int64_t version, const void* w, void* delta_out) {
  if (local == nullptr || w == nullptr || delta_out == nullptr || version < 0) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return local->delta(dtype, dim, client, task, version, w, delta_out); });
}

fb_status fb_local_delta_state(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                               int64_t version, const void* w, const void* control, void* state, void* delta_out) {
  if (local == nullptr || w == nullptr || state == nullptr || delta_out == nullptr || version < 0) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return local->delta_state(dtype, dim, client, task, version, w, control, state, delta_out); });
}

fb_status fb_queue_create(fb_queue** queue_out) {
  if (queue_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return create(queue_out, [] { return std::make_unique<fb_queue>(); });
}

void fb_queue_destroy(fb_queue** queue) { destroy(queue); }

fb_status fb_queue_push(fb_queue* queue, double time, int64_t item, int32_t kind) {
  if (queue == nullptr || !finite_at_least(time, 0) || kind < 0 || kind > 3) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return queue->push(time, item, kind); });
}

fb_status fb_queue_push_ticket(fb_queue* queue, double time, int64_t item, int32_t kind, int64_t* ticket_out) {
  if (queue == nullptr || ticket_out == nullptr || !finite_at_least(time, 0) || kind < 0 || kind > 3) {
    return FB_ERR_ARGUMENT;
  }
  return guarded([&] { return queue->push(time, item, kind, ticket_out); });
}

fb_status fb_queue_cancel(fb_queue* queue, int64_t ticket) {
  return queue == nullptr ? FB_ERR_ARGUMENT : queue->cancel(ticket);
}

fb_status fb_queue_pop(fb_queue* queue, fb_event* event_out) {
  return queue == nullptr || event_out == nullptr ? FB_ERR_ARGUMENT : queue->pop(*event_out);
}

fb_status fb_queue_peek(fb_queue* queue, fb_event* event_out) {
  return queue == nullptr || event_out == nullptr ? FB_ERR_ARGUMENT : queue->peek(*event_out);
}

int64_t fb_queue_size(const fb_queue* queue) { return queue == nullptr ? -1 : queue->size(); }

fb_status fb_queue_clear(fb_queue* queue) {
  if (queue == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  queue->clear();
  return FB_OK;
}

fb_status fb_accumulate(fb_dtype dtype, int64_t dim, const void* sum, const void* delta, double weight, void* sum_out) {
  if (!is_float(dtype) || dim < 1 || delta == nullptr || sum_out == nullptr || !std::isfinite(weight)) {
    return FB_ERR_ARGUMENT;
  }
  return with_dtype(dtype, [&](auto* tag) -> fb_status {
    using T = std::remove_pointer_t<decltype(tag)>;
    const auto& k = fedbuff::kernels().of<T>();
    const T* add = static_cast<const T*>(delta);
    const bool finite = k.accumulate(dim, static_cast<const T*>(sum), add, static_cast<T>(weight), nullptr, nullptr,
                                     static_cast<T*>(sum_out));
    return finite ? FB_OK : k.all_finite(dim, add) ? FB_ERR_OVERFLOW : FB_ERR_NOT_FINITE;
  });
}

fb_status fb_accumulate_fixed(fb_dtype delta_dtype, int64_t dim, const int64_t* sum, const void* delta, double weight,
                              int64_t* sum_out) {
  if (delta_dtype != FB_I32 && delta_dtype != FB_I64) {
    return FB_ERR_DTYPE;
  }
  if (dim < 1 || delta == nullptr || sum_out == nullptr || !std::isfinite(weight)) {
    return FB_ERR_ARGUMENT;
  }
  const double w = fedbuff::fixed_weight(weight);
  const bool fits = delta_dtype == FB_I32
                        ? fedbuff::fixed_accumulate(dim, sum, static_cast<const int32_t*>(delta), w, sum_out)
                        : fedbuff::fixed_accumulate(dim, sum, static_cast<const int64_t*>(delta), w, sum_out);
  return fits ? FB_OK : FB_ERR_OVERFLOW;
}

fb_status fb_step(fb_dtype dtype, int64_t dim, const void* w, const void* sum, double scale, void* w_out) {
  if (!is_float(dtype) || dim < 1 || w == nullptr || sum == nullptr || w_out == nullptr || !std::isfinite(scale)) {
    return FB_ERR_ARGUMENT;
  }
  return with_dtype(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    fedbuff::StepConfig config{};
    config.lr = scale;
    config.norm = 1;
    fedbuff::kernels().of<T>().sgd_step(dim, static_cast<const T*>(w), static_cast<const T*>(sum), config, nullptr,
                                        static_cast<T*>(w_out));
    return FB_OK;
  });
}

fb_status fb_aggregate(fb_dtype dtype, int64_t dim, const void* w, int64_t n_deltas, const void* const* delta,
                       const void* weight, double scale, const fb_executor* executor, void* w_out) {
  if (!is_float(dtype) || dim < 1 || w == nullptr || n_deltas < 0 || w_out == nullptr || !std::isfinite(scale) ||
      (n_deltas > 0 && (delta == nullptr || weight == nullptr)) ||
      std::any_of(delta, delta + n_deltas, [](const void* one) { return one == nullptr; })) {
    return FB_ERR_ARGUMENT;
  }
  fb_executor host;
  if (const fb_status status = read_executor(executor, host); status != FB_OK) {
    return status;
  }
  return guarded([&] {
    return with_dtype(dtype, [&](auto* tag) -> fb_status {
      using T = std::remove_pointer_t<decltype(tag)>;
      const std::int64_t n_chunks = executor == nullptr ? 1 : fedbuff::count_chunks(dim);
      std::vector<const T*> typed;
      std::transform(delta, delta + n_deltas, std::back_inserter(typed),
                     [](const void* one) { return static_cast<const T*>(one); });
      auto work = [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * fedbuff::kChunkSize;
        const std::int64_t end = n_chunks == 1 ? dim : std::min(begin + fedbuff::kChunkSize, dim);
        fedbuff::kernels().of<T>().aggregate(begin, end, static_cast<const T*>(w), n_deltas, typed.data(),
                                             static_cast<const T*>(weight), static_cast<T>(scale),
                                             static_cast<T*>(w_out));
      };
      if (n_chunks == 1) {
        work(0);
        return FB_OK;
      }
      fedbuff::CoreChunks chunks;
      chunks.open(n_chunks, work);
      return chunks.finish(&host, false);
    });
  });
}

}  // extern "C"
