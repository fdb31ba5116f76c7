// Schedules, and replays on the portable level, whose bits are written down here: every machine compares with them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check.hpp"
#include "fedbuff/fedbuff.hpp"
#include "kernels/dispatch.hpp"

namespace {

// FNV-1a over numbers, by their value and not by their bytes in memory.
class Hash {
 public:
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ (number >> (8 * i) & 0xff)) * 0x100000001b3u;
    }
  }
  void add(double number) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    add(bits);
  }
  template <class Number>
  void add_all(const std::vector<Number>& numbers) {
    for (const Number number : numbers) {
      if constexpr (std::is_floating_point_v<Number>) {
        add(static_cast<double>(number));
      } else {
        add(static_cast<std::uint64_t>(number));
      }
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

// Numbers in [0, 1) that look irregular and are exact.
double fraction(std::int64_t i, std::int64_t j = 0) {
  return static_cast<double>((i * 7919 + j * 104729) % 1024) / 1024;
}

fb_law law(fb_law_kind kind, double a, double b = 0, double c = 0, double d = 0) {
  fb_law made = FB_LAW_INIT;
  made.kind = kind;
  made.p[0] = a, made.p[1] = b, made.p[2] = c, made.p[3] = d;
  return made;
}

struct Given {
  fb_delays delays = FB_DELAYS_INIT;
  fb_schedule_config config = FB_SCHEDULE_CONFIG_INIT;
  std::vector<double> numbers[4];
  std::vector<std::int64_t> starts;
  std::vector<std::uint8_t> ok;

  Given() {
    delays.n_clients = 50;
    delays.compute = law(FB_LAW_EXPONENTIAL, 1.0);
    config.seed = 11;
    config.concurrency = 12;
    config.buffer_size = 4;
    config.server_steps = 60;
  }
};

struct Case {
  const char* name;
  std::uint64_t hash;
  std::function<void(Given&)> change;
};

void record_rows(Given& g) {
  g.delays.n_clients = 12;
  for (std::int64_t row = 0; row < 120; ++row) {
    for (int part = 0; part < 4; ++part) {
      g.numbers[part].push_back((part == 2 ? 0.5 : 0.25) * fraction(row, part) + (part == 2 ? 0.5 : 0.0));
    }
    g.ok.push_back(row % 11 != 5);
  }
  for (std::int64_t client = 0; client <= 12; ++client) {
    g.starts.push_back(10 * client);
  }
  g.delays.row_start = g.starts.data();
  g.delays.row_wait = g.numbers[0].data(), g.delays.row_download = g.numbers[1].data();
  g.delays.row_compute = g.numbers[2].data(), g.delays.row_upload = g.numbers[3].data();
  g.delays.row_ok = g.ok.data();
  g.config.concurrency = 6;
}

void open_windows(Given& g, fb_windows policy) {
  for (std::int64_t client = 0; client < 50; ++client) {
    g.starts.push_back(client);
    g.numbers[0].push_back(4 * fraction(client));
    g.numbers[1].push_back(g.numbers[0].back() + 3);
    g.numbers[2].push_back(8);
  }
  g.starts.push_back(50);
  g.delays.windows = policy;
  g.delays.window_start = g.starts.data();
  g.delays.window_begin = g.numbers[0].data(), g.delays.window_end = g.numbers[1].data();
  g.delays.window_period = g.numbers[2].data();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
#include "golden_schedules.inl"
  };
  return all;
}

std::uint64_t hash_of(const Case& one) {
  Given given;
  one.change(given);
  fedbuff::Schedule schedule(given.delays, given.config);
  fedbuff::ScheduleRows rows;
  Hash hash;
  for (fb_schedule_end end = FB_SCHEDULE_MORE; end == FB_SCHEDULE_MORE;) {
    end = schedule.next(rows, 4096);
    CHECK(end != FB_SCHEDULE_STALLED);
    hash.add_all(rows.client), hash.add_all(rows.task), hash.add_all(rows.version), hash.add_all(rows.step);
    hash.add_all(rows.start_time), hash.add_all(rows.arrive_time), hash.add_all(rows.status);
    hash.add_all(rows.step_time), hash.add_all(rows.started);
  }
  return hash.value();
}

template <class T>
std::uint64_t replayed(fb_head head, std::int32_t outputs) {
  constexpr std::int64_t kRows = 120, kFeatures = 7, kClients = 12;
  std::vector<T> x, target;
  std::vector<std::int32_t> label;
  std::vector<std::int64_t> offsets;
  for (std::int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::int64_t j = 0; j < kFeatures; ++j) {
      x.push_back(static_cast<T>(2 * (fraction(row * kFeatures + j) - 0.5)));
      sum += static_cast<double>(j) * static_cast<double>(x.back());
    }
    target.push_back(static_cast<T>(head == FB_SQUARED ? sum : sum > 0 ? 1 : 0));
    label.push_back(static_cast<std::int32_t>(row * 5 / 3 % 3));
  }
  for (std::int64_t client = 0; client <= kClients; ++client) {
    offsets.push_back(client * kRows / kClients);
  }
  const std::int32_t sizes[] = {kFeatures, outputs};
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_NET;
  problem.head = head;
  problem.layer_size = sizes;
  problem.intercept = 1;
  problem.n_clients = kClients;
  problem.offsets = offsets.data();
  problem.x = x.data(), problem.target = target.data(), problem.label = label.data();
  problem.l2 = 0.125;
  fb_local_config local = FB_LOCAL_CONFIG_INIT;
  local.steps = 3;
  local.lr = 0.0625;
  local.batch_size = 4;
  Given given;
  given.delays.n_clients = kClients;
  given.config.concurrency = 6;
  fedbuff::Schedule schedule(given.delays, given.config);
  fedbuff::Replay<T> replay(problem, local, fedbuff::rule(4, 0.25),
                            static_cast<std::size_t>((kFeatures + 1) * outputs));
  CHECK_EQ(replay.run(schedule, 2), FB_REPLAY_CLOSED);
  Hash hash;
  hash.add_all(std::vector<T>(replay.w().begin(), replay.w().end()));
  return hash.value();
}

void check_hash(const char* name, std::uint64_t got, std::uint64_t want) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(got));
  if (got != want) {
    check::fail(__FILE__, __LINE__, name, " has the bits ", text);
  }
}

}  // namespace

TEST(schedules_have_the_bits_of_every_machine) {
  check::on_every_level([] {
    for (const Case& one : cases()) {
      check_hash(one.name, hash_of(one), one.hash);
    }
  });
}

TEST(replays_on_the_portable_level_have_the_bits_of_every_machine) {
  const std::string before = fedbuff::kernels().name;
  CHECK(fedbuff::force_level("baseline"));
  const std::uint64_t squared = replayed<double>(FB_SQUARED, 1), logistic = replayed<double>(FB_LOGISTIC, 1),
                      softmax = replayed<float>(FB_SOFTMAX, 3);
  CHECK(fedbuff::force_level(before.c_str()));
  check_hash("least squares", squared, 0xca3025fc4089192b);
  check_hash("logistic", logistic, 0xcf7b76261fd54910);
  check_hash("softmax, float", softmax, 0x1cd964a4095f2109);
}
