// The server through the C ABI: what it computes, every status, every misuse, and many threads at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "check.hpp"
#include "fedbuff/fedbuff.h"

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

fb_rule make_rule(std::int64_t buffer_size, double lr = 1.0) {
  fb_rule rule = FB_RULE_INIT;
  rule.buffer_size = buffer_size;
  rule.lr = lr;
  return rule;
}

struct Server {
  fb_server* handle = nullptr;

  Server() = default;
  Server(const fb_rule& rule, std::vector<double> w0) {
    CHECK_EQ(fb_server_create(&rule, FB_F64, static_cast<std::int64_t>(w0.size()), w0.data(), &handle), FB_OK);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { fb_server_destroy(&handle); }

  std::int64_t download() {
    std::int64_t version = -1;
    fb_model* model = nullptr;
    CHECK_EQ(fb_server_download(handle, &version, &model), FB_OK);
    fb_model_release(model);
    return version;
  }
  fb_status upload(std::vector<double> delta, std::int64_t version, double e = 1.0) {
    outcome = -1;
    const auto dim = static_cast<std::int64_t>(delta.size());
    return fb_server_upload(handle, FB_F64, dim, delta.data(), version, e, FB_NO_TICKET, &outcome);
  }
  std::vector<double> w() {
    fb_model* model = fb_server_model(handle);
    const auto* data = static_cast<const double*>(fb_model_data(model));
    std::vector<double> copy(data, data + fb_server_dim(handle));
    fb_model_release(model);
    return copy;
  }

  std::int32_t outcome = -1;
};

// What a caller may read of a server, to see that nothing changed.
std::vector<double> state_of(Server& server) {
  std::vector<double> all = server.w();
  for (const auto& read : {fb_server_version, fb_server_fill, fb_server_dropped, fb_server_outstanding}) {
    all.push_back(static_cast<double>(read(server.handle)));
  }
  return all;
}

}  // namespace

TEST(server_says_what_it_is) {
  CHECK_EQ(fb_abi_version(), std::uint32_t{FB_ABI_VERSION});
  CHECK(std::strlen(fb_level()) > 0);
  for (int status = FB_OK; status <= FB_ERR_CLIENT; ++status) {
    CHECK(std::strcmp(fb_status_text(status), "unknown status") != 0);
  }
  CHECK(std::strcmp(fb_status_text(99), "unknown status") == 0);
}

TEST(server_refuses_what_overflows) {
  constexpr double kMost = std::numeric_limits<double>::max();
  for (const double momentum : {0.0, 0.5}) {
    fb_rule rule = make_rule(2);
    rule.momentum = momentum;
    Server server(rule, {-kMost, 1.0});
    for (int i = 0; i < 4; ++i) {
      server.download();
    }
    CHECK_EQ(server.upload({0.0, kMost}, 0), FB_OK);
    const std::vector<double> before = state_of(server);
    CHECK_EQ(server.upload({0.0, kMost}, 0), FB_ERR_OVERFLOW);
    CHECK_EQ(server.upload({0.0, kNan}, 0), FB_ERR_NOT_FINITE);
    CHECK_EQ(server.upload({kMost / 2, 0.0}, 0), FB_ERR_DIVERGED);
    CHECK(state_of(server) == before);
    CHECK_EQ(server.upload({-kMost / 2, -kMost}, 0), FB_OK);
    CHECK_EQ(server.outcome, std::int32_t{FB_STEPPED});
    CHECK(server.w() == (std::vector<double>{-kMost / 2, 1.0}));
  }
}

TEST(server_sums_and_steps) {
  Server server(make_rule(2, 0.5), {1.0, 2.0});
  CHECK_EQ(server.download(), 0);
  CHECK_EQ(server.download(), 0);
  CHECK_EQ(server.upload({1.0, 0.0}, 0), FB_OK);
  CHECK_EQ(server.outcome, std::int32_t{FB_ADDED});
  CHECK_EQ(fb_server_fill(server.handle), 1);
  CHECK_EQ(server.upload({1.0, 4.0}, 0), FB_OK);
  CHECK_EQ(server.outcome, std::int32_t{FB_STEPPED});
  CHECK(server.w() == (std::vector<double>{0.0, 0.0}));
  CHECK(fb_server_version(server.handle) == 1 && fb_server_fill(server.handle) == 0);
  CHECK_EQ(fb_server_outstanding(server.handle), 0);
  CHECK_EQ(server.download(), 1);
  CHECK_EQ(fb_server_cancel(server.handle, 1), FB_OK);
  const double delta[2] = {1, 1};
  server.download();
  CHECK_EQ(fb_server_upload(server.handle, FB_F64, 2, delta, 1, 1.0, FB_NO_TICKET, nullptr),
           FB_OK);  // the outcome may be left out
}

TEST(server_norms) {
  const double want[] = {-(2.0 * 1 + 3.0 * 0.5), -(2.0 + 1.5) / 2, -(2.0 + 1.5) / 5, -(2.0 + 1.5) / 3.5,
                         -(2.0 + 1.5) / 7};
  for (std::int32_t norm = FB_NORM_ONE; norm <= FB_NORM_CLIENTS; ++norm) {
    fb_rule rule = make_rule(2);
    rule.norm = norm;
    rule.n_clients = 7;
    Server server(rule, {0.0});
    // e = 2 with s = 1 at version 1, and e = 3 with s = 1/2 from version 0
    const double s[] = {1.0, 0.5};
    CHECK_EQ(fb_server_set_staleness(server.handle, s, 2), FB_OK);
    for (int i = 0; i < 3; ++i) {
      server.download();
    }
    server.upload({0.0}, 0), server.upload({0.0}, 0);
    CHECK_EQ(server.download(), 1);
    CHECK_EQ(server.upload({1.0}, 1, 2.0), FB_OK);
    CHECK_EQ(server.upload({1.0}, 0, 3.0), FB_OK);
    CHECK_NEAR(server.w()[0], want[norm], 4, 1.0, norm);
  }
}

TEST(server_base_current_keeps_what_it_needs) {
  fb_rule rule = make_rule(1);
  rule.base = FB_BASE_CURRENT;
  Server server(rule, {10.0});
  server.download(), server.download();
  CHECK_EQ(server.upload({1.0}, 0), FB_OK);  // w 9
  CHECK_EQ(fb_server_live_models(server.handle), 2);
  CHECK_EQ(server.upload({2.0}, 0), FB_OK);  // the client ended at 8: 9 - 8 = 1 is taken off
  CHECK_EQ(server.w()[0], 8.0);
  CHECK_EQ(fb_server_live_models(server.handle), 1);
}

TEST(server_momentum_and_adam) {
  fb_rule rule = make_rule(1, 0.1);
  rule.momentum = 0.5;
  Server sgd(rule, {0.0});
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(sgd.upload({1.0}, sgd.download()), FB_OK);
  }
  CHECK_NEAR(sgd.w()[0], -0.1 - 0.15, 4, 1.0, 0);
  rule = make_rule(1, 0.1);
  rule.optimizer = FB_ADAM;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  Server adam(rule, {0.0});
  CHECK_EQ(adam.upload({4.0}, adam.download()), FB_OK);
  CHECK_NEAR(adam.w()[0], -0.1 * 4 / (4 + 1e-8), 20, 1.0, 0);
}

TEST(server_held_models_stay) {
  Server server(make_rule(1), {1.0});
  fb_model* before = fb_server_model(server.handle);
  CHECK_EQ(server.upload({1.0}, server.download()), FB_OK);
  CHECK_EQ(*static_cast<const double*>(fb_model_data(before)), 1.0);
  CHECK_EQ(server.w()[0], 0.0);
  fb_server_destroy(&server.handle);
  CHECK(server.handle == nullptr);
  CHECK_EQ(*static_cast<const double*>(fb_model_data(before)), 1.0);  // longer than the server lives
  fb_model_release(before);
  fb_model_release(nullptr);
  fb_server_destroy(nullptr), fb_server_destroy(&server.handle);
}

TEST(server_statuses_change_nothing) {
  fb_rule rule = make_rule(1);
  rule.norm = FB_NORM_WEIGHTS;
  Server server(rule, {1.0, 2.0});
  server.download();
  auto before = state_of(server);
  CHECK_EQ(server.upload({1.0, 1.0}, 1), FB_ERR_NEVER_GIVEN);
  CHECK_EQ(server.upload({1.0, 1.0}, -1), FB_ERR_NEVER_GIVEN);
  CHECK_EQ(server.upload({1.0, 1.0}, std::numeric_limits<std::int64_t>::max()), FB_ERR_NEVER_GIVEN);
  CHECK_EQ(server.upload({1.0, 1.0}, std::numeric_limits<std::int64_t>::min()), FB_ERR_NEVER_GIVEN);
  CHECK_EQ(fb_server_cancel(server.handle, 5), FB_ERR_NEVER_GIVEN);
  CHECK_EQ(server.upload({1.0, kNan}, 0), FB_ERR_NOT_FINITE);
  CHECK_EQ(server.upload({-HUGE_VAL, 0.0}, 0), FB_ERR_NOT_FINITE);
  CHECK_EQ(server.upload({1.0, 1.0}, 0, 0.0), FB_ERR_ZERO_NORM);
  for (const double bad : {kNan, -1.0, HUGE_VAL}) {
    CHECK_EQ(server.upload({1.0, 1.0}, 0, bad), FB_ERR_ARGUMENT);
  }
  CHECK_EQ(fb_server_upload(server.handle, FB_F64, 2, nullptr, 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_upload(nullptr, FB_F64, 2, before.data(), 0, 1.0, FB_NO_TICKET, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_cancel(nullptr, 0), FB_ERR_ARGUMENT);
  CHECK(state_of(server) == before);
  CHECK_EQ(server.upload({1.0, 1.0}, 0), FB_OK);
  CHECK_EQ(server.upload({1.0, 1.0}, 0), FB_ERR_NOTHING_DUE);
  CHECK_EQ(fb_server_cancel(server.handle, 0), FB_ERR_NOTHING_DUE);
  CHECK_EQ(server.upload({1.0, 1.0}, 1), FB_ERR_NOTHING_DUE);  // never downloaded
}

TEST(server_short_table_and_max_staleness) {
  fb_rule rule = make_rule(1);
  rule.max_staleness = 2;
  Server server(rule, {0.0});
  const double one = 1.0;
  const double more[] = {1.0, 0.5, 0.25};
  CHECK_EQ(fb_server_set_staleness(server.handle, &one, 1), FB_OK);
  server.download(), server.download();
  CHECK_EQ(server.upload({1.0}, server.download()), FB_OK);
  auto before = state_of(server);
  CHECK_EQ(server.upload({1.0}, 0), FB_ERR_SHORT_TABLE);
  CHECK(state_of(server) == before);
  CHECK_EQ(fb_server_set_staleness(server.handle, more, 3), FB_OK);
  CHECK_EQ(server.upload({1.0}, 0), FB_OK);
  CHECK_EQ(server.w()[0], -1.5);
  CHECK_EQ(server.upload({1.0}, server.download()), FB_OK);
  CHECK_EQ(server.upload({kNan}, 0), FB_OK);  // three versions old: dropped, not read
  CHECK_EQ(server.outcome, std::int32_t{FB_TOO_STALE});
  CHECK_EQ(fb_server_dropped(server.handle), 1);
  const double bad[] = {1.0, kNan}, negative[] = {-1.0};
  CHECK_EQ(fb_server_set_staleness(server.handle, bad, 2), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness(server.handle, negative, 1), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness(server.handle, nullptr, 1), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness(server.handle, &one, 0), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness(nullptr, &one, 1), FB_ERR_ARGUMENT);
}

TEST(server_weight_of_one_staleness) {
  Server server(make_rule(1), {0.0});
  const double one = 1.0;
  CHECK_EQ(fb_server_set_staleness(server.handle, &one, 1), FB_OK);
  server.download();
  CHECK_EQ(server.upload({1.0}, server.download()), FB_OK);
  CHECK_EQ(server.upload({1.0}, 0), FB_ERR_SHORT_TABLE);
  CHECK_EQ(fb_server_set_staleness_at(server.handle, 1, 0.5), FB_OK);
  CHECK_EQ(server.upload({1.0}, 0), FB_OK);
  CHECK_EQ(server.w()[0], -1.5);
  CHECK_EQ(fb_server_set_staleness_at(server.handle, -1, 0.5), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness_at(server.handle, 1, kNan), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness_at(server.handle, 1, -0.5), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_set_staleness_at(nullptr, 1, 0.5), FB_ERR_ARGUMENT);
}

TEST(server_bad_rules_are_refused) {
  const double w0[] = {1.0};
  fb_server* none = nullptr;
  const auto refused = [&](auto change) {
    fb_rule rule = make_rule(1);
    change(rule);
    CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, &none), FB_ERR_ARGUMENT);
    CHECK(none == nullptr);
  };
  refused([](fb_rule& r) { r.base = 2; });
  refused([](fb_rule& r) { r.norm = 9; });
  refused([](fb_rule& r) { r.norm = -1; });
  refused([](fb_rule& r) { r.norm = FB_NORM_CLIENTS; });
  refused([](fb_rule& r) { r.optimizer = 7; });
  refused([](fb_rule& r) { r.buffer_size = 0; });
  refused([](fb_rule& r) { r.max_staleness = -2; });
  refused([](fb_rule& r) { r.lr = kNan; });
  refused([](fb_rule& r) { r.momentum = -0.1; });
  refused([](fb_rule& r) { r.beta2 = HUGE_VAL; });
  const fb_rule rule = make_rule(1);
  CHECK_EQ(fb_server_create(nullptr, FB_F64, 1, w0, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, nullptr, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_create(&rule, FB_F64, 0, w0, &none), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_create(&rule, FB_F64, std::int64_t{1} << 50, w0, &none), FB_ERR_MEMORY);
  CHECK(none == nullptr);
  std::int64_t version;
  fb_model* model;
  CHECK_EQ(fb_server_download(nullptr, &version, &model), FB_ERR_ARGUMENT);
  Server server(rule, {1.0});
  CHECK_EQ(fb_server_download(server.handle, nullptr, &model), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_download(server.handle, &version, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_outstanding(server.handle), 0);
}

TEST(server_state_goes_round) {
  for (const std::int32_t optimizer : {FB_SGD, FB_ADAM}) {
    fb_rule rule = make_rule(2, 0.1);
    rule.base = FB_BASE_CURRENT;
    rule.optimizer = optimizer;
    rule.momentum = 0.9;
    rule.beta1 = 0.9;
    rule.beta2 = 0.99;
    rule.epsilon = 1e-6;
    Server server(rule, {1.0, -1.0, 0.5});
    for (int i = 0; i < 4; ++i) {
      server.download();
    }
    server.upload({1, 2, 3}, 0), server.upload({1, 0, 3}, 0);
    server.download(), server.download();
    server.upload({3, 2, 1}, 1);
    fb_server_state state = FB_SERVER_STATE_INIT;
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_OK);
    CHECK_EQ(state.n_due, 2);
    std::int64_t versions[2], due[2];
    const void* kept[2];
    state.due_version = versions;
    state.due = due;
    state.kept = kept;
    Server copy, restored;
    CHECK_EQ(fb_server_clone(server.handle, &copy.handle), FB_OK);
    CHECK_EQ(fb_server_get_state(copy.handle, &state), FB_OK);
    CHECK(versions[0] == 0 && versions[1] == 1 && due[0] == 2 && due[1] == 1 && kept[0] != nullptr);
    CHECK_EQ(fb_server_restore(&rule, FB_F64, 3, &state, &restored.handle), FB_OK);
    const auto go_on = [](Server& one) {
      CHECK_EQ(one.upload({0.5, 0.25, 1}, 0), FB_OK);
      CHECK_EQ(one.outcome, std::int32_t{FB_STEPPED});
      CHECK_EQ(one.upload({1, 1, 1}, 1), FB_OK);
      CHECK_EQ(one.upload({2, 1, 1}, 0), FB_OK);
      return state_of(one);
    };
    const auto want = go_on(server);
    CHECK(go_on(restored) == want);
    CHECK(go_on(copy) == want);
    const auto refused = [&](auto change) {
      fb_server_state broken = state;
      fb_server* none = nullptr;
      change(broken);
      CHECK_EQ(fb_server_restore(&rule, FB_F64, 3, &broken, &none), FB_ERR_ARGUMENT);
    };
    refused([](fb_server_state& s) { s.w = nullptr; });
    refused([](fb_server_state& s) { s.sum = nullptr; });
    refused([](fb_server_state& s) { s.fill = 2; });
    refused([](fb_server_state& s) { s.version = -1; });
    refused([](fb_server_state& s) { s.n_due = -1; });
    refused([](fb_server_state& s) { s.first = nullptr; });
    refused([&](fb_server_state&) { due[0] = 0; });
    due[0] = 2;
    refused([&](fb_server_state&) { versions[1] = 9; });
    versions[1] = 1;
    refused([&](fb_server_state&) { kept[0] = nullptr; });
    CHECK_EQ(fb_server_get_state(nullptr, &state), FB_ERR_ARGUMENT);
    CHECK_EQ(fb_server_get_state(server.handle, nullptr), FB_ERR_ARGUMENT);
    CHECK_EQ(fb_server_clone(nullptr, &copy.handle), FB_ERR_ARGUMENT);
    CHECK_EQ(fb_server_clone(server.handle, nullptr), FB_ERR_ARGUMENT);
    state.kept = nullptr;
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_ERR_ARGUMENT);
    state.size = 8;
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_ERR_ABI);
  }
}

TEST(server_smaller_parts) {
  const float w[] = {1, 2, 3}, a[] = {1, 1, 1}, b[] = {0, 2, 4}, weight[] = {1.0f, 0.5f};
  float sum[3], out[3], fused[3];
  CHECK_EQ(fb_accumulate(FB_F32, 3, nullptr, a, 1.0, sum), FB_OK);
  CHECK_EQ(fb_accumulate(FB_F32, 3, sum, b, 0.5, sum), FB_OK);
  CHECK_EQ(fb_step(FB_F32, 3, w, sum, 0.5, out), FB_OK);
  const void* const delta[] = {a, b};
  CHECK_EQ(fb_aggregate(FB_F32, 3, w, 2, delta, weight, 0.5, nullptr, fused), FB_OK);
  CHECK(std::memcmp(out, fused, sizeof out) == 0);
  CHECK(out[0] == 0.5f && out[1] == 1.0f && out[2] == 1.5f);
  const double broken[] = {1.0, kNan};
  double to[2];
  CHECK_EQ(fb_accumulate(FB_F64, 2, nullptr, broken, 1.0, to), FB_ERR_NOT_FINITE);
  CHECK_EQ(fb_accumulate(FB_F32, 3, nullptr, nullptr, 1.0, sum), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_accumulate(FB_F32, 3, nullptr, a, kNan, sum), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_accumulate(FB_F32, -3, nullptr, a, 1.0, sum), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_step(FB_F32, 3, w, nullptr, 0.5, out), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_step(FB_F32, 3, w, sum, HUGE_VAL, out), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_aggregate(FB_F32, 3, w, 2, nullptr, weight, 0.5, nullptr, out), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_aggregate(FB_F32, 3, w, -1, delta, weight, 0.5, nullptr, out), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_aggregate(FB_F32, 3, w, 0, nullptr, nullptr, 0.5, nullptr, out), FB_OK);
  CHECK(std::memcmp(out, w, sizeof out) == 0);
}

// Whatever the order of arrivals, whole numbers add up to one total; also where passes are cut into parts.
void share_a_server(std::int32_t base, std::int64_t dim, int n_tasks) {
  constexpr int kThreads = 4;
  fb_rule rule = make_rule(7);
  rule.base = base;
  Server server(rule, std::vector<double>(static_cast<std::size_t>(dim), 0.0));
  std::atomic<int> failures{0}, steps{0};
  std::atomic<bool> done{false};
  const auto client = [&](int which) {
    for (int task = 0; task < n_tasks; ++task) {
      std::int64_t version;
      fb_model* model;
      failures += fb_server_download(server.handle, &version, &model) != FB_OK;
      const auto* w = static_cast<const double*>(fb_model_data(model));
      failures += w[0] != w[dim - 1];  // a model is never seen half changed
      fb_model_release(model);
      if (task % 50 == 49) {
        failures += fb_server_cancel(server.handle, version) != FB_OK;
        continue;
      }
      const std::vector<double> delta(static_cast<std::size_t>(dim), base == FB_BASE_START ? which + 1.0 : 0.0);
      std::int32_t outcome = -1;
      failures +=
          fb_server_upload(server.handle, FB_F64, dim, delta.data(), version, 1.0, FB_NO_TICKET, &outcome) != FB_OK;
      steps += outcome == FB_STEPPED;
    }
  };
  std::thread reader([&] {
    while (!done.load()) {
      fb_server* copy = nullptr;
      failures += fb_server_clone(server.handle, &copy) != FB_OK;
      fb_server_state state = FB_SERVER_STATE_INIT;
      failures += fb_server_get_state(copy, &state) != FB_OK;
      const auto* sum = static_cast<const double*>(state.sum);
      failures += state.fill > 0 && sum[0] != sum[dim - 1];
      fb_server_destroy(&copy);
      failures += fb_server_fill(server.handle) > 7 || fb_server_outstanding(server.handle) > kThreads;
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(client, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  done = true;
  reader.join();
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(fb_server_outstanding(server.handle), 0);
  const int used = kThreads * (n_tasks - n_tasks / 50);
  CHECK_EQ(steps.load(), used / 7);
  CHECK_EQ(fb_server_version(server.handle), std::int64_t{used / 7});
  CHECK_EQ(fb_server_fill(server.handle), std::int64_t{used % 7});
  CHECK_EQ(fb_server_live_models(server.handle), 1);
  if (base == FB_BASE_START) {  // what is in the model and in the buffer is all that was sent
    fb_server_state state = FB_SERVER_STATE_INIT;
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_OK);
    const double left = state.fill > 0 ? static_cast<const double*>(state.sum)[0] : 0.0;
    CHECK_EQ(left - server.w()[0], (n_tasks - n_tasks / 50) * 10.0);
  }
}

TEST(threads_share_a_server) {
  for (const std::int32_t base : {FB_BASE_START, FB_BASE_CURRENT}) {
    share_a_server(base, 257, 400);
    share_a_server(base, 40'000, 100);
  }
}

namespace {

// Models that came back, in parts of uneven sizes, for a server that is at version 1 with downloads of both versions.
struct Models {
  explicit Models(std::int64_t dim) {
    const auto size = static_cast<std::size_t>(dim);
    for (std::size_t k = 0; k < kN; ++k) {
      start.emplace_back(size);
      model.emplace_back(size);
      delta.emplace_back(size);
      for (std::size_t j = 0; j < size; ++j) {
        start[k][j] = 1.0 / static_cast<double>(1 + j % 7 + k % 2);
        model[k][j] = start[k][j] * (1.0 + 0.01 * static_cast<double>((j * 31 + k * 17) % 101));
        delta[k][j] = start[k][j] - model[k][j];
      }
      part.emplace_back();
      end.push_back({0, dim / 3, dim / 3, (k % 2 == 0 ? dim / 2 : dim - 1), dim});
      for (std::size_t i = 0; i < end[k].size(); ++i) {
        part[k].push_back(model[k].data() + (i == 0 ? 0 : end[k][i - 1]));
      }
    }
  }
  std::vector<fb_model_upload> uploads() {
    std::vector<fb_model_upload> all(kN);
    for (std::size_t k = 0; k < kN; ++k) {
      const auto n_parts = static_cast<std::int64_t>(part[k].size());
      all[k] = {start[k].data(), part[k].data(), end[k].data(), n_parts, version(k), client(k), e(k), FB_OK, -1};
    }
    return all;
  }
  static std::int64_t version(std::size_t k) { return k % 3 == 0 ? 0 : 1; }
  static std::int64_t client(std::size_t k) { return static_cast<std::int64_t>(k % 4); }
  static double e(std::size_t k) { return 1.0 + 0.5 * static_cast<double>(k % 3); }

  static constexpr std::size_t kN = 21;  // more than are added in one pass
  std::vector<std::vector<double>> start, model, delta;
  std::vector<std::vector<const void*>> part;
  std::vector<std::vector<std::int64_t>> end;
};

std::vector<fb_rule> rules_for_models() {
  std::vector<fb_rule> rules(5, make_rule(8, 0.5));
  rules[1].base = FB_BASE_CURRENT;
  rules[1].norm = FB_NORM_ARRIVALS;
  rules[2].max_staleness = 0;
  rules[3].weight_by = FB_WEIGHT_NORM;
  rules[3].weight_epsilon = 1e-3;
  rules[4].n_clients = 4;
  rules[4].table = FB_TABLE_ROWS;
  rules[4].table_own = -1;
  rules[4].table_mean = 1;
  return rules;
}

void make_ready(Server& server, std::int64_t dim, bool has_table) {
  const std::vector<double> delta(static_cast<std::size_t>(dim), 0.25);
  for (int k = 0; k < 38; ++k) {
    if (k >= 8 && k < 16) {  // a step
      CHECK_EQ(fb_server_upload_from(server.handle, FB_F64, dim, delta.data(), 0, 1.0, has_table ? k % 4 : -1,
                                     FB_NO_TICKET, nullptr),
               FB_OK);
    }
    server.download();
  }
}

void models_are_uploaded_as_their_deltas(std::int64_t dim) {
  for (const fb_rule& rule : rules_for_models()) {
    const bool has_table = rule.table != FB_TABLE_NONE;
    const std::vector<double> w0(static_cast<std::size_t>(dim), 1.0);
    Server one(rule, w0), all(rule, w0);
    make_ready(one, dim, has_table);
    make_ready(all, dim, has_table);
    Models models(dim);
    models.model[5][1] = models.delta[5][1] = kNan;  // refused, and those around it are not
    auto uploads = models.uploads();
    uploads[9].version = 7;
    if (!has_table) {
      std::for_each(uploads.begin(), uploads.end(), [](fb_model_upload& upload) { upload.client = -1; });
    }
    CHECK_EQ(fb_server_upload_models(all.handle, FB_F64, dim, Models::kN, uploads.data()), FB_OK);
    for (std::size_t k = 0; k < Models::kN; ++k) {
      std::int32_t outcome = -1;
      const fb_status status =
          fb_server_upload_from(one.handle, FB_F64, dim, models.delta[k].data(), uploads[k].version, uploads[k].e,
                                uploads[k].client, FB_NO_TICKET, &outcome);
      CHECK_EQ(uploads[k].status, status);
      if (status == FB_OK) {
        CHECK_EQ(uploads[k].outcome, outcome);
      }
    }
    CHECK_EQ(uploads[9].status, FB_ERR_NEVER_GIVEN);
    CHECK(fb_server_version(one.handle) > 1);
    CHECK(one.w() == all.w());
    CHECK(state_of(one) == state_of(all));
  }
}

}  // namespace

TEST(models_in_parts_are_uploaded_as_their_deltas) {
  check::on_every_level([] {
    models_are_uploaded_as_their_deltas(5);
    models_are_uploaded_as_their_deltas(40'001);
  });
}

TEST(models_in_parts_that_are_none_are_refused) {
  Server server(make_rule(2), {1.0, 1.0, 1.0, 1.0, 1.0});
  const auto before = state_of(server);
  for (int wrong = 0; wrong < 8; ++wrong) {
    Models models(5);
    auto uploads = models.uploads();
    fb_model_upload& last = uploads.back();
    switch (wrong) {
      case 0: last.start = nullptr; break;
      case 1: last.part = nullptr; break;
      case 2: last.part_end = nullptr; break;
      case 3: last.n_parts = 0; break;
      case 4: models.part.back()[2] = nullptr; break;
      case 5: models.end.back().back() = 6; break;
      case 6: models.end.back()[0] = 4; break;
      default: last.e = kNan; break;
    }
    CHECK_EQ(fb_server_upload_models(server.handle, FB_F64, 5, Models::kN, uploads.data()), FB_ERR_ARGUMENT);
  }
  auto uploads = Models(5).uploads();
  CHECK_EQ(fb_server_upload_models(server.handle, FB_F64, 5, -1, uploads.data()), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_upload_models(server.handle, FB_F64, 5, 1, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_upload_models(nullptr, FB_F64, 5, 0, nullptr), FB_ERR_ARGUMENT);
  CHECK_EQ(fb_server_upload_models(server.handle, FB_F64, 5, 0, nullptr), FB_OK);
  CHECK(state_of(server) == before);
  Models models(5);
  uploads = models.uploads();
  CHECK_EQ(fb_server_upload_models(server.handle, FB_F32, 5, 1, uploads.data()), FB_ERR_DTYPE);
  CHECK_EQ(fb_server_close(server.handle), FB_OK);
  CHECK_EQ(fb_server_upload_models(server.handle, FB_F64, 5, 2, uploads.data()), FB_OK);
  CHECK_EQ(uploads[0].status, FB_ERR_CLOSED);
  CHECK_EQ(uploads[1].status, FB_ERR_CLOSED);
}

TEST(server_with_a_table_needs_clients_and_its_state_goes_round) {
  fb_rule rule = make_rule(2, 0.5);
  rule.n_clients = 3;
  rule.table = FB_TABLE_ROWS;
  rule.table_own = -1;
  rule.table_mean = 1;
  rule.optimizer = FB_AMSGRAD;
  rule.beta1 = 0.9;
  rule.beta2 = 0.99;
  rule.epsilon = 1e-3;
  Server server(rule, {1.0, -1.0});
  const auto upload = [](Server& to, std::vector<double> delta, std::int64_t client) {
    to.download();
    return fb_server_upload_from(to.handle, FB_F64, 2, delta.data(), fb_server_version(to.handle), 1.0, client,
                                 FB_NO_TICKET, nullptr);
  };
  for (const std::int64_t client : {-1, 3}) {
    CHECK_EQ(upload(server, {1, 2}, client), FB_ERR_CLIENT);
  }
  CHECK_EQ(server.upload({1, 2}, 0), FB_ERR_CLIENT);
  for (int i = 0; i < 5; ++i) {
    CHECK_EQ(upload(server, {1.0 + i, 2.0}, i % 2), FB_OK);
  }
  Server copy, restored, broken;
  CHECK_EQ(fb_server_clone(server.handle, &copy.handle), FB_OK);
  fb_server_state state = FB_SERVER_STATE_INIT;
  CHECK_EQ(fb_server_get_state(copy.handle, &state), FB_OK);
  std::vector<std::int64_t> versions(static_cast<std::size_t>(state.n_due)), due = versions;
  std::vector<const void*> kept(versions.size());
  std::vector<fb_array> arrays(static_cast<std::size_t>(state.n_arrays));
  state.due_version = versions.data();
  state.due = due.data();
  state.kept = kept.data();
  state.arrays = arrays.data();
  CHECK_EQ(fb_server_get_state(copy.handle, &state), FB_OK);
  CHECK(state.fill == 1 && arrays.size() == 6);  // third, table_total, table_seen, table_change, two rows
  CHECK_EQ(upload(server, {9, 9}, 0), FB_OK);    // the copy has its own rows
  CHECK_EQ(fb_server_restore(&rule, FB_F64, 2, &state, &restored.handle), FB_OK);
  for (Server* one : {&copy, &restored}) {
    CHECK_EQ(upload(*one, {9, 9}, 0), FB_OK);
    CHECK(one->w() == server.w());
  }
  arrays.back().key = 3;
  CHECK_EQ(fb_server_restore(&rule, FB_F64, 2, &state, &broken.handle), FB_ERR_ARGUMENT);
  arrays.back().key = 1;
  arrays.back().size = 1;
  CHECK_EQ(fb_server_restore(&rule, FB_F64, 2, &state, &broken.handle), FB_ERR_SIZE);
  arrays[0].name = "fourth";
  CHECK_EQ(fb_server_restore(&rule, FB_F64, 2, &state, &broken.handle), FB_ERR_ARGUMENT);
  double memory[6];
  CHECK_EQ(fb_server_set_table(server.handle, memory, sizeof memory), FB_ERR_ARGUMENT);  // too late
  Server other(rule, {0.0, 0.0});
  CHECK_EQ(fb_server_set_table(other.handle, memory, sizeof memory - 1), FB_ERR_SIZE);
  CHECK_EQ(fb_server_set_table(other.handle, memory, sizeof memory), FB_OK);
  CHECK_EQ(upload(other, {3, 4}, 2), FB_OK);
  CHECK(memory[4] == 3.0 && memory[5] == 4.0);
  rule.unit = 1;
  fb_server* none = nullptr;
  CHECK_EQ(fb_server_create(&rule, FB_F64, 2, memory, &none), FB_ERR_ARGUMENT);
}

namespace {

// A server that is read, restored and destroyed in the midst of what it does.
struct Restored {
  fb_rule rule;
  Server server;

  Restored(const fb_rule& its_rule, const std::vector<double>& w0) : rule(its_rule), server(its_rule, w0) {}

  void go_round() {
    fb_server_state state = FB_SERVER_STATE_INIT;
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_OK);
    const auto n_due = static_cast<std::size_t>(state.n_due), n_arrays = static_cast<std::size_t>(state.n_arrays);
    std::vector<std::int64_t> versions(n_due + 1), due(n_due + 1);
    std::vector<const void*> kept(n_due + 1);
    std::vector<fb_array> arrays(n_arrays + 1);
    state.due_version = versions.data();
    state.due = due.data();
    state.kept = kept.data();
    state.arrays = arrays.data();
    CHECK_EQ(fb_server_get_state(server.handle, &state), FB_OK);
    fb_server* again = nullptr;
    CHECK_EQ(fb_server_restore(&rule, FB_F64, fb_server_dim(server.handle), &state, &again), FB_OK);
    fb_server_destroy(&server.handle);
    server.handle = again;
  }
};

fb_rule ringleader(std::int64_t n_clients) {
  fb_rule rule = make_rule(1);
  rule.norm = FB_NORM_CLIENTS;
  rule.n_clients = n_clients;
  rule.table = FB_TABLE_ROWS;
  rule.table_keeps = FB_KEEPS_MEANS;
  rule.trigger = FB_TRIGGER_RINGLEADER;
  return rule;
}

// The mean of the weighted deltas; the state adds up how many there were.
std::int32_t own_mean(void* context, const fb_step_input* step) {
  if (step->version == 2 && context != nullptr) {
    return 7;
  }
  for (std::int64_t j = 0; j < step->dim; ++j) {
    double sum = 0;
    for (std::int64_t k = 0; k < step->n; ++k) {
      sum += step->weight[k] * static_cast<const double*>(step->delta[k])[j];
    }
    static_cast<double*>(step->w_out)[j] =
        static_cast<const double*>(step->w)[j] - step->lr * sum / static_cast<double>(step->n);
  }
  step->state[0] += static_cast<double>(step->n);
  return 0;
}

}  // namespace

TEST(server_steps_by_hand_and_reports_what_is_overdue) {
  fb_rule rule = make_rule(3);
  rule.norm = FB_NORM_ARRIVALS;
  rule.stop_stale = 1;
  Server server(rule, {0.0, 0.0});
  CHECK_EQ(fb_server_step(server.handle), FB_ERR_EMPTY);
  CHECK_EQ(fb_server_step(nullptr), FB_ERR_ARGUMENT);
  server.download(), server.download(), server.download();
  CHECK_EQ(server.upload({1.0, 2.0}, 0), FB_OK);
  CHECK_EQ(fb_server_overdue(server.handle, 0, nullptr, nullptr), 0);
  CHECK_EQ(fb_server_step(server.handle), FB_OK);
  CHECK(server.w() == (std::vector<double>{-1.0, -2.0}));
  std::int64_t version = -1, tasks = -1;
  CHECK_EQ(fb_server_overdue(server.handle, 1, &version, &tasks), 1);
  CHECK(version == 0 && tasks == 2);
  CHECK_EQ(server.upload({1.0, 2.0}, 0), FB_OK);
  CHECK_EQ(server.outcome, std::int32_t{FB_TOO_STALE});
  CHECK_EQ(fb_server_cancel(server.handle, 0), FB_OK);
  CHECK_EQ(fb_server_overdue(server.handle, 1, &version, &tasks), 0);
  CHECK_EQ(fb_server_overdue(nullptr, 0, nullptr, nullptr), -1);
  CHECK_EQ(fb_server_overdue(server.handle, 1, nullptr, nullptr), -1);
  Server rounds(ringleader(2), {0.0});
  CHECK_EQ(fb_server_step(rounds.handle), FB_ERR_ARGUMENT);
}

TEST(server_of_ringleader_goes_round) {
  const fb_rule rule = ringleader(2);
  const std::vector<double> w0(20000, 1.0);
  Restored one(rule, w0), other(rule, w0);
  for (int i = 0; i < 40; ++i) {
    one.server.download(), other.server.download();
  }
  std::int32_t outcome = -1;
  for (int i = 0; i < 30; ++i) {
    const std::vector<double> delta(w0.size(), 1.0 / (1 + i));
    const std::int64_t client = i % 5 < 3 ? 0 : 1;
    for (Restored* each : {&one, &other}) {
      CHECK_EQ(fb_server_upload_from(each->server.handle, FB_F64, 20000, delta.data(), 0, 1.0, client, FB_NO_TICKET,
                                     &outcome),
               FB_OK);
    }
    other.go_round();
    CHECK(state_of(one.server) == state_of(other.server));
  }
  CHECK(fb_server_version(one.server.handle) > 6);
  CHECK_EQ(one.server.upload(std::vector<double>(w0.size(), 1.0), 0), FB_ERR_CLIENT);
}

TEST(server_with_an_own_rule) {
  fb_rule rule = make_rule(2, 0.5);
  rule.own_step = &own_mean;
  rule.own_state = 1;
  for (const bool fails : {false, true}) {
    int marker = 0;
    rule.own_context = fails ? &marker : nullptr;
    Restored one(rule, {1.0, 2.0});
    std::vector<double> want = {1.0, 2.0};
    for (int i = 0; i < 8; ++i) {
      one.server.download();
      one.go_round();
      const std::vector<double> before = state_of(one.server);
      const fb_status status = one.server.upload({1.0 + i, -2.0}, fb_server_version(one.server.handle), 2.0);
      if (fails && fb_server_version(one.server.handle) == 2 && fb_server_fill(one.server.handle) == 1 && i > 4) {
        CHECK_EQ(status, FB_ERR_HOST);
        CHECK(state_of(one.server) == before);
        break;
      }
      CHECK_EQ(status, FB_OK);
      if (i % 2 == 1) {
        want[0] -= 0.5 * (2.0 * (1.0 + i - 1) + 2.0 * (1.0 + i)) / 2;
        want[1] -= 0.5 * -4.0;
        CHECK(one.server.w() == want);
      }
    }
  }
  rule.base = FB_BASE_CURRENT;
  fb_server* none = nullptr;
  const double w0[1] = {0};
  CHECK_EQ(fb_server_create(&rule, FB_F64, 1, w0, &none), FB_ERR_ARGUMENT);
}
