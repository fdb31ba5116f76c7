// What the functions of the C ABI share: structs of callers, exceptions as status codes, handles given and taken back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>

#include "abi/error_text.hpp"
#include "fedbuff/fedbuff.h"
#include "threads/ticket_queue.hpp"

namespace fedbuff {

// How large a struct was when this ABI began: fields after that were appended, and callers may not know them.
template <class Struct>
constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<fb_executor> = offsetof(fb_executor, run) + sizeof(void*);
template <>
inline constexpr std::size_t kFirstSize<fb_delays> = offsetof(fb_delays, window_period) + sizeof(void*);
template <>
inline constexpr std::size_t kFirstSize<fb_schedule_config> = offsetof(fb_schedule_config, max_time) + sizeof(double);
template <>
inline constexpr std::size_t kFirstSize<fb_columns> = offsetof(fb_columns, step_rows) + sizeof(void*);
template <>
inline constexpr std::size_t kFirstSize<fb_replay_config> =
    offsetof(fb_replay_config, window_bytes) + sizeof(std::int64_t);
template <>
inline constexpr std::size_t kFirstSize<fb_rule> = offsetof(fb_rule, unit) + sizeof(double);
template <>
inline constexpr std::size_t kFirstSize<fb_server_state> = offsetof(fb_server_state, kept) + sizeof(void*);
template <>
inline constexpr std::size_t kFirstSize<fb_problem> = offsetof(fb_problem, noise_variance) + sizeof(double);
template <>
inline constexpr std::size_t kFirstSize<fb_local_config> = offsetof(fb_local_config, prox) + sizeof(double);

// A caller's struct as this library has it. Fields that the caller does not know are zero; fields that this library
// does not know must be.
template <class Struct>
fb_status read_struct(const Struct* given, Struct& out) {
  static_assert(kFirstSize<Struct> > 0, "say how large it was at first");
  if (given == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  if (given->abi != FB_ABI_VERSION || given->size < kFirstSize<Struct>) {
    return FB_ERR_ABI;
  }
  const std::size_t known = std::min<std::size_t>(given->size, sizeof(Struct));
  const char* bytes = reinterpret_cast<const char*>(given);
  if (std::any_of(bytes + known, bytes + given->size, [](char byte) { return byte != 0; })) {
    return FB_ERR_ABI;
  }
  out = Struct{};
  std::memcpy(&out, given, known);
  return FB_OK;
}

inline bool is_float(fb_dtype dtype) { return dtype == FB_F32 || dtype == FB_F64; }

// Exceptions are caught here: the core throws for lack of memory, the host's functions may throw anything.
template <class Body>
fb_status guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return FB_ERR_MEMORY;
  } catch (const std::length_error&) {
    return FB_ERR_MEMORY;
  } catch (const Forked&) {
    return FB_ERR_FORKED;
  } catch (...) {
    return FB_ERR_HOST;
  }
}

// The result of body(object); `nothing` where there is no object, or where a parent process made it before a fork.
template <class Object, class Body, class Result>
Result read(Object* object, Body body, Result nothing) {
  try {
    return object == nullptr ? nothing : body(*object);
  } catch (const Forked&) {
    return nothing;
  }
}

// Gives a new object to the caller.
template <class Handle, class Make>
fb_status create(Handle** handle_out, Make make) {
  return guarded([&] {
    *handle_out = make().release();
    return FB_OK;
  });
}

template <class Handle>
void destroy(Handle** handle) {
  if (handle != nullptr) {
    delete *handle;
    *handle = nullptr;
  }
}

}  // namespace fedbuff
