// AvailabilityWindows: openings, closings and paused work by hand; periods; times that doubles cannot resolve.
#include "schedule/availability_windows.hpp"

#include "check.hpp"

using namespace fedbuff;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Client 0: [1, 2) and [4, 6). Client 1: no window. Client 2: [0, 3).
struct Example {
  std::vector<std::int64_t> offsets = {0, 2, 2, 3};
  std::vector<double> begin = {1.0, 4.0, 0.0};
  std::vector<double> end = {2.0, 6.0, 3.0};
  std::vector<double> periods;

  AvailabilityWindows windows() const {
    return {WindowPolicy::Wait, offsets.data(), begin.data(), end.data(), periods.empty() ? nullptr : periods.data()};
  }
};

}  // namespace

TEST(windows_open_and_close) {
  const Example example;
  const AvailabilityWindows windows = example.windows();
  CHECK_EQ(windows.next_open(0, 0.0), 1.0);
  CHECK_EQ(windows.next_open(0, 1.5), 1.5);
  CHECK_EQ(windows.next_open(0, 2.0), 4.0);  // a window does not contain its end
  CHECK_EQ(windows.next_open(0, 6.0), kInfinity);
  CHECK_EQ(windows.next_open(1, 0.0), kInfinity);
  CHECK_EQ(windows.next_open(2, kInfinity), kInfinity);
  CHECK_EQ(windows.close(0, 1.0), 2.0);
  CHECK_EQ(windows.close(0, 5.5), 6.0);
}

TEST(windows_repeat_with_their_period) {
  Example example;
  example.periods = {10.0, 10.0, 3.0};
  const AvailabilityWindows windows = example.windows();
  CHECK_EQ(windows.next_open(0, 6.0), 11.0);
  CHECK_EQ(windows.next_open(0, 25.0), 25.0);
  CHECK_EQ(windows.next_open(1, 5.0), kInfinity);
  CHECK_EQ(windows.close(0, 125.0), 126.0);
  CHECK_EQ(windows.close(2, 1.0), kInfinity);  // the window fills its period: it never closes
}

TEST(windows_that_touch_across_the_period_are_one) {
  Example example;
  example.offsets = {0, 2};
  example.begin = {0.0, 8.0};
  example.end = {1.0, 10.0};
  example.periods = {10.0};
  const AvailabilityWindows windows = example.windows();
  CHECK_EQ(windows.close(0, 8.5), 11.0);
  CHECK_EQ(windows.close(0, 10.5), 11.0);
  CHECK_EQ(windows.next_open(0, 11.0), 18.0);
}

TEST(windows_bounds_are_products_of_the_period) {
  Example example;
  example.offsets = {0, 1};
  example.begin = {0.0};
  example.end = {0.05};
  example.periods = {0.1};
  const AvailabilityWindows windows = example.windows();
  for (double cycle = 1.0; cycle < 5000.0; cycle += 1.0) {
    const double opening = cycle * 0.1;
    CHECK_EQ(windows.next_open(0, opening), opening);
    CHECK_EQ(windows.next_open(0, std::nextafter(opening, 0.0)), opening);
    CHECK_EQ(windows.close(0, opening), opening + 0.05);
  }
}

TEST(windows_paused_work) {
  Example example;
  CHECK_EQ(example.windows().work_until(0, 1.0, 0.5), 1.5);
  CHECK_EQ(example.windows().work_until(0, 1.0, 1.0), 2.0);
  CHECK_EQ(example.windows().work_until(0, 1.0, 2.5), 5.5);
  CHECK_EQ(example.windows().work_until(0, 1.0, 3.5), kInfinity);  // three seconds are all there is
  example.periods = {10.0, 10.0, 3.0};
  CHECK_EQ(example.windows().work_until(0, 1.0, 3.5), 11.5);
  CHECK_EQ(example.windows().work_until(0, 1.0, 3.0), 6.0);
  CHECK_EQ(example.windows().work_until(0, 1.0, 3.0e6), 9999996.0);  // 10^6 cycles, the last one to its end
  CHECK_EQ(example.windows().work_until(2, 1.0, 1e9), 1e9 + 1.0);
}

TEST(windows_at_times_that_doubles_cannot_resolve) {
  Example example;
  example.periods = {10.0, 10.0, 3.0};
  const double time = 1e300;
  CHECK(example.windows().next_open(0, time) >= time);
  CHECK(example.windows().close(0, time) >= time);
}
