// Schedules of the C ABI: checks of delays and options, and the event loop's rows in the caller's columns.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "abi/handles.hpp"
#include "fedbuff/fedbuff.h"
#include "numbers/field_checks.hpp"
#include "schedule/resolver.hpp"

struct fb_schedule {
  fb_schedule(const fedbuff::SchedulePlan& plan, std::vector<double> durations)
      : durations_(std::move(durations)), resolver_(plan) {}

  fedbuff::ScheduleResolver& resolver() { return resolver_; }
  const fedbuff::ScheduleResolver& resolver() const { return resolver_; }

 private:
  std::vector<double> durations_;  // what the plan of recorded rows points to, in a memory that stays
  fedbuff::ScheduleResolver resolver_;
};

namespace {

using fedbuff::Distribution;
using fedbuff::DistributionKind;
using fedbuff::FieldChecks;
using fedbuff::SchedulePlan;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostClients = std::numeric_limits<std::int32_t>::max();
constexpr double kLeastInside = 1e-3;  // of a normal between its bounds, so that few draws miss

bool is_time(double x) { return std::isfinite(x) && x >= 0; }

// The share of N(loc, scale) that lies between low and high.
double share_inside(const double* p) {
  const double width = p[1] * std::sqrt(2.0);
  return 0.5 * (std::erfc((p[2] - p[0]) / width) - std::erfc((p[3] - p[0]) / width));
}

void check_law(const char* name, const fb_law& law, FieldChecks& checks) {
  const double* p = law.p;
  const auto need = [&](bool good, const char* expected) { checks.require(good, name, expected); };
  switch (law.kind) {
    case FB_LAW_CONSTANT: need(is_time(p[0]), "a finite value of at least 0"); break;
    case FB_LAW_UNIFORM: need(is_time(p[0]) && is_time(p[1]) && p[0] <= p[1], "0 <= low <= high, finite"); break;
    case FB_LAW_EXPONENTIAL: need(is_time(p[0]), "a finite mean of at least 0"); break;
    case FB_LAW_HALF_NORMAL: need(is_time(p[0]) && is_time(p[1]), "scale and low of at least 0, finite"); break;
    case FB_LAW_TRUNCATED_NORMAL:
      need(std::isfinite(p[0]) && std::isfinite(p[1]) && p[1] > 0 && is_time(p[2]) && p[2] < p[3],
           "a finite loc, scale > 0, 0 <= low < high");
      if (checks.ok()) {
        need(share_inside(p) >= kLeastInside, "at least 1/1000 of the normal between low and high");
      }
      break;
    case FB_LAW_LOG_NORMAL: need(std::isfinite(p[0]) && is_time(p[1]), "a finite mean, sigma of at least 0"); break;
    case FB_LAW_PARETO: need(is_time(p[0]) && p[0] > 0 && is_time(p[1]) && p[1] > 0, "shape and scale > 0"); break;
    case FB_LAW_WEIBULL: need(is_time(p[0]) && p[0] > 0 && is_time(p[1]), "shape > 0, scale of at least 0"); break;
    case FB_LAW_EMPIRICAL:
      need(law.samples != nullptr && law.n_samples >= 1, "one sample at least");
      if (checks.ok()) {
        need(std::all_of(law.samples, law.samples + law.n_samples, is_time) &&
                 std::is_sorted(law.samples, law.samples + law.n_samples),
             "finite samples of at least 0, ascending");
      }
      break;
    default: need(false, "a kind of fb_law_kind");
  }
}

Distribution read_law(const fb_law& law) {
  Distribution made;
  made.kind = static_cast<DistributionKind>(law.kind);
  std::copy_n(law.p, 4, made.p);
  made.samples = law.samples;
  made.n_samples = static_cast<std::uint64_t>(law.n_samples);
  return made;
}

void read_laws(const fb_delays& d, bool shared, FieldChecks& checks, SchedulePlan& plan) {
  check_law("wait", d.wait, checks);
  check_law("download", d.download, checks);
  check_law("compute", d.compute, checks);
  check_law("upload", d.upload, checks);
  if (d.speed != nullptr) {
    checks.each("speed", d.speed, d.n_clients, "a finite number of at least 0", is_time);
  }
  plan.model.seed = plan.seed;
  plan.model.component[fedbuff::kWait] = read_law(d.wait);
  plan.model.component[fedbuff::kDownload] = read_law(d.download);
  plan.model.component[fedbuff::kCompute] = read_law(d.compute);
  (shared ? plan.upload : plan.model.component[fedbuff::kUpload]) = read_law(d.upload);
  plan.model.speed = d.speed;
}

// Recorded rows; columns that are null are zeros, and flags ones.
void read_rows(const fb_delays& d, bool shared, FieldChecks& checks, SchedulePlan& plan,
               std::vector<double>& numbers_out) {
  checks.ascends("row_start", d.row_start, d.n_clients, 1);
  checks.flag("rows_stop", d.rows_stop);
  if (!checks.ok()) {
    return;
  }
  const std::int64_t n = d.row_start[d.n_clients];
  const std::pair<const char*, const double*> columns[] = {{"row_wait", d.row_wait},
                                                           {"row_download", d.row_download},
                                                           {"row_compute", d.row_compute},
                                                           {"row_upload", d.row_upload}};
  for (const auto& [name, values] : columns) {
    if (values != nullptr) {
      checks.each(name, values, n, "a finite number of at least 0", is_time);
    }
  }
  if (!checks.ok()) {
    return;
  }
  const auto rows = static_cast<std::size_t>(n);
  const auto at = [](const double* values, std::size_t row) { return values == nullptr ? 0.0 : values[row]; };
  // Flags of rows that succeed lie in the same memory, behind the numbers.
  numbers_out.assign(3 * rows + rows / sizeof(double) + 1, 0.0);
  double* wait = numbers_out.data();
  double* duration = wait + rows;
  double* upload = duration + rows;
  auto* ok = reinterpret_cast<std::uint8_t*>(upload + rows);
  for (std::size_t row = 0; row < rows; ++row) {
    wait[row] = at(d.row_wait, row);
    upload[row] = at(d.row_upload, row);
    duration[row] = at(d.row_download, row) + at(d.row_compute, row);
    if (!shared) {
      duration[row] += upload[row];
    }
    ok[row] = d.row_ok == nullptr || d.row_ok[row] != 0 ? 1 : 0;
  }
  plan.recorded = true;
  plan.row_offsets = d.row_start;
  plan.row_wait = wait;
  plan.row_duration = duration;
  plan.row_upload = shared ? upload : nullptr;
  plan.row_ok = ok;
  plan.wrap = d.rows_stop == 0;
}

void read_windows(const fb_delays& d, FieldChecks& checks, SchedulePlan& plan) {
  checks.between("windows", d.windows, FB_WINDOWS_NONE, FB_WINDOWS_ABORT);
  if (!checks.ok() || d.windows == FB_WINDOWS_NONE) {
    return;
  }
  checks.ascends("window_start", d.window_start, d.n_clients, 0);
  if (!checks.ok()) {
    return;
  }
  const std::int64_t n = d.window_start[d.n_clients];
  if (n > 0) {
    checks.each("window_begin", d.window_begin, n, "a finite number of at least 0", is_time);
    checks.each("window_end", d.window_end, n, "a finite number of at least 0", is_time);
  }
  if (d.window_period != nullptr) {
    checks.each("window_period", d.window_period, d.n_clients, "a finite number above 0",
                [](double x) { return is_time(x) && x > 0; });
  }
  for (std::int64_t client = 0; client < d.n_clients && checks.ok(); ++client) {
    double before = -1.0;
    for (std::int64_t i = d.window_start[client]; i < d.window_start[client + 1]; ++i) {
      checks.require(d.window_begin[i] > before, "window_begin", "windows that ascend and do not touch",
                     d.window_begin[i]);
      checks.require(d.window_end[i] > d.window_begin[i], "window_end", "a time after the window's begin",
                     d.window_end[i]);
      checks.require(d.window_period == nullptr || d.window_end[i] <= d.window_period[client], "window_end",
                     "a time not after the period", d.window_end[i]);
      before = d.window_end[i];
    }
  }
  plan.window_policy = static_cast<fedbuff::WindowPolicy>(d.windows);
  plan.window_offsets = d.window_start;
  plan.window_begin = d.window_begin;
  plan.window_end = d.window_end;
  plan.period = d.window_period;
}

void check_selection(const fb_schedule_config& c, std::int64_t n_clients, FieldChecks& checks) {
  checks.between("selection", c.selection, FB_SELECT_UNIFORM, FB_SELECT_WEIGHTED);
  checks.at_least("max_uses", c.max_uses, 0);
  checks.flag("queues", c.queues);
  if (c.selection != FB_SELECT_UNIFORM) {
    checks.require(c.start != FB_START_ALL, "selection", "FB_SELECT_UNIFORM with FB_START_ALL, which draws no client");
    checks.require(c.if_busy == FB_BUSY_REDRAW, "selection", "FB_SELECT_UNIFORM where if_busy is not FB_BUSY_REDRAW");
  }
  if (c.queues == 1) {
    checks.require((c.start == FB_START_POOL || c.start == FB_START_RATE) && c.if_busy == FB_BUSY_REDRAW &&
                       c.selection != FB_SELECT_LONGEST_IDLE && c.distinct_clients == 0,
                   "queues",
                   "FB_START_POOL or FB_START_RATE, FB_BUSY_REDRAW, and neither FB_SELECT_LONGEST_IDLE nor "
                   "distinct_clients with it");
  }
  if (c.selection == FB_SELECT_WEIGHTED &&
      checks.each("probability", c.probability, n_clients, "a finite number of at least 0", is_time)) {
    const double sum = std::accumulate(c.probability, c.probability + n_clients, 0.0);
    checks.require(std::fabs(sum - 1.0) <= 1e-9, "probability", "numbers that sum to 1", sum);
    const auto above = std::count_if(c.probability, c.probability + n_clients, [](double p) { return p > 0; });
    if (c.queues == 0 && c.start != FB_START_RATE) {
      checks.at_least("probability: how many above 0", above, c.concurrency);
    }
  }
}

void check_start(const fb_schedule_config& c, std::int64_t n_clients, FieldChecks& checks) {
  checks.between("start", c.start, FB_START_ALL, FB_START_ROUNDS);
  if (c.start == FB_START_POOL || c.start == FB_START_ROUNDS) {
    checks.between("concurrency", c.concurrency, 1,
                   c.queues == 1 && c.start == FB_START_POOL ? kMostClients : n_clients);
  }
  if (c.start == FB_START_RATE) {
    checks.positive("rate", c.rate);
    checks.require(c.refill == 1 && c.stop_stale == 0 && c.restart == 0, "start",
                   "refill 1, and neither stop_stale nor restart with FB_START_RATE");
  }
  checks.flag("poisson", c.poisson);
  checks.between("if_busy", c.if_busy, FB_BUSY_REDRAW, FB_BUSY_OVERLAP);
}

void check_steps(const fb_schedule_config& c, std::int64_t n_clients, FieldChecks& checks) {
  checks.at_least("buffer_size", c.buffer_size, 1);
  checks.at_least("max_staleness", c.max_staleness, -1);
  checks.not_negative("max_wait", c.max_wait);
  checks.not_negative("timeout", c.timeout);
  checks.not_negative("period", c.period);
  checks.not_negative("uplink", c.uplink);
  checks.between("trigger", c.trigger, FB_TRIGGER_BUFFER, FB_TRIGGER_RINGLEADER);
  if (c.trigger != FB_TRIGGER_BUFFER) {
    checks.require(std::isfinite(c.per_client) && c.per_client >= 1, "per_client", "a finite number of at least 1",
                   c.per_client);
  }
  checks.flag("server_needs_time", c.server_needs_time);
  if (c.server_needs_time == 1) {
    check_law("server_time", c.server_time, checks);
  }
  checks.flag("distinct_clients", c.distinct_clients);
  if (c.distinct_clients == 1) {
    const std::int64_t most = c.start == FB_START_POOL ? c.concurrency : n_clients;
    checks.between("buffer_size, with distinct_clients", c.buffer_size, 1, most);
  }
  if (c.start == FB_START_ROUNDS) {
    checks.between("buffer_size, of a round", c.buffer_size, 1, c.concurrency);
  }
  checks.between("refill", c.refill, 0, c.start == FB_START_ALL ? n_clients : std::max<std::int64_t>(c.concurrency, 1));
  checks.at_least("stop_stale", c.stop_stale, 0);
  checks.flag("restart", c.restart);
}

void check_ends(const fb_schedule_config& c, FieldChecks& checks) {
  const std::pair<const char*, std::int64_t> counts[] = {{"server_steps", c.server_steps}, {"arrivals", c.arrivals}};
  for (const auto& [name, count] : counts) {
    checks.require(count == -1 || count >= 1, name, "-1, or at least 1", static_cast<double>(count));
  }
  checks.require(c.max_time == -1 || is_time(c.max_time), "max_time", "-1, or a finite number of at least 0",
                 c.max_time);
  checks.require(c.server_steps >= 0 || c.arrivals >= 0 || c.max_time >= 0, "server_steps",
                 "a limit here, in arrivals or in max_time");
}

double or_never(double time) { return time > 0 ? time : kInfinity; }

SchedulePlan read_config(const fb_schedule_config& c, std::int64_t n_clients) {
  SchedulePlan plan;
  plan.mode = static_cast<fedbuff::Mode>(c.start);
  plan.n_clients = n_clients;
  plan.n_slots = c.start == FB_START_ALL ? n_clients : c.start == FB_START_RATE ? 0 : c.concurrency;
  plan.seed = c.seed;
  plan.rate = c.start == FB_START_RATE ? c.rate : 1.0;
  plan.poisson = c.poisson != 0;
  plan.if_busy = static_cast<fedbuff::IfBusy>(c.if_busy);
  plan.selection = static_cast<fedbuff::Selection>(c.selection);
  plan.probability = c.probability;
  plan.max_uses = c.max_uses == 0 ? -1 : c.max_uses;
  plan.queues = c.queues != 0;
  plan.uplink = or_never(c.uplink);
  plan.needs_server = c.server_needs_time != 0;
  plan.server_time = read_law(c.server_time);
  plan.buffer_size = c.buffer_size;
  plan.max_staleness = c.max_staleness;
  plan.max_wait = or_never(c.max_wait);
  plan.timeout = or_never(c.timeout);
  plan.distinct_clients = c.distinct_clients != 0;
  plan.trigger = static_cast<fedbuff::Trigger>(c.trigger);
  plan.per_client = c.per_client;
  plan.step_period = or_never(c.period);
  plan.refill = c.refill;
  plan.stop_stale = c.restart != 0 ? 1 : c.stop_stale;
  plan.restart = c.restart != 0;
  plan.server_steps = c.server_steps;
  plan.max_time = c.max_time < 0 ? kInfinity : c.max_time;
  plan.arrivals = c.arrivals;
  plan.stall_limit = 10'000'000 + 100 * n_clients;
  return plan;
}

fedbuff::ScheduleColumns read_columns(const fb_columns& room) {
  fedbuff::ScheduleColumns out;
  out.n_rows = room.n_rows;
  out.n_steps = room.n_steps;
  out.client = room.client;
  out.task = room.task;
  out.version = room.version;
  out.step = room.step;
  out.staleness = room.staleness;
  out.start_time = room.start_time;
  out.arrive_time = room.arrive_time;
  out.status = room.status;
  out.step_time = room.step_time;
  out.started = room.started;
  out.step_rows = room.step_rows;
  return out;
}

void move_on(fedbuff::ScheduleColumns& out, std::int64_t rows, std::int64_t steps) {
  out.n_rows -= rows;
  out.n_steps -= steps;
  out.client += rows;
  out.task += rows;
  out.version += rows;
  out.step += rows;
  out.staleness += rows;
  out.start_time += rows;
  out.arrive_time += rows;
  out.status += rows;
  out.step_time += steps;
  out.started += steps;
  out.step_rows += steps;
}

bool has_all(const fb_columns& c) {
  return c.client != nullptr && c.task != nullptr && c.version != nullptr && c.step != nullptr &&
         c.staleness != nullptr && c.start_time != nullptr && c.arrive_time != nullptr && c.status != nullptr &&
         c.step_time != nullptr && c.started != nullptr && c.step_rows != nullptr;
}

}  // namespace

extern "C" {

fb_status fb_schedule_create(const fb_delays* delays, const fb_schedule_config* config, fb_schedule** schedule_out) {
  fb_delays d;
  fb_schedule_config c;
  fedbuff::clear_error();
  if (const fb_status status = fedbuff::read_struct(delays, d); status != FB_OK) {
    return status;
  }
  if (const fb_status status = fedbuff::read_struct(config, c); status != FB_OK) {
    return status;
  }
  if (schedule_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  FieldChecks checks;
  checks.between("n_clients", d.n_clients, 1, kMostClients);
  check_start(c, d.n_clients, checks);
  check_selection(c, d.n_clients, checks);
  check_steps(c, d.n_clients, checks);
  check_ends(c, checks);
  if (!checks.ok()) {
    return refuse(checks);
  }
  return fedbuff::guarded([&] {
    SchedulePlan plan = read_config(c, d.n_clients);
    std::vector<double> numbers;
    const bool shared = plan.uplink < kInfinity;
    if (d.row_start != nullptr) {
      read_rows(d, shared, checks, plan, numbers);
    } else {
      read_laws(d, shared, checks, plan);
    }
    read_windows(d, checks, plan);
    if (checks.ok()) {
      *schedule_out = std::make_unique<fb_schedule>(plan, std::move(numbers)).release();
    }
    return refuse(checks);
  });
}

void fb_schedule_destroy(fb_schedule** schedule) { fedbuff::destroy(schedule); }

int64_t fb_schedule_rows_needed(const fb_schedule* schedule) {
  return schedule == nullptr ? -1 : schedule->resolver().rows_needed();
}

fb_status fb_schedule_next(fb_schedule* schedule, const fb_columns* room, int64_t* n_rows_out, int64_t* n_steps_out,
                           int32_t* end_out) {
  fb_columns given;
  fedbuff::clear_error();
  if (const fb_status status = fedbuff::read_struct(room, given); status != FB_OK) {
    return status;
  }
  if (schedule == nullptr || n_rows_out == nullptr || n_steps_out == nullptr || end_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  const std::int64_t needed = schedule->resolver().rows_needed();
  FieldChecks checks;
  checks.at_least("n_rows", given.n_rows, needed);
  checks.at_least("n_steps", given.n_steps, 2);
  checks.require(has_all(given), "columns", "arrays, none of them null");
  if (!checks.ok()) {
    return refuse(checks);
  }
  *n_rows_out = *n_steps_out = 0;
  return fedbuff::guarded([&] {
    fedbuff::ScheduleColumns out = read_columns(given);
    while (out.n_rows >= needed && out.n_steps >= 2) {
      const fedbuff::ChunkEnd part = schedule->resolver().run(out);
      *n_rows_out += part.n_rows;
      *n_steps_out += part.n_steps;
      *end_out = static_cast<std::int32_t>(part.reason);
      if (part.reason != fedbuff::StopReason::Full) {
        break;
      }
      move_on(out, part.n_rows, part.n_steps);
    }
    return FB_OK;
  });
}

double fb_schedule_time(const fb_schedule* schedule) {
  return schedule == nullptr ? -1.0 : schedule->resolver().time();
}

int64_t fb_schedule_in_flight(const fb_schedule* schedule, int64_t n, int32_t* client_out, uint32_t* task_out,
                              int64_t* version_out, double* start_time_out) {
  if (schedule == nullptr || n < 0 ||
      (n > 0 &&
       (client_out == nullptr || task_out == nullptr || version_out == nullptr || start_time_out == nullptr))) {
    return -1;
  }
  std::int64_t found = -1;
  const fb_status status = fedbuff::guarded([&] {
    std::vector<fedbuff::TaskInFlight> tasks = schedule->resolver().in_flight();
    std::sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) {
      return a.client != b.client ? a.client < b.client : a.task < b.task;
    });
    found = static_cast<std::int64_t>(tasks.size());
    for (std::int64_t i = 0; i < std::min(n, found); ++i) {
      const fedbuff::TaskInFlight& one = tasks[static_cast<std::size_t>(i)];
      client_out[i] = one.client;
      task_out[i] = one.task;
      version_out[i] = one.version;
      start_time_out[i] = one.start_time;
    }
    return FB_OK;
  });
  return status == FB_OK ? found : -1;
}

}  // extern "C"
