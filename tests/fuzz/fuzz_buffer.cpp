// The buffer and the smallest parts: sequences of calls; a call that fails leaves the buffer as it was.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "host.hpp"
#include "input.hpp"

namespace {

using fuzz::Input;

std::vector<std::uint8_t> bytes_of(fb_buffer* buffer, std::size_t n_bytes) {
  std::vector<std::uint8_t> bytes(n_bytes);
  std::memcpy(bytes.data(), fb_buffer_sum(buffer), n_bytes);
  return bytes;
}

template <class T>
fb_status add(fb_buffer* buffer, Input& in, fb_dtype dtype, std::int64_t dim, std::int64_t ticket) {
  const std::vector<T> delta = in.numbers<T>(dim);
  return fb_buffer_add(buffer, dtype, dim, delta.data(), in.real(), ticket);
}

fb_status add(fb_buffer* buffer, Input& in, fb_dtype dtype, std::int64_t dim, std::int64_t ticket) {
  switch (dtype) {
    case FB_F32: return add<float>(buffer, in, dtype, dim, ticket);
    case FB_F64: return add<double>(buffer, in, dtype, dim, ticket);
    case FB_I32: return add<std::int32_t>(buffer, in, dtype, dim, ticket);
    default: return add<std::int64_t>(buffer, in, dtype, dim, ticket);
  }
}

template <class T>
void step(fb_buffer* buffer, Input& in, fb_dtype dtype, std::int64_t dim) {
  std::vector<T> w = in.numbers<T>(dim), out(w.size());
  const bool in_place = in.one_in(2);
  const fb_status status = fb_buffer_step(buffer, dtype, dim, w.data(), in.real(), in_place ? w.data() : out.data());
  MUST(status != FB_OK || fb_buffer_count(buffer) == 0);
}

template <class T>
void use_parts(Input& in, fb_dtype dtype, std::int64_t dim) {
  const std::vector<T> delta = in.numbers<T>(dim);
  std::vector<T> sum = in.numbers<T>(dim);
  fb_accumulate(dtype, dim, in.one_in(4) ? nullptr : sum.data(), delta.data(), in.real(), sum.data());
  fb_step(dtype, dim, delta.data(), sum.data(), in.real(), sum.data());
  const std::vector<std::int32_t> whole = in.numbers<std::int32_t>(dim);
  std::vector<std::int64_t> count = in.numbers<std::int64_t>(dim);
  fb_accumulate_fixed(FB_I32, dim, count.data(), whole.data(), in.real(), count.data());
  const std::vector<std::int64_t> large = in.numbers<std::int64_t>(dim);
  fb_accumulate_fixed(FB_I64, dim, in.one_in(4) ? nullptr : count.data(), large.data(), in.real(), count.data());
  const std::int64_t n = in.below(5);
  const std::vector<const void*> deltas(static_cast<std::size_t>(n), delta.data());
  const std::vector<T> weight = in.numbers<T>(n);
  fuzz::Host host;
  host.set(in, [&](const fb_executor* executor) {
    fb_aggregate(dtype, dim, sum.data(), n, deltas.data(), weight.data(), in.real(), executor, sum.data());
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const fb_dtype dtype = in.one_in(2) ? FB_F64 : FB_F32;
  const std::int64_t dim = in.one_in(256) ? 20000 : 1 + in.below(40);
  const double unit = in.one_in(3) ? in.real() : 0.0;
  fb_buffer* buffer = nullptr;
  if (in.one_in(64)) {
    const std::int64_t huge = (std::int64_t{1} << (61 + in.below(2))) + in.byte();
    MUST(fb_buffer_create(dtype, huge, 0.0, &buffer) == FB_ERR_MEMORY && buffer == nullptr);
    MUST(fb_buffer_create(dtype, -in.byte(), 0.0, &buffer) == FB_ERR_ARGUMENT);
  }
  fuzz::Host host;
  if (fb_buffer_create(dtype, dim, unit, &buffer) != FB_OK) {
    MUST(buffer == nullptr && !(unit >= 0 && std::isfinite(unit)));
    return 0;
  }
  const std::size_t n_bytes =
      static_cast<std::size_t>(dim) * (unit > 0 || dtype == FB_F64 ? sizeof(double) : sizeof(float));
  std::deque<std::int64_t> tickets;
  bool closed = false;
  for (int calls = 0; !in.empty() && calls < (dim > 40 ? 6 : 60); ++calls) {
    switch (in.below(9)) {
      case 0:
      case 1:
      case 2: {
        const bool wrong = in.one_in(16);
        const auto given = static_cast<fb_dtype>(wrong ? in.below(4) : unit > 0 ? FB_I32 + in.below(2) : dtype);
        const std::int64_t length = in.one_in(32) ? 1 + in.below(50) : dim, count = fb_buffer_count(buffer);
        const bool unknown = in.one_in(16);
        const std::int64_t ticket = unknown           ? (std::int64_t{1} << 40) + in.byte()
                                    : tickets.empty() ? FB_NO_TICKET
                                                      : tickets.front();
        const std::vector<std::uint8_t> before = bytes_of(buffer, n_bytes);
        const fb_status status = add(buffer, in, given, length, ticket);
        MUST(!(closed || unknown) || status != FB_OK);
        MUST(fb_buffer_count(buffer) == count + (status == FB_OK));
        MUST(status == FB_OK || bytes_of(buffer, n_bytes) == before);
        const bool kept = status == FB_ERR_ARGUMENT || status == FB_ERR_DTYPE || status == FB_ERR_SIZE || unknown;
        if (!tickets.empty() && !kept) {
          tickets.pop_front();
        }
        break;
      }
      case 3: {
        std::int64_t ticket = 0;
        if (tickets.size() < 4 && fb_buffer_take_ticket(buffer, &ticket) == FB_OK) {
          MUST(!closed && (tickets.empty() || ticket > tickets.back()));
          tickets.push_back(ticket);
        }
        break;
      }
      case 4: {
        const bool known = !tickets.empty() && !in.one_in(8);
        const std::size_t at = known ? static_cast<std::size_t>(in.below(4)) % tickets.size() : 0;
        const std::int64_t ticket = known ? tickets[at] : in.whole();
        const bool is_out = std::find(tickets.begin(), tickets.end(), ticket) != tickets.end();
        const fb_status status = fb_buffer_cancel_ticket(buffer, ticket);
        MUST(closed || (status == FB_OK) == is_out);
        if (status == FB_OK && is_out) {
          tickets.erase(std::find(tickets.begin(), tickets.end(), ticket));
        }
        break;
      }
      case 5:
        if (in.one_in(4)) {
          MUST(fb_buffer_clear(buffer) != FB_OK || fb_buffer_count(buffer) == 0);
        }
        break;
      case 6: dtype == FB_F32 ? step<float>(buffer, in, dtype, dim) : step<double>(buffer, in, dtype, dim); break;
      case 7: host.set(in, [&](const fb_executor* executor) { fb_buffer_set_executor(buffer, executor); }); break;
      default:
        dtype == FB_F32 ? use_parts<float>(in, dtype, dim) : use_parts<double>(in, dtype, dim);
        if (in.one_in(16)) {
          closed = true;
          tickets.clear();
          MUST(fb_buffer_close(buffer) == FB_OK);
        }
    }
  }
  fb_buffer_destroy(&buffer);
  MUST(buffer == nullptr);
  return 0;
}
