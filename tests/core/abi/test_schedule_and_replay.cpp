// Schedules, replays, the recorder, cancelled events and the words of errors, through the C ABI.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fedbuff/fedbuff.hpp"

namespace {

struct Rows {
  std::vector<std::int32_t> client;
  std::vector<std::uint32_t> task;
  std::vector<std::int64_t> version, step, staleness, started, step_rows;
  std::vector<double> start_time, arrive_time, step_time;
  std::vector<std::uint8_t> status;

  explicit Rows(std::size_t n_rows = 0, std::size_t n_steps = 0) { resize(n_rows, n_steps); }
  void resize(std::size_t n_rows, std::size_t n_steps) {
    client.resize(n_rows), task.resize(n_rows), version.resize(n_rows), step.resize(n_rows);
    staleness.resize(n_rows), start_time.resize(n_rows), arrive_time.resize(n_rows), status.resize(n_rows);
    started.resize(n_steps), step_rows.resize(n_steps), step_time.resize(n_steps);
  }
  // From this row and step on.
  fb_columns columns(std::size_t row = 0, std::size_t first_step = 0) {
    fb_columns c = FB_COLUMNS_INIT;
    c.n_rows = static_cast<std::int64_t>(client.size() - row);
    c.n_steps = static_cast<std::int64_t>(started.size() - first_step);
    c.client = client.data() + row, c.task = task.data() + row, c.version = version.data() + row;
    c.step = step.data() + row, c.staleness = staleness.data() + row, c.start_time = start_time.data() + row;
    c.arrive_time = arrive_time.data() + row, c.status = status.data() + row;
    c.step_time = step_time.data() + first_step, c.started = started.data() + first_step;
    c.step_rows = step_rows.data() + first_step;
    return c;
  }
  bool operator==(const Rows& o) const {
    return client == o.client && task == o.task && version == o.version && step == o.step && staleness == o.staleness &&
           start_time == o.start_time && arrive_time == o.arrive_time && status == o.status && started == o.started &&
           step_rows == o.step_rows && step_time == o.step_time;
  }
};

fb_delays exponential(std::int64_t n_clients) {
  fb_delays delays = FB_DELAYS_INIT;
  delays.n_clients = n_clients;
  delays.compute.kind = FB_LAW_EXPONENTIAL;
  delays.compute.p[0] = 1.0;
  return delays;
}

fb_schedule_config pool(std::int64_t concurrency, std::int64_t buffer_size, std::int64_t server_steps) {
  fb_schedule_config config = FB_SCHEDULE_CONFIG_INIT;
  config.seed = 3;
  config.concurrency = concurrency;
  config.buffer_size = buffer_size;
  config.server_steps = server_steps;
  return config;
}

// A whole schedule, in parts of this room.
Rows resolved(const fb_delays& delays, const fb_schedule_config& config, std::size_t room,
              std::int32_t want_end = FB_SCHEDULE_SERVER_STEPS) {
  fedbuff::Schedule schedule(delays, config);
  room = std::max(room, static_cast<std::size_t>(schedule.rows_needed()));
  Rows all;
  std::int32_t end = FB_SCHEDULE_MORE;
  while (end == FB_SCHEDULE_MORE) {
    const std::size_t rows = all.client.size(), steps = all.started.size();
    all.resize(rows + room, steps + room + 2);
    std::int64_t n_rows = -1, n_steps = -1;
    const fb_columns columns = all.columns(rows, steps);
    CHECK_EQ(fb_schedule_next(schedule.get(), &columns, &n_rows, &n_steps, &end), FB_OK);
    all.resize(rows + static_cast<std::size_t>(n_rows), steps + static_cast<std::size_t>(n_steps));
  }
  CHECK_EQ(end, want_end);
  return all;
}

// Client i pulls the two weights to (i, -i).
struct Pulls {
  explicit Pulls(std::int64_t n) : center(static_cast<std::size_t>(2 * n)) {
    for (std::int64_t i = 0; i < n; ++i) {
      center[static_cast<std::size_t>(2 * i)] = static_cast<double>(i);
      center[static_cast<std::size_t>(2 * i + 1)] = -static_cast<double>(i);
    }
    problem.family = FB_QUADRATIC;
    problem.n_clients = n;
    problem.layer_size = &dim;
    problem.curvature_shared = 1;
    problem.curvature = &one;
    problem.center = center.data();
    problem.noise_variance = 0.5;
    local.steps = 3;
    local.lr = 0.125;
    local.seed = 5;
  }
  Pulls(const Pulls&) = delete;
  Pulls& operator=(const Pulls&) = delete;

  const std::int32_t dim = 2;
  const double one = 1.0;
  std::vector<double> center;
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config local = FB_LOCAL_CONFIG_INIT;
};

std::string scratch(const char* name) {
  return std::string("/tmp/fedbuff-test-") + std::to_string(getpid()) + "-" + name;
}

// What is said of a status that is not FB_OK.
void check_said(fb_status status, const char* text) {
  CHECK_EQ(status, FB_ERR_ARGUMENT);
  CHECK_EQ(std::string(fb_error_text()), std::string(text));
}

}  // namespace

TEST(errors_name_the_field) {
  const double w0[] = {0.0};
  fb_server* server = nullptr;
  fb_rule rule = FB_RULE_INIT;
  rule.buffer_size = 0;
  check_said(fb_server_create(&rule, FB_F64, 1, w0, &server), "buffer_size: expected at least 1, got 0");
  rule.buffer_size = 1;
  rule.momentum = -0.5;
  check_said(fb_server_create(&rule, FB_F64, 1, w0, &server),
             "momentum: expected a finite number of at least 0, got -0.5");
  rule.momentum = 0;
  check_said(fb_server_create(&rule, FB_F64, 0, w0, &server), "dim: expected at least 1, got 0");
  CHECK_EQ(fb_server_create(nullptr, FB_F64, 1, w0, &server), FB_ERR_ARGUMENT);
  CHECK_EQ(std::string(fb_error_text()), std::string());
  CHECK(server == nullptr);

  Pulls pulls(2);
  fb_local* local = nullptr;
  pulls.local.steps = 0;
  check_said(fb_local_create(&pulls.problem, &pulls.local, FB_F64, &local), "steps: expected 1 to 2^32 - 1, got 0");
  pulls.local.steps = 1;
  const double rates[] = {0.5, -1.0};
  pulls.local.client_lr = rates;
  check_said(fb_local_create(&pulls.problem, &pulls.local, FB_F64, &local),
             "client_lr[1]: expected a finite number of at least 0, got -1");
  pulls.local.client_lr = nullptr;
  pulls.problem.center = nullptr;
  check_said(fb_local_create(&pulls.problem, &pulls.local, FB_F64, &local), "center: expected an array, not null");
  CHECK(local == nullptr);

  fb_schedule* schedule = nullptr;
  fb_delays delays = exponential(4);
  fb_schedule_config config = pool(5, 2, 10);
  check_said(fb_schedule_create(&delays, &config, &schedule), "concurrency: expected 1 to 4, got 5");
  config = pool(2, 2, -1);
  check_said(fb_schedule_create(&delays, &config, &schedule),
             "server_steps: expected a limit here, in arrivals or in max_time");
  config.server_steps = 0;
  check_said(fb_schedule_create(&delays, &config, &schedule), "server_steps: expected -1, or at least 1, got 0");
  config.server_steps = 4;
  delays.upload.kind = FB_LAW_UNIFORM;
  delays.upload.p[0] = 2.0;
  check_said(fb_schedule_create(&delays, &config, &schedule), "upload: expected 0 <= low <= high, finite");
  const std::int64_t starts[] = {0, 1, 1, 2, 3};
  delays.row_start = starts;
  check_said(fb_schedule_create(&delays, &config, &schedule),
             "row_start[2]: expected at least 1 more than the one before it, 1, got 1");
  CHECK(schedule == nullptr);

  // Every thread has a text of its own.
  std::thread([] { CHECK_EQ(std::string(fb_error_text()), std::string()); }).join();
  CHECK(std::strlen(fb_error_text()) > 0);
}

TEST(cancelled_events_do_not_come_out) {
  fb_queue* queue = nullptr;
  CHECK_EQ(fb_queue_create(&queue), FB_OK);
  CHECK_EQ(fb_queue_cancel(queue, 0), FB_ERR_TICKET);
  check::Numbers numbers(4);
  struct Pending {
    double time;
    std::int64_t item, ticket;
  };
  std::vector<Pending> pending;
  std::vector<std::int64_t> gone;
  double now = 0;
  for (std::int64_t item = 0; item < 4000; ++item) {
    Pending one{now + std::floor(8 * (numbers.next() + 1)), item, -1};
    CHECK_EQ(fb_queue_push_ticket(queue, one.time, item, 0, &one.ticket), FB_OK);
    pending.push_back(one);
    if (item % 3 == 1) {
      const auto which = static_cast<std::size_t>(numbers.below(static_cast<std::int64_t>(pending.size())));
      CHECK_EQ(fb_queue_cancel(queue, pending[which].ticket), FB_OK);
      CHECK_EQ(fb_queue_cancel(queue, pending[which].ticket), FB_ERR_TICKET);
      gone.push_back(pending[which].ticket);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (item % 2 == 1 && !pending.empty()) {
      const auto first = std::min_element(pending.begin(), pending.end(), [](const Pending& a, const Pending& b) {
        return a.time != b.time ? a.time < b.time : a.item < b.item;
      });
      fb_event event;
      CHECK_EQ(fb_queue_pop(queue, &event), FB_OK);
      CHECK(event.item == first->item && event.time == first->time);
      CHECK_EQ(fb_queue_cancel(queue, first->ticket), FB_ERR_TICKET);
      now = event.time;
      pending.erase(first);
    }
    CHECK_EQ(fb_queue_size(queue), static_cast<std::int64_t>(pending.size()));
  }
  for (const std::int64_t ticket : gone) {
    CHECK_EQ(fb_queue_cancel(queue, ticket), FB_ERR_TICKET);
  }
  while (!pending.empty()) {
    CHECK_EQ(fb_queue_cancel(queue, pending.back().ticket), FB_OK);
    pending.pop_back();
  }
  fb_event event;
  CHECK_EQ(fb_queue_pop(queue, &event), FB_ERR_EMPTY);
  CHECK_EQ(fb_queue_cancel(queue, -1), FB_ERR_TICKET);
  CHECK_EQ(fb_queue_cancel(queue, INT64_MAX), FB_ERR_TICKET);
  fb_queue_destroy(&queue);
}

TEST(a_c_schedule_does_not_depend_on_its_room) {
  const fb_delays delays = exponential(20);
  const fb_schedule_config config = pool(8, 3, 200);
  const Rows whole = resolved(delays, config, 5000);
  CHECK_EQ(whole.started.size(), std::size_t{200});
  for (const std::size_t room : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    CHECK(resolved(delays, config, room) == whole);
  }
  std::int64_t used = 0;
  for (const std::uint8_t status : whole.status) {
    used += status == FB_TASK_USED ? 1 : 0;
  }
  CHECK(used >= 600);
}

TEST(a_c_schedule_of_recorded_rows_is_what_was_recorded) {
  const std::int64_t starts[] = {0, 2, 3};
  const double compute[] = {1.0, 2.0, 1.5}, upload[] = {0.5, 0.5, 0.25};
  const std::uint8_t ok[] = {1, 0, 1};
  fb_delays delays = FB_DELAYS_INIT;
  delays.n_clients = 2;
  delays.row_start = starts;
  delays.row_compute = compute;
  delays.row_upload = upload;
  delays.row_ok = ok;
  delays.rows_stop = 1;
  fb_schedule_config config = pool(0, 1, 100);
  config.start = FB_START_ALL;
  const Rows rows = resolved(delays, config, 100, FB_SCHEDULE_EXHAUSTED);
  CHECK_EQ(rows.client.size(), std::size_t{3});
  CHECK((rows.arrive_time == std::vector<double>{1.5, 1.75, 4.0}));
  CHECK((rows.status == std::vector<std::uint8_t>{FB_TASK_USED, FB_TASK_USED, FB_TASK_FAILED}));
}

TEST(windows_of_a_c_schedule) {
  const std::int64_t starts[] = {0, 1};
  const double begin[] = {2.0}, end[] = {3.0}, period[] = {10.0};
  fb_delays delays = FB_DELAYS_INIT;
  delays.n_clients = 1;
  delays.compute.p[0] = 0.5;
  delays.windows = FB_WINDOWS_WAIT;
  delays.window_start = starts;
  delays.window_begin = begin;
  delays.window_end = end;
  delays.window_period = period;
  fb_schedule_config config = pool(0, 1, 4);
  config.start = FB_START_ALL;
  const Rows rows = resolved(delays, config, 100);
  CHECK((rows.arrive_time == std::vector<double>{2.5, 3.0, 12.5, 13.0}));
  const double late[] = {11.0};
  delays.window_end = late;
  fb_schedule* schedule = nullptr;
  check_said(fb_schedule_create(&delays, &config, &schedule),
             "window_end: expected a time not after the period, got 11");
}

TEST(tasks_in_flight_of_a_c_schedule) {
  fedbuff::Schedule schedule(exponential(6), pool(4, 2, 3));
  Rows rows(200, 202);
  const fb_columns columns = rows.columns();
  std::int64_t n_rows = 0, n_steps = 0;
  std::int32_t end = 0;
  CHECK_EQ(fb_schedule_next(schedule.get(), &columns, &n_rows, &n_steps, &end), FB_OK);
  const auto flying = schedule.in_flight();
  CHECK(flying.size() <= 4 && !flying.empty());
  for (std::size_t i = 0; i < flying.size(); ++i) {
    CHECK(flying[i].start_time <= schedule.time());
    CHECK(i == 0 || flying[i - 1].client < flying[i].client);
  }
  CHECK_EQ(fb_schedule_in_flight(schedule.get(), 0, nullptr, nullptr, nullptr, nullptr),
           static_cast<std::int64_t>(flying.size()));
}

TEST(a_c_replay_is_what_local_steps_and_sums_give) {
  Pulls pulls(12);
  const fb_schedule_config config = pool(6, 2, 50);
  Rows rows = resolved(exponential(12), config, 1000);
  const fb_rule rule = fedbuff::rule(2, 0.5);
  std::vector<double> s(60, 0.25);
  s[0] = 1.0, s[1] = 0.5;
  fedbuff::LocalSGD<double> local(pulls.problem, pulls.local);
  std::vector<std::vector<double>> models(1, {0.0, 0.0});
  std::size_t row = 0;
  for (const std::int64_t last : rows.step_rows) {
    std::vector<double> next = models.back(), delta(2);
    for (; static_cast<std::int64_t>(row) < last; ++row) {
      if (rows.status[row] == FB_TASK_USED) {
        local.delta(rows.client[row], rows.task[row], models[static_cast<std::size_t>(rows.version[row])], delta);
        const double weight = 0.5 * s[static_cast<std::size_t>(rows.staleness[row])];
        next[0] -= weight * delta[0], next[1] -= weight * delta[1];
      }
    }
    models.push_back(next);
  }
  fb_replay_config weights = FB_REPLAY_CONFIG_INIT;
  weights.staleness = s.data();
  weights.n_staleness = static_cast<std::int64_t>(s.size());
  fedbuff::Replay<double> replay(pulls.problem, pulls.local, rule, 2, weights);
  const fb_columns all = rows.columns();
  replay.add(all);
  CHECK_EQ(replay.run(1000, 1), FB_REPLAY_NEED_ROWS);
  replay.close();
  CHECK_EQ(replay.run(1000, 1), FB_REPLAY_CLOSED);
  CHECK_EQ(replay.version(), 50);
  CHECK_EQ(models.size(), std::size_t{51});
  for (std::size_t j = 0; j < 2; ++j) {
    CHECK_NEAR(replay.w()[j], models.back()[j], 400, 12.0, static_cast<std::int64_t>(j));
  }
  double loss = -1, norm = -1, accuracy = -1;
  CHECK_EQ(fb_replay_evaluate(replay.get(), 2, &loss, &norm, nullptr), FB_OK);
  double want = 0;
  for (int i = 0; i < 12; ++i) {
    const double x = replay.w()[0] - i, y = replay.w()[1] + i;
    want += (x * x + y * y) / 24;
  }
  CHECK(std::fabs(loss - want) < 1e-12 * want && norm > 0);
  check_said(fb_replay_evaluate(replay.get(), 1, nullptr, nullptr, &accuracy),
             "accuracy_out: expected null: this problem has no classes");
}

TEST(a_c_replay_in_pieces_and_after_a_save_has_the_same_bits) {
  Pulls pulls(12);
  for (const int method : {int{FB_METHOD_SGD}, int{FB_METHOD_SCAFFOLD}}) {
    fb_schedule_config config = pool(9, 2, 40);
    config.max_staleness = 5;
    fb_rule rule = fedbuff::rule(2, 0.5);
    rule.max_staleness = 5;
    rule.optimizer = FB_ADAM;
    pulls.local.method = method;
    if (method == FB_METHOD_SCAFFOLD) {
      rule.control = FB_CONTROL_MEAN;
      rule.n_clients = 12;
    }
    Rows rows = resolved(exponential(12), config, 1000);
    const auto made = [&] { return fedbuff::Replay<double>(pulls.problem, pulls.local, rule, 2); };
    fedbuff::Replay<double> whole = made();
    whole.add(rows.columns());
    whole.close();
    CHECK_EQ(whole.run(1000, 2), FB_REPLAY_CLOSED);

    const std::string path = scratch("replay");
    fedbuff::Replay<double> first = made();
    // Rows one by one, and each step when its rows are there.
    std::size_t row = 0;
    const auto feed = [&](fedbuff::Replay<double>& replay, std::size_t until) {
      for (std::size_t step = 0; step < until; ++step) {
        for (; static_cast<std::int64_t>(row) < rows.step_rows[step]; ++row) {
          fb_columns one = rows.columns(row, step);
          one.n_rows = 1;
          one.n_steps = 0;
          replay.add(one);
        }
        fb_columns none = rows.columns(row, step);
        none.n_rows = 0;
        none.n_steps = 1;
        replay.add(none);
        if (step % 3 == 0) {
          replay.run(1, 1);
        }
      }
    };
    feed(first, 25);
    CHECK_EQ(first.run(20 - first.version(), 1), FB_REPLAY_STEPS);
    first.save(path);

    fedbuff::Replay<double> second = made();
    second.load(path);
    CHECK_EQ(second.version(), 20);
    CHECK(std::equal(second.w().begin(), second.w().end(), first.w().begin()));
    CHECK_EQ(second.run(1, 1), FB_REPLAY_NEED_ROWS);
    second.add(rows.columns());
    second.close();
    CHECK_EQ(second.run(1000, 3), FB_REPLAY_CLOSED);
    CHECK_EQ(second.version(), 40);
    CHECK(std::memcmp(second.w().data(), whole.w().data(), 2 * sizeof(double)) == 0);
    CHECK(second.time() == whole.time() && second.updates() == whole.updates());

    // Another schedule, another rule, a broken file.
    fedbuff::Replay<double> third = made();
    third.load(path);
    Rows others = rows;
    others.task[0] += 1;
    const fb_columns of_others = others.columns();
    check_said(fb_replay_add(third.get(), &of_others), "rows: expected those of the saved replay up to server step 20");
    fb_rule other = rule;
    other.lr = 0.25;
    fedbuff::Replay<double> fourth(pulls.problem, pulls.local, other, 2);
    CHECK_EQ(fb_replay_load(fourth.get(), path.c_str()), FB_ERR_FILE);
    CHECK(std::strstr(fb_error_text(), "another rule") != nullptr);
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string changed = i % 2 == 0 ? bytes : bytes.substr(0, i);
      if (i % 2 == 0) {
        changed[i] = static_cast<char>(changed[i] ^ 0x10);
      }
      std::ofstream(path, std::ios::binary) << changed;
      fedbuff::Replay<double> fifth = made();
      CHECK_EQ(fb_replay_load(fifth.get(), path.c_str()), FB_ERR_FILE);
      CHECK(std::strlen(fb_error_text()) > 0);
    }
    std::remove(path.c_str());
    fedbuff::Replay<double> none = made();
    CHECK_EQ(fb_replay_load(none.get(), path.c_str()), FB_ERR_FILE);
    CHECK_EQ(fb_replay_save(whole.get(), "/no/such/folder/replay"), FB_ERR_FILE);
  }
}

TEST(rows_that_are_no_schedule_are_refused) {
  Pulls pulls(3);
  const Rows good = resolved(exponential(3), pool(2, 2, 10), 100);
  const fb_rule rule = fedbuff::rule(2, 0.5);
  const auto refused = [&](const std::function<void(Rows&)>& spoil) {
    Rows rows = good;
    spoil(rows);
    fedbuff::Replay<double> replay(pulls.problem, pulls.local, rule, 2);
    const fb_columns columns = rows.columns();
    CHECK_EQ(fb_replay_add(replay.get(), &columns), FB_ERR_ARGUMENT);
    CHECK(std::strlen(fb_error_text()) > 0);
    CHECK_EQ(replay.version(), 0);
  };
  refused([](Rows& rows) { rows.client[1] = 3; });
  refused([](Rows& rows) { rows.client[1] = -1; });
  refused([](Rows& rows) { rows.status[1] = FB_TASK_FAILED, rows.version[1] = INT64_MAX; });
  refused([](Rows& rows) { rows.started[1] = -1; });
  refused([](Rows& rows) { rows.step_time[1] = HUGE_VAL; });
  refused([](Rows& rows) { rows.version[1] = -1; });
  refused([](Rows& rows) { rows.version[0] = 1; });
  refused([](Rows& rows) { rows.step[3] = INT64_MAX; });
  refused([](Rows& rows) { rows.staleness[3] += 1; });
  refused([](Rows& rows) { rows.status[2] = 7; });
  refused([](Rows& rows) { rows.step[0] = 5, rows.staleness[0] = 5; });
  fb_replay_config weights = FB_REPLAY_CONFIG_INIT;
  const double s[] = {1.0};
  weights.staleness = s;
  weights.n_staleness = 1;
  fedbuff::Replay<double> replay(pulls.problem, pulls.local, rule, 2, weights);
  Rows rows = good;
  const fb_columns columns = rows.columns();
  CHECK_EQ(fb_replay_add(replay.get(), &columns), FB_ERR_SHORT_TABLE);
  fb_replay* none = nullptr;
  check_said(fb_replay_create(&pulls.problem, &pulls.local, &rule, nullptr, FB_F64, 3, nullptr, &none),
             "dim: expected 2 to 2, got 3");
}

TEST(a_recorder_writes_what_came) {
  fedbuff::Recorder recorder;
  recorder.started(4, 0, 0.5);
  recorder.started(2, 0, 0.75);
  recorder.arrived(2, 1.25);
  recorder.started(2, 1, 1.25);
  recorder.cancelled(4);
  check_said(fb_recorder_arrived(recorder.get(), 4, 2.0), "client: expected one with a task, got 4");
  check_said(fb_recorder_started(recorder.get(), 2, 1, 2.0), "client: expected one without a task in flight, got 2");
  check_said(fb_recorder_arrived(recorder.get(), 2, 1.0),
             "time: expected FB_NOW, or a time that is not earlier, got 1");
  CHECK_EQ(fb_recorder_in_flight(recorder.get()), 1);
  CHECK_EQ(fb_recorder_count(recorder.get()), 1);
  recorder.arrived(2, 2.0);
  const std::string path = scratch("log.csv");
  recorder.save(path);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK_EQ(text, std::string("client,version,start_time,arrive_time\n2,0,0.75,1.25\n2,1,1.25,2\n"));
  std::remove(path.c_str());

  fedbuff::Recorder live;
  for (int i = 0; i < 100; ++i) {
    live.started(1, i);
    live.arrived(1);
  }
  const auto rows = live.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].start_time < rows[i].arrive_time && (i == 0 || rows[i - 1].arrive_time < rows[i].start_time));
  }
}

TEST(the_wrapper_for_cpp_reaches_the_smaller_parts) {
  const fb_rule rule = fedbuff::rule(2, 0.5);
  fedbuff::Server<double> server(rule, std::vector<double>(3));
  std::vector<double> w(3, 9.0);
  const std::int64_t version = server.download_to(w);
  CHECK(version == 0 && w == std::vector<double>(3));
  CHECK_EQ(server.upload<double>(std::vector<double>{1, 2, 3}, version), FB_ADDED);
  server.download();
  fedbuff::Server<double> copy = server.clone();
  CHECK(copy.fill() == 1 && copy.outstanding() == 1 && copy.live_models() == 1);

  fb_server_state state = FB_SERVER_STATE_INIT;
  copy.get_state(state);
  CHECK(state.n_due == 1 && state.fill == 1);
  std::int64_t due[1], of[1];
  const void* kept[1];
  state.due = due, state.due_version = of, state.kept = kept;
  copy.get_state(state);
  fedbuff::Server<double> third = fedbuff::Server<double>::restored(rule, 3, state);
  CHECK_EQ(third.upload<double>(std::vector<double>{1, 2, 3}, 0), FB_STEPPED);
  CHECK(third.w()[2] == -3.0 && server.version() == 0 && copy.version() == 0);

  fedbuff::DeltaBuffer<double> buffer(3);
  buffer.add<double>(std::vector<double>{1, 2, 3}, 2.0);
  CHECK(buffer.sum()[2] == 6.0 && buffer.dim() == 3);
  std::vector<double> sum{1, 1, 1};
  const std::vector<double> delta{1, 2, 4}, weight{0.5};
  fedbuff::accumulate<double>(sum, delta, 0.5);
  CHECK((sum == std::vector<double>{1.5, 2, 3}));
  fedbuff::step<double>(sum, delta, 1.0);
  CHECK((sum == std::vector<double>{0.5, 0, -1}));
  const double* deltas[] = {delta.data()};
  fedbuff::aggregate<double>(sum, fedbuff::Span<const double* const>(deltas, 1), weight, 2.0);
  CHECK((sum == std::vector<double>{-0.5, -2, -5}));
  std::vector<std::int64_t> whole{1, 2};
  fedbuff::accumulate_fixed<std::int32_t>(whole, std::vector<std::int32_t>{3, -3}, 2.0);
  CHECK((whole == std::vector<std::int64_t>{7, -4}));

  fb_layer layer = FB_LAYER_INIT;
  layer.kind = FB_LAYER_DENSE;
  layer.out = 2;
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = 1;
  network.input_shape[0] = 3, network.input_shape[1] = network.input_shape[2] = 1;
  network.layers = &layer;
  CHECK_EQ(fedbuff::network_dim(network), 8);
  layer.out = 0;
  try {
    fedbuff::network_dim(network);
    CHECK(false);
  } catch (const fedbuff::Error& error) {
    CHECK(error.status() == FB_ERR_ARGUMENT && std::strlen(error.what()) > 0);
  }
}
