// A sum of deltas that many threads may add to, for those who write their own server.
#pragma once

#include <cstdint>
#include <memory>

#include "fedbuff/fedbuff.h"

// What every dtype's buffer can do. All calls are thread-safe.
struct fb_buffer {
  virtual ~fb_buffer() = default;
  virtual fb_status add(fb_dtype dtype, std::int64_t dim, const void* delta, double weight, std::int64_t ticket) = 0;
  virtual fb_status take_ticket(std::int64_t* ticket_out) = 0;  // throws std::bad_alloc
  virtual fb_status cancel_ticket(std::int64_t ticket) = 0;
  virtual void set_executor(const fb_executor* executor) = 0;
  virtual void close() = 0;
  virtual void clear() = 0;
  virtual fb_status step(fb_dtype dtype, std::int64_t dim, const void* w, double lr, void* w_out) = 0;
  virtual std::int64_t dim() const = 0;
  virtual std::int64_t count() const = 0;
  virtual const void* sum() = 0;
  virtual bool is_lost() = 0;  // as TicketQueue's; then all other calls throw fedbuff::Forked
};

namespace fedbuff {

// Throws std::bad_alloc. The arguments are taken as valid.
std::unique_ptr<fb_buffer> make_buffer(fb_dtype dtype, std::int64_t dim, double unit);

}  // namespace fedbuff
