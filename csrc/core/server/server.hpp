// FedBuff's server: a model, its version, a buffer, and who still owes an update on which version.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "compiler/export.hpp"
#include "fedbuff/fedbuff.h"

// A model that does not change while somebody holds it: a count of holders, then the values; with a control variate c
// those of the model and of c.
struct fb_model {
  std::atomic<std::int64_t> holders{1};
  void* data = nullptr;  // placed by alignment_of

  static fb_model* create(std::size_t bytes);  // throws std::bad_alloc
  void hold() { holders.fetch_add(1, std::memory_order_relaxed); }
  void release();
};

// What every dtype's server can do. All calls are thread-safe.
struct fb_server {
  virtual ~fb_server() = default;
  virtual fb_status upload(fb_dtype dtype, std::int64_t dim, const void* delta, std::int64_t version, double e,
                           std::int64_t client, std::int64_t ticket, std::int32_t* outcome_out) = 0;
  // The same where the rule has a control variate, and only there: `change` (dim) is of the client's state.
  virtual fb_status upload_change(fb_dtype dtype, std::int64_t dim, const void* delta, const void* change,
                                  std::int64_t version, double e, std::int64_t ticket, std::int32_t* outcome_out) = 0;
  virtual fb_status upload_models(fb_dtype dtype, std::int64_t dim, std::int64_t n, fb_model_upload* uploads) = 0;
  virtual fb_status step() = 0;
  virtual std::int64_t overdue(std::int64_t n, std::int64_t* version_out, std::int64_t* tasks_out) const = 0;
  virtual fb_status set_table(void* memory, std::int64_t bytes) = 0;
  virtual fb_status take_ticket(std::int64_t* ticket_out) = 0;  // throws std::bad_alloc
  virtual fb_status cancel_ticket(std::int64_t ticket) = 0;
  virtual void set_executor(const fb_executor* executor) = 0;
  virtual void close() = 0;
  virtual void set_staleness(const double* weight, std::int64_t n_weights) = 0;
  virtual void set_staleness_at(std::int64_t staleness, double weight) = 0;
  virtual fb_status cancel(std::int64_t version) = 0;
  virtual fb_status download(std::int64_t* version_out, fb_model** model_out) = 0;
  virtual fb_model* model() = 0;
  virtual std::unique_ptr<fb_server> clone() = 0;  // throws std::bad_alloc
  virtual void get_state(fb_server_state& state) = 0;
  // FB_ERR_ARGUMENT, FB_ERR_DTYPE or FB_ERR_SIZE for arrays that the rule does not keep; then it is of no more use.
  virtual fb_status restore(const fb_server_state& state) = 0;

  virtual fb_dtype dtype() const = 0;
  virtual std::int64_t dim() const = 0;
  virtual std::int64_t version() const = 0;
  virtual std::int64_t fill() const = 0;
  virtual std::int64_t dropped() const = 0;
  virtual std::int64_t outstanding() const = 0;
  virtual std::int64_t live_models() const = 0;
  virtual bool is_lost() = 0;  // as TicketQueue's; then all other calls throw fedbuff::Forked
};

namespace fedbuff {

// Throws std::bad_alloc. The rule is taken as valid.
FB_CORE_API std::unique_ptr<fb_server> make_server(const fb_rule& rule, fb_dtype dtype, std::int64_t dim,
                                                   const void* w0);

}  // namespace fedbuff
