// What a host embeds: structs of other versions, tickets, the host's threads, whole-number deltas, the buffer, local
// SGD and the event queue through the C ABI, and every way to misuse them.
#include <cstddef>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "check.hpp"
#include "fedbuff/fedbuff.h"

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kLarge = 20'000;  // more than two parts

fb_rule make_rule(std::int64_t buffer_size, double unit = 0) {
  fb_rule rule = FB_RULE_INIT;
  rule.buffer_size = buffer_size;
  rule.unit = unit;
  return rule;
}

struct Server {
  fb_server* handle = nullptr;
  std::int64_t dim;

  Server(const fb_rule& rule, std::int64_t n) : dim(n) {
    const std::vector<double> w0(static_cast<std::size_t>(n));
    CHECK_EQ(fb_server_create(&rule, FB_F64, n, w0.data(), &handle), FB_OK);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { fb_server_destroy(&handle); }

  void download(int n = 1) {
    for (; n > 0; --n) {
      std::int64_t version;
      fb_model* model;
      CHECK_EQ(fb_server_download(handle, &version, &model), FB_OK);
      fb_model_release(model);
    }
  }
  fb_status upload(const void* delta, std::int64_t ticket = FB_NO_TICKET, fb_dtype dtype = FB_F64) {
    return fb_server_upload(handle, dtype, dim, delta, fb_server_version(handle), 1.0, ticket, nullptr);
  }
  std::vector<double> w() {
    fb_model* model = fb_server_model(handle);
    const auto* data = static_cast<const double*>(fb_model_data(model));
    std::vector<double> copy(data, data + dim);
    fb_model_release(model);
    return copy;
  }
  std::int64_t ticket() {
    std::int64_t number = -1;
    CHECK_EQ(fb_server_take_ticket(handle, &number), FB_OK);
    return number;
  }
};

template <class Handle>
struct Owned {
  Handle* handle = nullptr;
  void (*destroy)(Handle**);
  explicit Owned(void (*function)(Handle**)) : destroy(function) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { destroy(&handle); }
};

// Threads of a host: runs every part on one of its own, backwards.
std::int32_t run_on_threads(void* context, std::int64_t n, fb_work work, void* argument) {
  static_cast<std::atomic<std::int64_t>*>(context)->fetch_add(n);
  std::vector<std::thread> threads;
  for (std::int64_t part = n; part-- > 0;) {
    threads.emplace_back(work, argument, part);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}
std::int32_t run_half(void*, std::int64_t n, fb_work work, void* argument) {
  for (std::int64_t part = 0; part < n / 2; ++part) {
    work(argument, part);
  }
  return 0;
}
std::int32_t run_and_fail(void*, std::int64_t, fb_work work, void* argument) {
  work(argument, 0);
  return 7;
}
std::int32_t run_and_throw(void*, std::int64_t, fb_work work, void* argument) {
  work(argument, 0);
  throw std::runtime_error("the host's own trouble");
}
std::int32_t run_too_often(void*, std::int64_t n, fb_work work, void* argument) {
  for (std::int64_t part = -3; part < 2 * n; ++part) {
    work(argument, part);
  }
  return 0;
}

fb_executor executor_of(std::int32_t (*run)(void*, std::int64_t, fb_work, void*), void* context = nullptr) {
  fb_executor executor = FB_EXECUTOR_INIT;
  executor.run = run;
  executor.context = context;
  return executor;
}

}  // namespace

TEST(structs_of_other_versions) {
  const double w0[] = {0.0};
  fb_server* none = nullptr;
  // A struct of a later header: unknown fields may be zero, and nothing else.
  struct {
    fb_rule rule = FB_RULE_INIT;
    double appended = 0;
  } later;
  later.rule.size = sizeof later;
  CHECK_EQ(fb_server_create(&later.rule, FB_F64, 1, w0, &none), FB_OK);
  fb_server_destroy(&none);
  later.appended = 1;
  CHECK_EQ(fb_server_create(&later.rule, FB_F64, 1, w0, &none), FB_ERR_ABI);
  fb_rule rule = FB_RULE_INIT;
  rule.abi = FB_ABI_VERSION + 1;
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, &none), FB_ERR_ABI);
  // A struct of the first header, which ended with the unit; none was ever shorter.
  rule = FB_RULE_INIT;
  rule.size = offsetof(fb_rule, unit) + sizeof rule.unit;
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, &none), FB_OK);
  fb_server_destroy(&none);
  rule.size -= 8;
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, &none), FB_ERR_ABI);
  CHECK(none == nullptr);
  CHECK_EQ(fb_require_abi(FB_ABI_VERSION), FB_OK);
  CHECK_EQ(fb_require_abi(FB_ABI_VERSION + 1), FB_ERR_ABI);
  CHECK_EQ(fb_require_abi(0), FB_ERR_ABI);
}

TEST(null_handles_give_a_status) {
  std::int64_t number = 0;
  double x[2] = {0, 0};
  fb_event event;
  CHECK_EQ(fb_server_close(nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_take_ticket(nullptr, &number), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_cancel_ticket(nullptr, 0), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_executor(nullptr, nullptr), FB_ERR_ARGUMENT);
  for (const auto& read : {fb_server_dim, fb_server_version, fb_server_fill, fb_server_dropped, fb_server_outstanding,
                           fb_server_live_models}) {
    CHECK_EQ(read(nullptr), -1);
  }
  CHECK(fb_server_model(nullptr) == nullptr && fb_model_data(nullptr) == nullptr);
  fb_model_release(nullptr);
  CHECK_EQ(fb_buffer_add(nullptr, FB_F64, 2, x, 1.0, FB_NO_TICKET), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_close(nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_set_executor(nullptr, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_take_ticket(nullptr, &number), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_cancel_ticket(nullptr, 0), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_clear(nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_step(nullptr, FB_F64, 2, x, 1.0, x), FB_ERR_ARGUMENT);
  CHECK(fb_buffer_dim(nullptr) == -1 && fb_buffer_count(nullptr) == -1 && fb_buffer_sum(nullptr) == nullptr);
  CHECK_EQ(fb_local_delta(nullptr, FB_F64, 2, 0, 0, x, x), FB_ERR_ARGUMENT);
  CHECK(fb_local_dim(nullptr) == -1 && fb_local_n_clients(nullptr) == -1);
  CHECK_EQ(fb_queue_push(nullptr, 0.0, 0, 0), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_queue_pop(nullptr, &event), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_queue_peek(nullptr, &event), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_queue_clear(nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_queue_size(nullptr), -1);
  fb_server_destroy(nullptr), fb_buffer_destroy(nullptr), fb_local_destroy(nullptr), fb_queue_destroy(nullptr);
}

TEST(freed_and_closed_handles_give_a_status) {
  const double delta[2] = {1, 2};
  Server server(make_rule(2), 2);
  server.download(2);
  const std::int64_t ticket = server.ticket();
  CHECK_EQ(fb_server_close(server.handle), FB_OK);
  std::int64_t version;
  fb_model* model;
  CHECK_EQ(server.upload(delta), FB_ERR_CLOSED);
  CHECK_EQ(server.upload(delta, ticket), FB_ERR_CLOSED);
  CHECK_EQ(fb_server_download(server.handle, &version, &model), FB_ERR_CLOSED);
  CHECK_EQ(fb_server_cancel(server.handle, 0), FB_ERR_CLOSED);
  CHECK_EQ(fb_server_take_ticket(server.handle, &version), FB_ERR_CLOSED);
  CHECK_EQ(fb_server_close(server.handle), FB_OK);
  CHECK(server.w() == std::vector<double>(2) && fb_server_outstanding(server.handle) == 2);
  fb_server_destroy(&server.handle);
  CHECK_EQ(fb_server_upload(server.handle, FB_F64, 2, delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_ARGUMENT);
  fb_server_destroy(&server.handle);
}

TEST(wrong_dtypes_and_sizes) {
  const double delta[2] = {1, 2};
  Server server(make_rule(2), 2);
  server.download();
  CHECK_EQ(fb_server_upload(server.handle, FB_F32, 2, delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_DTYPE);
  CHECK_EQ(fb_server_upload(server.handle, FB_I64, 2, delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_DTYPE);
  CHECK_EQ(fb_server_upload(server.handle, 9, 2, delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_DTYPE);
  for (const std::int64_t dim : {std::int64_t{1}, std::int64_t{3}, std::int64_t{-2}, std::int64_t{0}}) {
    CHECK_EQ(fb_server_upload(server.handle, FB_F64, dim, delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_SIZE);
  }
  CHECK_EQ(fb_server_fill(server.handle), 0);
  double w[2] = {7, 7};
  std::int64_t version = -1;
  CHECK_EQ(fb_server_download_to(server.handle, FB_F32, 2, w, &version), FB_ERR_DTYPE);
  CHECK_EQ(fb_server_download_to(server.handle, FB_F64, 3, w, &version), FB_ERR_SIZE);
  CHECK_EQ(fb_server_download_to(server.handle, FB_F64, 2, nullptr, &version), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_download_to(nullptr, FB_F64, 2, w, &version), FB_ERR_ARGUMENT);
  CHECK(w[0] == 7 && fb_server_outstanding(server.handle) == 1);
  CHECK_EQ(fb_server_download_to(server.handle, FB_F64, 2, w, &version), FB_OK);
  CHECK(w[0] == 0 && w[1] == 0 && version == 0 && fb_server_outstanding(server.handle) == 2);
  CHECK(fb_server_dtype(server.handle) == FB_F64 && fb_server_dtype(nullptr) == -1);
  fb_server* none = nullptr;
  const fb_rule rule = make_rule(1);
  CHECK_EQ(fb_server_create(&rule, FB_I32, 2, delta, &none), FB_ERR_ARGUMENT);
  const fb_rule negative = make_rule(1, -1.0);
  CHECK_EQ(fb_server_create(&negative, FB_F64, 2, delta, &none), FB_ERR_ARGUMENT);
  fb_rule current = make_rule(1, 0.5);
  current.base = FB_BASE_CURRENT;
  CHECK_EQ(fb_server_create(&current, FB_F64, 2, delta, &none), FB_ERR_ARGUMENT);
}

TEST(tickets_give_the_order) {
  // Of 1e16, 1 and -1e16 only some orders keep the 1.
  const double big = 1e16, one = 1.0, minus = -1e16;
  const auto sum_of = [&](std::vector<int> order) {
    const double* value[] = {&big, &one, &minus};
    Server server(make_rule(3), 1);
    server.download(3);
    std::int64_t ticket[3];
    for (std::int64_t& number : ticket) {
      number = server.ticket();
    }
    std::vector<std::thread> threads;  // they come in any order
    for (const int which : {2, 0, 1}) {
      threads.emplace_back(
          [&, which] { CHECK_EQ(server.upload(value[order[static_cast<std::size_t>(which)]], ticket[which]), FB_OK); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return -server.w()[0];
  };
  CHECK_EQ(sum_of({0, 1, 2}), 0.0);
  CHECK_EQ(sum_of({0, 2, 1}), 1.0);
}

TEST(tickets_misused) {
  const double one[] = {1.0};
  Server server(make_rule(3), 1);
  server.download(3);
  const std::int64_t first = server.ticket(), second = server.ticket(), third = server.ticket();
  CHECK_EQ(server.upload(one, third + 1), FB_ERR_TICKET);
  CHECK_EQ(server.upload(one, -2), FB_ERR_TICKET);
  CHECK_EQ(fb_server_cancel_ticket(server.handle, FB_NO_TICKET), FB_ERR_TICKET);
  CHECK_EQ(fb_server_cancel_ticket(server.handle, second), FB_OK);
  CHECK_EQ(fb_server_cancel_ticket(server.handle, second), FB_ERR_TICKET);
  CHECK_EQ(server.upload(one, second), FB_ERR_TICKET);
  const double nan[] = {kNan};
  CHECK_EQ(fb_server_upload(server.handle, FB_F64, 2, one, 0, 1.0, first, nullptr), FB_ERR_SIZE);  // stays good
  CHECK_EQ(server.upload(nan, first), FB_ERR_NOT_FINITE);                                          // is used up
  CHECK_EQ(server.upload(one, first), FB_ERR_TICKET);
  CHECK_EQ(server.upload(one, third), FB_OK);
  CHECK_EQ(server.upload(one), FB_OK);
  CHECK_EQ(fb_server_fill(server.handle), 2);
  // The table of staleness weights is short: the ticket stays good until there is one that is long enough.
  Server stale(make_rule(1), 1);
  const double s[] = {1.0, 0.5};
  stale.download(2);
  CHECK_EQ(fb_server_set_staleness(stale.handle, s, 1), FB_OK);
  CHECK_EQ(stale.upload(one), FB_OK);
  const std::int64_t ticket = stale.ticket();
  CHECK_EQ(fb_server_upload(stale.handle, FB_F64, 1, one, 0, 1.0, ticket, nullptr), FB_ERR_SHORT_TABLE);
  CHECK_EQ(fb_server_set_staleness(stale.handle, s, 2), FB_OK);
  CHECK_EQ(fb_server_upload(stale.handle, FB_F64, 1, one, 0, 1.0, ticket, nullptr), FB_OK);
  CHECK_EQ(stale.w()[0], -1.5);
}

TEST(close_frees_who_waits) {
  const double one[] = {1.0};
  Server server(make_rule(3), 1);
  server.download(2);
  server.ticket();
  const std::int64_t later = server.ticket();
  std::atomic<int> status{-1};
  std::thread waiting([&] { status = server.upload(one, later); });
  CHECK_EQ(fb_server_close(server.handle), FB_OK);
  waiting.join();
  CHECK_EQ(status.load(), int{FB_ERR_CLOSED});
}

// Large deltas from four threads are added in ticket order, to the bit, whoever helps; refused ones leave no trace.
TEST(threads_with_tickets_give_the_bits_of_one) {
  constexpr int kThreads = 4, kTasks = 60;
  check::Numbers numbers(3);
  std::vector<std::vector<double>> delta;
  for (int i = 0; i < 8; ++i) {
    delta.push_back(numbers.vector<double>(kLarge));
  }
  delta[5][kLarge - 1] = kNan;
  const auto delta_of = [&](std::int64_t ticket) { return delta[static_cast<std::size_t>(ticket % 8)].data(); };
  for (const std::int32_t base : {FB_BASE_START, FB_BASE_CURRENT}) {
    fb_rule rule = make_rule(7);
    rule.base = base;
    rule.momentum = 0.5;
    rule.lr = 0.1;
    Server alone(rule, kLarge), shared(rule, kLarge);
    alone.download(kThreads * kTasks), shared.download(kThreads * kTasks);
    int refused = 0;
    for (int i = 0; i < kThreads * kTasks; ++i) {
      const fb_status status =
          fb_server_upload(alone.handle, FB_F64, kLarge, delta_of(i), 0, 1.0, FB_NO_TICKET, nullptr);
      refused += status == FB_ERR_NOT_FINITE;
    }
    CHECK_EQ(refused, kThreads * kTasks / 8);
    std::atomic<int> bad{0}, failed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kTasks; ++i) {
          std::int64_t ticket = -1;
          failed += fb_server_take_ticket(shared.handle, &ticket) != FB_OK;
          const fb_status status =
              fb_server_upload(shared.handle, FB_F64, kLarge, delta_of(ticket), 0, 1.0, ticket, nullptr);
          failed += (status == FB_ERR_NOT_FINITE) != (ticket % 8 == 5);
          bad += status == FB_ERR_NOT_FINITE;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK_EQ(failed.load(), 0);
    CHECK_EQ(bad.load(), refused);
    CHECK_EQ(fb_server_version(shared.handle), fb_server_version(alone.handle));
    CHECK(shared.w() == alone.w());
  }
}

TEST(the_host_supplies_threads) {
  check::Numbers numbers(4);
  const auto a = numbers.vector<double>(kLarge), b = numbers.vector<double>(kLarge);
  const auto result = [&](const fb_executor* executor) {
    Server server(make_rule(2), kLarge);
    CHECK_EQ(fb_server_set_executor(server.handle, executor), FB_OK);
    server.download(2);
    CHECK_EQ(server.upload(a.data()), FB_OK);
    CHECK_EQ(server.upload(b.data()), FB_OK);
    return server.w();
  };
  std::atomic<std::int64_t> parts{0};
  const fb_executor threads = executor_of(run_on_threads, &parts), often = executor_of(run_too_often);
  CHECK(result(&threads) == result(nullptr));
  CHECK(result(&often) == result(nullptr));
  CHECK(parts.load() >= 6);
  const void* const delta[] = {a.data(), b.data()};
  const double weight[] = {0.5, 2.0};
  std::vector<double> w(kLarge), hosted(kLarge);
  CHECK_EQ(fb_aggregate(FB_F64, kLarge, w.data(), 2, delta, weight, 0.1, &threads, hosted.data()), FB_OK);
  CHECK_EQ(fb_aggregate(FB_F64, kLarge, w.data(), 2, delta, weight, 0.1, nullptr, w.data()), FB_OK);
  CHECK(w == hosted);
}

TEST(an_executor_that_fails_changes_nothing) {
  check::Numbers numbers(5);
  const auto a = numbers.vector<double>(kLarge);
  for (const auto& run : {run_half, run_and_fail, run_and_throw}) {
    Server server(make_rule(2), kLarge), plain(make_rule(2), kLarge);
    const fb_executor bad = executor_of(run);
    server.download(2), plain.download(2);
    CHECK_EQ(fb_server_set_executor(server.handle, &bad), FB_OK);
    CHECK_EQ(server.upload(a.data()), FB_ERR_HOST);
    CHECK(fb_server_fill(server.handle) == 0 && fb_server_outstanding(server.handle) == 2);
    CHECK_EQ(fb_server_set_executor(server.handle, nullptr), FB_OK);
    for (int i = 0; i < 2; ++i) {
      CHECK_EQ(server.upload(a.data()), FB_OK);
      CHECK_EQ(plain.upload(a.data()), FB_OK);
    }
    CHECK(server.w() == plain.w());
    const void* const delta[] = {a.data()};
    const double weight[] = {1.0};
    std::vector<double> out(kLarge);
    CHECK_EQ(fb_aggregate(FB_F64, kLarge, a.data(), 1, delta, weight, 1.0, &bad, out.data()), FB_ERR_HOST);
  }
  Server server(make_rule(2), kLarge);
  fb_executor empty = FB_EXECUTOR_INIT;
  CHECK_EQ(fb_server_set_executor(server.handle, &empty), FB_ERR_ARGUMENT);
  empty.abi = 77;
  CHECK_EQ(fb_server_set_executor(server.handle, &empty), FB_ERR_ABI);
}

TEST(whole_numbers_add_up_in_any_order) {
  const std::vector<std::int32_t> delta[] = {{1 << 30, -7}, {3, 1 << 29}, {-5, 11}, {12345, -99999}};
  const double s[] = {0.3};
  std::vector<int> order(4);
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> want;
  do {
    Server server(make_rule(4, 0x1p-20), 2);
    CHECK_EQ(fb_server_set_staleness(server.handle, s, 1), FB_OK);
    server.download(4);
    for (const int i : order) {
      CHECK_EQ(server.upload(delta[i].data(), FB_NO_TICKET, FB_I32), FB_OK);
    }
    want = want.empty() ? server.w() : want;
    CHECK(server.w() == want);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK_NEAR(want[0], -0.3 * ((1 << 30) + 3 - 5 + 12345) * 0x1p-20, 1 << 30, 1.0, 0);

  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = -most - 1;
  Server server(make_rule(3, 1.0), 1);
  server.download(3);
  CHECK_EQ(server.upload(&most, FB_NO_TICKET, FB_I64), FB_OK);
  const std::int64_t one = 1;
  CHECK_EQ(server.upload(&one, FB_NO_TICKET, FB_I64), FB_ERR_OVERFLOW);
  CHECK_EQ(fb_server_upload(server.handle, FB_I64, 1, &one, 0, 1e9, FB_NO_TICKET, nullptr), FB_ERR_OVERFLOW);
  CHECK_EQ(fb_server_fill(server.handle), 1);
  CHECK_EQ(server.upload(&least, FB_NO_TICKET, FB_I64), FB_OK);
  CHECK_EQ(server.upload(&one, FB_NO_TICKET, FB_I64), FB_OK);
  CHECK_EQ(server.w()[0], 0.0);
  std::int64_t sum = 0;
  CHECK_EQ(fb_accumulate_fixed(FB_I64, 1, nullptr, &most, 2.0, &sum), FB_ERR_OVERFLOW);
  const std::int32_t five = 5;
  CHECK_EQ(fb_accumulate_fixed(FB_I32, 1, nullptr, &five, 0.5, &sum), FB_OK);
  CHECK_EQ(sum, 2);  // ties to even
  CHECK_EQ(fb_accumulate_fixed(FB_F32, 1, nullptr, &five, 0.5, &sum), FB_ERR_DTYPE);
}

TEST(buffer_sums_and_steps) {
  Owned<fb_buffer> buffer(fb_buffer_destroy), units(fb_buffer_destroy);
  CHECK_EQ(fb_buffer_create(FB_F64, 2, 0.0, &buffer.handle), FB_OK);
  CHECK_EQ(fb_buffer_create(FB_F64, 2, 0.25, &units.handle), FB_OK);
  const double a[] = {1, 2}, nan[] = {0, kNan};
  const std::int64_t whole[] = {4, -8};
  double w[] = {1, 1};
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F64, 2, a, 0.5, FB_NO_TICKET), FB_OK);
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F64, 2, nan, 0.5, FB_NO_TICKET), FB_ERR_NOT_FINITE);
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F32, 2, a, 0.5, FB_NO_TICKET), FB_ERR_DTYPE);
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F64, 2, a, kNan, FB_NO_TICKET), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_buffer_count(buffer.handle), 1);
  CHECK_EQ(static_cast<const double*>(fb_buffer_sum(buffer.handle))[1], 1.0);
  CHECK_EQ(fb_buffer_step(buffer.handle, FB_F64, 3, w, 1.0, w), FB_ERR_SIZE);
  CHECK_EQ(fb_buffer_step(buffer.handle, FB_F64, 2, w, 1.0, w), FB_OK);
  CHECK(w[0] == 0.5 && w[1] == 0.0 && fb_buffer_count(buffer.handle) == 0);
  CHECK_EQ(fb_buffer_add(units.handle, FB_I64, 2, whole, 1.0, FB_NO_TICKET), FB_OK);
  CHECK_EQ(fb_buffer_step(units.handle, FB_F64, 2, w, 1.0, w), FB_OK);
  CHECK(w[0] == -0.5 && w[1] == 2.0);
  std::int64_t first, second;
  CHECK_EQ(fb_buffer_take_ticket(buffer.handle, &first), FB_OK);
  CHECK_EQ(fb_buffer_take_ticket(buffer.handle, &second), FB_OK);
  CHECK_EQ(fb_buffer_cancel_ticket(buffer.handle, first), FB_OK);
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F64, 2, a, 1.0, second), FB_OK);
  CHECK_EQ(fb_buffer_clear(buffer.handle), FB_OK);
  CHECK_EQ(fb_buffer_count(buffer.handle), 0);
  CHECK_EQ(fb_buffer_close(buffer.handle), FB_OK);
  CHECK_EQ(fb_buffer_add(buffer.handle, FB_F64, 2, a, 1.0, FB_NO_TICKET), FB_ERR_CLOSED);
  CHECK_EQ(fb_buffer_create(FB_F64, 0, 0.0, &units.handle), FB_ERR_ARGUMENT);
  fb_buffer* none = nullptr;
  CHECK_EQ(fb_buffer_create(FB_F64, std::int64_t{1} << 61, 0.0, &none), FB_ERR_MEMORY);
}

TEST(local_sgd_of_a_quadratic) {
  const double center[] = {1, 2, 3, 4}, curvature = 0.5;
  const std::int32_t dim = 2;
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = 2;
  problem.center = center;
  problem.curvature = &curvature;
  problem.curvature_shared = 1;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.lr = 1.0;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &local.handle), FB_OK);
  const double w[] = {0, 0};
  double delta[2];
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, 1, 0, w, delta), FB_OK);
  CHECK(delta[0] == -1.5 && delta[1] == -2.0);
  CHECK(fb_local_dim(local.handle) == 2 && fb_local_n_clients(local.handle) == 2);
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, 2, 0, w, delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, -1, 0, w, delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta(local.handle, FB_F32, 2, 1, 0, w, delta), FB_ERR_DTYPE);
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 3, 1, 0, w, delta), FB_ERR_SIZE);
}

TEST(local_sgd_has_numbers_by_client_version_and_step) {
  const std::int32_t dim = 1;
  const float center[] = {0, 0}, curvature = 1, w = 1;
  const std::int64_t steps[] = {1, 2};
  const double rates[] = {0.5, 0.25};
  const fb_learning_rate by_version{1.0, FB_DECAY_STEP, 1, 0.5, 0.0, 0}, by_step{2.0, FB_DECAY_STEP, 1, 0.5, 0.0, 0};
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = 2;
  problem.center = center;
  problem.curvature = &curvature;
  problem.curvature_shared = 1;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.client_steps = steps;
  config.client_lr = rates;
  config.lr_by_version = &by_version;
  config.lr_by_step = &by_step;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &local.handle), FB_OK);
  float delta = 0;
  CHECK_EQ(fb_local_delta(local.handle, FB_F32, 1, 0, 0, &w, &delta), FB_OK);
  CHECK_EQ(delta, 1.0F);  // 0.5 * 2
  CHECK_EQ(fb_local_delta_at(local.handle, FB_F32, 1, 0, 0, 2, &w, &delta), FB_OK);
  CHECK_EQ(delta, 0.25F);
  CHECK_EQ(fb_local_delta_at(local.handle, FB_F32, 1, 1, 0, 1, &w, &delta), FB_OK);
  CHECK_EQ(delta, 1 - 0.75F * 0.875F);  // steps of 0.25 and 0.125
  CHECK_EQ(fb_local_delta_at(local.handle, FB_F32, 1, 1, 0, -1, &w, &delta), FB_ERR_ARGUMENT);
}

TEST(local_sgd_scales_deltas_as_fednova_does) {
  const std::int32_t dim = 1;
  const double center[] = {0, 0}, curvature = 1, w = 1;
  const std::int64_t steps[] = {1, 3};
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = 2;
  problem.center = center;
  problem.curvature = &curvature;
  problem.curvature_shared = 1;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.client_steps = steps;
  config.lr = 0.5;
  config.method = FB_METHOD_FEDNOVA;
  const auto delta_of = [&](std::int64_t client) {
    Owned<fb_local> local(fb_local_destroy);
    CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &local.handle), FB_OK);
    double delta = 0;
    CHECK_EQ(fb_local_delta(local.handle, FB_F64, 1, client, 0, &w, &delta), FB_OK);
    return delta;
  };
  CHECK_EQ(delta_of(0), 1.0);                    // 0.5 times the mean of 1 and 3
  CHECK_EQ(delta_of(1), 2.0 / 3 * (1 - 0.125));  // 3 steps
  config.effective_steps = 6;
  CHECK_EQ(delta_of(1), 2 * (1 - 0.125));
  config.momentum = 0.5;  // weights 1 and 1 + 1.5 + 1.75
  CHECK_EQ(delta_of(0), 3.0);
  fb_local* none = nullptr;
  const auto refused = [&](auto change) {
    fb_local_config broken = config;
    change(broken);
    CHECK_EQ(fb_local_create(&problem, &broken, FB_F64, &none), FB_ERR_ARGUMENT);
  };
  const fb_learning_rate rate{1.0, FB_DECAY_NONE, 1, 0.5, 0.0, 0};
  refused([](fb_local_config& c) { c.method = 7; });
  refused([](fb_local_config& c) { c.method = FB_METHOD_SGD; });  // with effective_steps
  refused([](fb_local_config& c) { c.effective_steps = -1; });
  refused([](fb_local_config& c) { c.momentum = 1; });
  refused([](fb_local_config& c) { c.prox = 0.1; });
  refused([&](fb_local_config& c) { c.lr_by_step = &rate; });
}

TEST(local_sgd_keeps_the_state_of_clients) {
  const std::int32_t dim = 1;
  const double center[] = {0, 2}, curvature = 1, w = 1, control = 0.5;
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = 2;
  problem.center = center;
  problem.curvature = &curvature;
  problem.curvature_shared = 1;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.lr = 0.5;
  config.method = FB_METHOD_SCAFFOLD;
  Owned<fb_local> scaffold(fb_local_destroy), feddyn(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &scaffold.handle), FB_OK);
  config.method = FB_METHOD_FEDDYN;
  config.alpha = 2;
  config.steps = 2;
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &feddyn.handle), FB_OK);
  double state = 0.25, delta = 0;
  CHECK_EQ(fb_local_delta_state(scaffold.handle, FB_F64, 1, 1, 0, 0, &w, &control, &state, &delta), FB_OK);
  CHECK_EQ(delta, 0.5 * (1 - 2 + 0.5 - 0.25));
  CHECK_EQ(state, 0.25 - 0.5 + delta / 0.5);
  state = 0.25;
  CHECK_EQ(fb_local_delta_state(feddyn.handle, FB_F64, 1, 0, 0, 0, &w, nullptr, &state, &delta), FB_OK);
  const double first = 1 - 0.5 * (1 - 0.25), second = first - 0.5 * (first - 0.25 + 2 * (first - 1));
  CHECK_EQ(delta, 1 - second);
  CHECK_EQ(state, 0.25 + 2 * delta);
  CHECK_EQ(fb_local_delta(scaffold.handle, FB_F64, 1, 0, 0, &w, &delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta_state(scaffold.handle, FB_F64, 1, 0, 0, 0, &w, nullptr, &state, &delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta_state(feddyn.handle, FB_F64, 1, 0, 0, 0, &w, &control, &state, &delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta_state(feddyn.handle, FB_F64, 1, 0, 0, 0, &w, nullptr, nullptr, &delta), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_delta_state(feddyn.handle, FB_F64, 1, 2, 0, 0, &w, nullptr, &state, &delta), FB_ERR_ARGUMENT);
  fb_local* none = nullptr;
  const auto refused = [&](auto change) {
    fb_local_config broken = config;
    change(broken);
    CHECK_EQ(fb_local_create(&problem, &broken, FB_F64, &none), FB_ERR_ARGUMENT);
  };
  refused([](fb_local_config& c) { c.alpha = 0; });
  refused([](fb_local_config& c) { c.method = FB_METHOD_SCAFFOLD; });  // with alpha
  refused([](fb_local_config& c) { c.momentum = 0.5; });
  refused([](fb_local_config& c) { c.weight_decay = 0.5; });
  refused([](fb_local_config& c) { c.prox = 0.5; });
  refused([](fb_local_config& c) {
    c.method = FB_METHOD_SCAFFOLD;
    c.alpha = 0;
    c.lr = 0;
  });
}

TEST(servers_keep_a_control_variate) {
  fb_rule rule = FB_RULE_INIT;
  rule.buffer_size = 2;
  rule.n_clients = 4;
  rule.control = FB_CONTROL_MEAN;
  rule.control_pull = 2;
  const double w = 1, delta = 0.25, change = 0.5, bad = kNan;
  Owned<fb_server> server(fb_server_destroy);
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, &w, &server.handle), FB_OK);
  std::int64_t version = 0;
  for (int i = 0; i < 3; ++i) {
    fb_model* model = nullptr;
    CHECK_EQ(fb_server_download(server.handle, &version, &model), FB_OK);
    CHECK_EQ(static_cast<const double*>(fb_model_data(model))[1], 0.0);
    fb_model_release(model);
  }
  const auto upload = [&](const double* changes) {
    return fb_server_upload_change(server.handle, FB_F64, 1, &delta, changes, 0, 1.0, FB_NO_TICKET, nullptr);
  };
  CHECK_EQ(fb_server_upload(server.handle, FB_F64, 1, &delta, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(upload(nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(upload(&bad), FB_ERR_NOT_FINITE);
  CHECK_EQ(upload(&change), FB_OK);
  CHECK_EQ(upload(&change), FB_OK);
  fb_model* model = fb_server_model(server.handle);
  CHECK_EQ(static_cast<const double*>(fb_model_data(model))[0], 1 - 0.5 - 2 * 0.25);
  CHECK_EQ(static_cast<const double*>(fb_model_data(model))[1], 0.25);
  fb_model_release(model);
  fb_server* none = nullptr;
  const auto refused = [&](auto broken) {
    fb_rule bent = rule;
    broken(bent);
    CHECK_EQ(fb_server_create(&bent, FB_F64, 1, &w, &none), FB_ERR_ARGUMENT);
  };
  refused([](fb_rule& r) { r.n_clients = 0; });
  refused([](fb_rule& r) { r.control = 2; });
  refused([](fb_rule& r) { r.control = FB_CONTROL_NONE; });
  refused([](fb_rule& r) { r.control_pull = -1; });
  refused([](fb_rule& r) { r.unit = 1; });
  refused([](fb_rule& r) { r.table = FB_TABLE_ROWS; });
}

TEST(local_sgd_refuses_broken_problems) {
  const std::int64_t offsets[] = {0, 2, 3}, broken[] = {0, 3, 2}, hollow[] = {0, 0, 3};
  const std::int32_t sizes[] = {2, 3}, bad_sizes[] = {0, 3}, label[] = {0, 2, 1}, bad_label[] = {0, 3, 1};
  const float x[] = {1, 2, 3, 4, 5, 6};
  fb_problem good = FB_PROBLEM_INIT;
  good.head = FB_SOFTMAX;
  good.intercept = 1;
  good.layer_size = sizes;
  good.n_clients = 2;
  good.offsets = offsets;
  good.x = x;
  good.label = label;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.batch_size = 2;
  config.lr = 0.1;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create(&good, &config, FB_F32, &local.handle), FB_OK);
  CHECK_EQ(fb_local_dim(local.handle), 9);
  const float w[9] = {};
  float delta[9] = {}, again[9] = {};
  CHECK_EQ(fb_local_delta(local.handle, FB_F32, 9, 0, 5, w, delta), FB_OK);
  CHECK_EQ(fb_local_delta(local.handle, FB_F32, 9, 0, 5, w, again), FB_OK);
  CHECK(std::memcmp(delta, again, sizeof delta) == 0 && delta[0] != 0);
  fb_local* none = nullptr;
  const auto refused = [&](auto change) {
    fb_problem problem = good;
    fb_local_config options = config;
    change(problem, options);
    CHECK_EQ(fb_local_create(&problem, &options, FB_F32, &none), FB_ERR_ARGUMENT);
    CHECK(none == nullptr);
  };
  refused([](fb_problem& p, fb_local_config&) { p.family = 3; });
  refused([](fb_problem& p, fb_local_config&) { p.head = 3; });
  refused([](fb_problem& p, fb_local_config&) { p.head = FB_SQUARED; });  // no target, three outputs
  refused([](fb_problem& p, fb_local_config&) { p.n_layers = 17; });
  refused([](fb_problem& p, fb_local_config&) { p.intercept = 2; });
  refused([](fb_problem& p, fb_local_config&) { p.layer_size = nullptr; });
  refused([](fb_problem& p, fb_local_config&) { p.x = nullptr; });
  refused([](fb_problem& p, fb_local_config&) { p.label = nullptr; });
  refused([](fb_problem& p, fb_local_config&) { p.offsets = nullptr; });
  refused([](fb_problem& p, fb_local_config&) { p.n_clients = 0; });
  refused([](fb_problem& p, fb_local_config&) { p.l2 = kNan; });
  refused([](fb_problem& p, fb_local_config&) { p.family = FB_SPARSE; });
  refused([&](fb_problem& p, fb_local_config&) { p.layer_size = bad_sizes; });
  refused([&](fb_problem& p, fb_local_config&) { p.label = bad_label; });
  refused([&](fb_problem& p, fb_local_config&) { p.offsets = broken; });
  refused([&](fb_problem& p, fb_local_config&) { p.offsets = hollow; });
  refused([](fb_problem&, fb_local_config& c) { c.steps = 0; });
  refused([](fb_problem&, fb_local_config& c) { c.batch_size = -1; });
  refused([](fb_problem&, fb_local_config& c) { c.lr = kNan; });
  const std::int64_t steps[] = {1, 0};
  const double rates[] = {0.1, -0.1};
  const fb_learning_rate rate{1.0, FB_DECAY_STEP, 0, 0.5, 0.0, 0};
  refused([](fb_problem&, fb_local_config& c) { c.epochs = -1; });
  refused([](fb_problem&, fb_local_config& c) { c.epochs = std::int64_t{1} << 32; });
  refused([](fb_problem&, fb_local_config& c) { c.drop_last = 2; });
  refused([](fb_problem&, fb_local_config& c) { c.epochs = c.drop_last = 1; });  // client 1 has one row
  refused([&](fb_problem&, fb_local_config& c) { c.client_steps = steps; });
  refused([&](fb_problem&, fb_local_config& c) { c.client_lr = rates; });
  refused([&](fb_problem&, fb_local_config& c) { c.lr_by_version = &rate; });
  refused([&](fb_problem&, fb_local_config& c) { c.lr_by_step = &rate; });
  CHECK_EQ(fb_local_create(nullptr, &config, FB_F32, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_create(&good, nullptr, FB_F32, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_create(&good, &config, FB_I32, &none), FB_ERR_ARGUMENT);
  good.abi = 9;
  CHECK_EQ(fb_local_create(&good, &config, FB_F32, &none), FB_ERR_ABI);
}

namespace {

// The gradient of |w - 1|^2 / 2, or trouble.
std::int32_t toward_one(std::int64_t client, std::int64_t n_rows, const std::int64_t*, const void* w,
                        void* gradient_out, void* context) {
  if (client == 1) {
    return 3;
  }
  if (client == 2) {
    throw std::runtime_error("the host's own trouble");
  }
  *static_cast<std::int64_t*>(context) += n_rows;
  for (int j = 0; j < 2; ++j) {
    static_cast<double*>(gradient_out)[j] = static_cast<const double*>(w)[j] - 1;
  }
  return 0;
}

}  // namespace

TEST(local_sgd_refuses_more_weights_than_can_be_counted) {
  const std::vector<std::int32_t> size = {1 << 30, 2147483647, 2147483647, 2147483647, 1};
  const std::vector<std::int64_t> offsets = {0, 1};
  const double x = 0, target = 0;
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_NET;
  problem.n_layers = 4;
  problem.layer_size = size.data();
  problem.n_clients = 1;
  problem.offsets = offsets.data();
  problem.x = &x;
  problem.target = &target;
  const fb_local_config config = FB_LOCAL_CONFIG_INIT;
  fb_local* local = nullptr;
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &local), FB_ERR_ARGUMENT);
  CHECK(local == nullptr);
}

TEST(a_state_with_counts_that_overflow_is_refused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Server server(make_rule(2), 3);
  server.download(2);
  fb_server_state state = FB_SERVER_STATE_INIT;
  std::int64_t version = 0, due = 0;
  const void* kept = nullptr;
  state.due_version = &version;
  state.due = &due;
  state.kept = &kept;
  CHECK_EQ(fb_server_get_state(server.handle, &state), FB_OK);
  const fb_rule rule = make_rule(2);
  fb_server* other = nullptr;
  const auto refused = [&](std::int64_t& field) {
    const std::int64_t before = std::exchange(field, kMost);
    const fb_status status = fb_server_restore(&rule, FB_F64, 3, &state, &other);
    field = before;
    return status == FB_ERR_ARGUMENT && other == nullptr;
  };
  CHECK(refused(state.version) && refused(state.dropped) && refused(due));
  CHECK_EQ(fb_server_restore(&rule, FB_F64, 3, &state, &other), FB_OK);
  fb_server_destroy(&other);
}

TEST(local_sgd_with_the_hosts_gradient) {
  const std::int64_t samples[] = {4, 4, 4}, hollow[] = {4, 0, 4};
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.steps = 2;
  config.lr = 0.5;
  std::int64_t rows_seen = 0;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create_custom(toward_one, &rows_seen, 3, samples, &config, FB_F64, 2, &local.handle), FB_OK);
  const double w[] = {0, 0};
  double delta[2];
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, 0, 0, w, delta), FB_OK);
  CHECK(delta[0] == -0.75 && rows_seen == 8);
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, 1, 0, w, delta), FB_ERR_HOST);
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, 2, 2, 0, w, delta), FB_ERR_HOST);
  fb_local* none = nullptr;
  CHECK_EQ(fb_local_create_custom(nullptr, nullptr, 3, samples, &config, FB_F64, 2, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_create_custom(toward_one, nullptr, 3, hollow, &config, FB_F64, 2, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_local_create_custom(toward_one, nullptr, 3, samples, &config, FB_F64, 0, &none), FB_ERR_ARGUMENT);
}

TEST(queue_orders_by_time_kind_and_creation) {
  Owned<fb_queue> queue(fb_queue_destroy);
  CHECK_EQ(fb_queue_create(&queue.handle), FB_OK);
  fb_event event;
  CHECK_EQ(fb_queue_pop(queue.handle, &event), FB_ERR_EMPTY);
  CHECK_EQ(fb_queue_peek(queue.handle, &event), FB_ERR_EMPTY);
  for (const double bad : {-1.0, kNan, HUGE_VAL}) {
    CHECK_EQ(fb_queue_push(queue.handle, bad, 0, 0), FB_ERR_ARGUMENT);
  }
  CHECK_EQ(fb_queue_push(queue.handle, 1.0, 0, 4), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_queue_push(queue.handle, 1.0, 0, -1), FB_ERR_ARGUMENT);
  // Rounds that fill and half empty it, against a sorted list.
  struct Want {
    double time;
    std::int32_t kind;
    std::int64_t item;
  };
  std::vector<Want> want;
  check::Numbers numbers(6);
  std::int64_t item = 0;
  double now = 0;
  const auto pop = [&] {
    const auto first = std::min_element(want.begin(), want.end(), [](const Want& a, const Want& b) {
      return std::tie(a.time, a.kind, a.item) < std::tie(b.time, b.kind, b.item);
    });
    CHECK_EQ(fb_queue_peek(queue.handle, &event), FB_OK);
    CHECK_EQ(event.item, first->item);
    CHECK_EQ(fb_queue_pop(queue.handle, &event), FB_OK);
    CHECK(event.time == first->time && event.kind == first->kind && event.item == first->item);
    now = event.time;
    want.erase(first);
  };
  for (const int n : {1, 30, 200, 900}) {
    for (int i = 0; i < n; ++i) {
      const double time = now + std::floor(4 * (numbers.next() + 1)) * (i % 3);  // many ties, some at minus zero
      const auto kind = static_cast<std::int32_t>(numbers.below(4));
      CHECK_EQ(fb_queue_push(queue.handle, time == 0 ? -0.0 : time, item, kind), FB_OK);
      want.push_back({time, kind, item++});
    }
    for (int i = 0; i < n / 2; ++i) {
      pop();
    }
    CHECK_EQ(fb_queue_size(queue.handle), static_cast<std::int64_t>(want.size()));
  }
  while (!want.empty()) {
    pop();
  }
  CHECK_EQ(fb_queue_push(queue.handle, 1.0, std::numeric_limits<std::int64_t>::min(), 0), FB_OK);
  CHECK_EQ(fb_queue_clear(queue.handle), FB_OK);
  CHECK_EQ(fb_queue_pop(queue.handle, &event), FB_ERR_EMPTY);
  CHECK_EQ(fb_queue_push(queue.handle, 0.5, 8, 0), FB_OK);
  CHECK_EQ(fb_queue_pop(queue.handle, &event), FB_OK);
  CHECK(event.item == 8 && event.time == 0.5);
}

TEST(local_sgd_over_tokens) {
  std::vector<std::int32_t> token = {0, 3, 3, 2, 0, 0};
  const std::int32_t label[] = {0, 1};
  const std::int64_t offsets[] = {0, 2};
  std::vector<fb_layer> layers(3, FB_LAYER_INIT);
  layers[0].kind = FB_LAYER_EMBEDDING;
  layers[0].out = 2;
  layers[0].vocabulary = 4;
  layers[1].kind = FB_LAYER_MEAN_OVER_TIME;
  layers[2].kind = FB_LAYER_DENSE;
  layers[2].out = 2;
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = 3;
  network.layers = layers.data();
  network.input_shape[0] = 3;
  network.input_shape[1] = network.input_shape[2] = 1;
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_LAYERS;
  problem.head = FB_SOFTMAX;
  problem.n_clients = 1;
  problem.offsets = offsets;
  problem.token = token.data();
  problem.label = label;
  problem.network = &network;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.lr = 0.25;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &local.handle), FB_OK);
  const std::int64_t dim = fb_local_dim(local.handle);
  CHECK_EQ(dim, 4 * 2 + 2 * 2 + 2);
  std::vector<double> w(static_cast<std::size_t>(dim)), delta(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = 0.125 * static_cast<double>(i * i % 7);
  }
  CHECK_EQ(fb_local_delta(local.handle, FB_F64, dim, 0, 0, w.data(), delta.data()), FB_OK);
  CHECK(delta[0] != 0 && delta[2] == 0 && delta[3] == 0 && delta[4] != 0 && delta[6] != 0);

  Owned<fb_local> none(fb_local_destroy);
  for (const std::int32_t bad : {-1, 4}) {
    token[4] = bad;
    CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &none.handle), FB_ERR_ARGUMENT);
  }
  problem.token = nullptr;
  CHECK_EQ(fb_local_create(&problem, &config, FB_F64, &none.handle), FB_ERR_ARGUMENT);
}

TEST(local_sgd_over_bytes) {
  const std::uint8_t byte[] = {0, 255, 7, 128};
  std::vector<float> x;
  for (const std::uint8_t b : byte) {
    x.push_back(static_cast<float>(0.5 * b - 3));
  }
  const std::int32_t label[] = {0, 1};
  const std::int64_t offsets[] = {0, 2};
  fb_layer layer = FB_LAYER_INIT;
  layer.kind = FB_LAYER_DENSE;
  layer.out = 2;
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = 1;
  network.layers = &layer;
  network.input_shape[0] = 2;
  network.input_shape[1] = network.input_shape[2] = 1;
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_LAYERS;
  problem.head = FB_SOFTMAX;
  problem.n_clients = 1;
  problem.offsets = offsets;
  problem.label = label;
  problem.network = &network;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.lr = 0.25;
  const std::vector<float> w = {0.1F, -0.2F, 0.3F, 0.4F, 0, 1};
  std::vector<float> delta[2] = {std::vector<float>(6), std::vector<float>(6)};
  for (int bytes = 0; bytes < 2; ++bytes) {
    problem.x = bytes == 0 ? x.data() : nullptr;
    problem.byte = bytes == 0 ? nullptr : byte;
    problem.scale = bytes == 0 ? 1 : 0.5;
    problem.shift = bytes == 0 ? 0 : -3;
    Owned<fb_local> local(fb_local_destroy);
    CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &local.handle), FB_OK);
    CHECK_EQ(fb_local_delta(local.handle, FB_F32, 6, 0, 0, w.data(), delta[bytes].data()), FB_OK);
  }
  CHECK(delta[0] == delta[1] && delta[0][0] != 0);
  Owned<fb_local> none(fb_local_destroy);
  problem.scale = kNan;
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &none.handle), FB_ERR_ARGUMENT);
  problem.scale = 1;
  problem.x = x.data();  // which of the two?
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &none.handle), FB_ERR_ARGUMENT);
}

TEST(local_sgd_of_a_network) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::int32_t label[] = {0, 1};
  const std::int64_t offsets[] = {0, 2};
  std::vector<fb_layer> layers(4, FB_LAYER_INIT);
  layers[0].kind = FB_LAYER_CONV2D;
  layers[0].out = 3;
  layers[0].kernel[0] = 2;
  layers[1].kind = FB_LAYER_RELU;
  layers[3].kind = FB_LAYER_DENSE;
  layers[3].out = 2;
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = 4;
  network.layers = layers.data();
  const std::int32_t shape[3] = {1, 2, 2};
  std::copy(shape, shape + 3, network.input_shape);
  std::int64_t dim = 0;
  char text[120] = "?";
  CHECK_EQ(fb_network_check(&network, &dim, text, sizeof text), FB_OK);
  CHECK_EQ(std::string(text), "");
  CHECK_EQ(dim, 3 * 2 + 3 + 2 * 6 + 2);
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_LAYERS;
  problem.head = FB_SOFTMAX;
  problem.n_clients = 1;
  problem.offsets = offsets;
  problem.x = x.data();
  problem.label = label;
  problem.network = &network;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.lr = 0.25;
  config.steps = 2;
  Owned<fb_local> local(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &local.handle), FB_OK);
  CHECK_EQ(fb_local_dim(local.handle), dim);
  layers[3].out = -1;  // copied: no longer of interest
  std::vector<float> w(static_cast<std::size_t>(dim), 0.5F), delta(w.size());
  CHECK_EQ(fb_local_delta(local.handle, FB_F32, dim, 0, 0, w.data(), delta.data()), FB_OK);
  CHECK(delta[0] != 0 && std::all_of(delta.begin(), delta.end(), [](float d) { return std::isfinite(d); }));
  // The two outputs have the same weights to begin with: what one loses the other gains.
  CHECK_EQ(delta[9], -delta[15]);

  Owned<fb_local> none(fb_local_destroy);
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &none.handle), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_network_check(&network, nullptr, text, sizeof text), FB_ERR_ARGUMENT);
  CHECK_EQ(std::string(text), "layer 3 (dense): expected at least 1 output, got -1");
  CHECK_EQ(fb_network_check(&network, nullptr, text, 8), FB_ERR_ARGUMENT);
  CHECK_EQ(std::string(text), "layer 3");
  CHECK_EQ(fb_network_check(&network, nullptr, nullptr, 0), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_network_check(nullptr, nullptr, nullptr, 0), FB_ERR_ARGUMENT);
  network.abi = 99;
  CHECK_EQ(fb_network_check(&network, &dim, nullptr, 0), FB_ERR_ABI);
  network.abi = FB_ABI_VERSION;
  network.layers = nullptr;
  CHECK_EQ(fb_network_check(&network, &dim, nullptr, 0), FB_ERR_ARGUMENT);
  problem.network = nullptr;
  CHECK_EQ(fb_local_create(&problem, &config, FB_F32, &none.handle), FB_ERR_ARGUMENT);
}
