// The event queue against an ordered set: events come out by time, kind and creation.
#include <cmath>
#include <set>
#include <tuple>

#include "fedbuff/fedbuff.h"
#include "input.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  fb_queue* queue = nullptr;
  MUST(fb_queue_create(&queue) == FB_OK);
  std::set<std::tuple<double, std::int32_t, std::int64_t, std::int64_t>> expected;
  std::int64_t number = 0;
  while (!in.empty()) {
    const std::int64_t call = in.below(8);
    if (call < 4) {
      const std::int64_t times = call == 3 ? 1 + in.byte() : 1;
      const double time = in.real();
      const auto kind = static_cast<std::int32_t>(in.below(16) == 5 ? in.whole() & 0xffffffff : in.below(4));
      for (std::int64_t i = 0; i < times; ++i) {
        const double at = time + static_cast<double>(i % 3);
        const std::int64_t item = in.whole();
        const bool valid = std::isfinite(at) && at >= 0 && kind >= 0 && kind <= 3;
        MUST(fb_queue_push(queue, at, item, kind) == (valid ? FB_OK : FB_ERR_ARGUMENT));
        if (valid) {
          expected.emplace(at + 0.0, kind, number++, item);
        }
      }
    } else if (call < 7) {
      fb_event event;
      const fb_status status = call == 4 ? fb_queue_peek(queue, &event) : fb_queue_pop(queue, &event);
      MUST(status == (expected.empty() ? FB_ERR_EMPTY : FB_OK));
      if (status == FB_OK) {
        const auto& [time, kind, created, item] = *expected.begin();
        MUST(event.time == time && event.kind == kind && event.item == item);
        if (call != 4) {
          expected.erase(expected.begin());
        }
      }
    } else if (in.one_in(4)) {
      MUST(fb_queue_clear(queue) == FB_OK);
      expected.clear();
    }
    MUST(fb_queue_size(queue) == static_cast<std::int64_t>(expected.size()));
  }
  fb_queue_destroy(&queue);
  MUST(queue == nullptr && fb_queue_push(queue, 0, 0, 0) == FB_ERR_ARGUMENT);
  return 0;
}
