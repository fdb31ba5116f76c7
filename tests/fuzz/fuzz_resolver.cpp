// The event loop: plans as fedbuff/_schedule/plan.py lets them through, in every mix of source, windows, selection,
// queues and policies. Any sizes of columns and any CPU level give the same rows, the end is the one that was asked
// for, and the check of schedules refuses none of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "input.hpp"
#include "kernels/dispatch.hpp"
#include "schedule/check_schedule.hpp"
#include "schedule/resolver.hpp"

namespace {

using fuzz::Input;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T, std::size_t kN>
T one_of(Input& in, const T (&values)[kN]) {
  return values[static_cast<std::size_t>(in.below(static_cast<std::int64_t>(kN)))];
}

// Few distinct times, so that there are ties everywhere; now and then one at an edge.
double any_time(Input& in) {
  static constexpr double kTimes[] = {0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 3.25};
  static constexpr double kEdges[] = {5e-324, 1e-300, 1e-9, 0.1, 1e9, 1e16, 1e300};
  return in.one_in(64) ? one_of(in, kEdges) : one_of(in, kTimes);
}

// A plan and the arrays that it points to.
struct Planned {
  fedbuff::SchedulePlan plan;
  std::vector<double> samples[5], speed, row_wait, row_duration, row_upload, window_begin, window_end, period,
      probability;
  std::vector<std::int64_t> row_offsets, window_offsets;
  std::vector<std::uint8_t> row_ok;
};

void any_distribution(Input& in, fedbuff::Distribution& d, std::vector<double>& samples) {
  using Kind = fedbuff::DistributionKind;
  static constexpr double kPositive[] = {0.1, 0.5, 1.0, 2.0, 7.5};
  d.kind = static_cast<Kind>(in.below(9));
  switch (d.kind) {
    case Kind::Constant:
    case Kind::Exponential: d.p[0] = any_time(in); break;
    case Kind::Uniform:
      d.p[0] = any_time(in);
      d.p[1] = d.p[0] + any_time(in);
      break;
    case Kind::HalfNormal:
      d.p[0] = any_time(in);
      d.p[1] = any_time(in);
      break;
    case Kind::TruncatedNormal:
      d.p[0] = one_of(in, kPositive);
      d.p[1] = one_of(in, kPositive);
      d.p[2] = 0.0;
      d.p[3] = in.one_in(2) ? kInfinity : 2 * d.p[0];
      break;
    case Kind::LogNormal:
      d.p[0] = static_cast<double>(in.below(4)) - 2.0;
      d.p[1] = static_cast<double>(in.below(3));
      break;
    case Kind::Pareto:
    case Kind::Weibull:
      d.p[0] = one_of(in, kPositive);
      d.p[1] = one_of(in, kPositive);
      break;
    default:
      for (std::int64_t i = in.below(4); i >= 0; --i) {
        samples.push_back(any_time(in));
      }
      std::sort(samples.begin(), samples.end());
      d.samples = samples.data();
      d.n_samples = samples.size();
  }
}

void add_model(Input& in, Planned& p) {
  p.plan.model.seed = p.plan.seed;
  const std::int64_t drawn = in.below(16);  // the others are constants
  for (int i = 0; i < 4; ++i) {
    fedbuff::Distribution& d = p.plan.model.component[i];
    if ((drawn >> i & 1) != 0) {
      any_distribution(in, d, p.samples[i]);
    } else {
      d.p[0] = i == fedbuff::kCompute ? any_time(in) : 0.0;
    }
  }
  if (in.one_in(3)) {
    for (std::int64_t i = 0; i < p.plan.n_clients; ++i) {
      p.speed.push_back(i < 8 ? any_time(in) : 1.0);
    }
    p.plan.model.speed = p.speed.data();
  }
}

void add_rows(Input& in, Planned& p) {
  p.plan.recorded = true;
  p.plan.wrap = in.below(3) != 0;
  const bool has_wait = in.one_in(3), fails = in.one_in(3);
  p.row_offsets.push_back(0);
  for (std::int64_t client = 0; client < p.plan.n_clients; ++client) {
    for (std::int64_t row = in.below(12) % 5; row > 0; --row) {  // none, now and then
      p.row_wait.push_back(has_wait ? any_time(in) : 0.0);
      p.row_duration.push_back(any_time(in));
      p.row_ok.push_back(!fails || in.below(4) != 0);
    }
    p.row_offsets.push_back(static_cast<std::int64_t>(p.row_wait.size()));
  }
  p.plan.row_offsets = p.row_offsets.data();
  p.plan.row_wait = p.row_wait.data();
  p.plan.row_duration = p.row_duration.data();
  p.plan.row_ok = p.row_ok.data();
}

void add_windows(Input& in, Planned& p) {
  static constexpr double kEdges[] = {0.0, 0.5, 1.0, 2.0, 2.5, 4.0, 5.0};
  p.plan.window_policy = static_cast<fedbuff::WindowPolicy>(in.below(4));
  const std::int64_t repeat = in.below(4);
  p.window_offsets.push_back(0);
  for (std::int64_t client = 0; client < p.plan.n_clients; ++client) {
    // Each bit is an edge; pairs of edges are windows.
    const std::uint8_t bits = in.empty() ? std::uint8_t{0x41} : in.byte();
    double begin = -1.0;
    for (std::size_t i = 0; i < 7; ++i) {
      if ((bits >> i & 1) != 0) {
        if (begin < 0) {
          begin = kEdges[i];
        } else {
          p.window_begin.push_back(begin);
          p.window_end.push_back(kEdges[i]);
          begin = -1.0;
        }
      }
    }
    p.window_offsets.push_back(static_cast<std::int64_t>(p.window_begin.size()));
    p.period.push_back(repeat == 1 ? 5.0 : repeat == 2 ? 6.1 : 5.0 + static_cast<double>(client % 3) / 4);
  }
  p.plan.window_offsets = p.window_offsets.data();
  p.plan.window_begin = p.window_begin.data();
  p.plan.window_end = p.window_end.data();
  p.plan.period = repeat == 0 ? nullptr : p.period.data();
}

// A server that needs time for an upload, and uploads that share a link.
void add_server(Input& in, Planned& p) {
  using Kind = fedbuff::DistributionKind;
  static constexpr double kUplinks[] = {0.7, 1.0, 1.0, 2.0, 9.0, 1e-9};
  fedbuff::SchedulePlan& plan = p.plan;
  if (in.one_in(2)) {
    plan.needs_server = true;
    any_distribution(in, plan.server_time, p.samples[4]);
    if (plan.server_time.kind == Kind::Constant && plan.server_time.p[0] == 0) {
      plan.server_time.p[0] = 0.5;
    }
  }
  if (in.one_in(2)) {
    return;
  }
  plan.uplink = one_of(in, kUplinks);
  if (plan.recorded) {
    for (std::size_t row = 0; row < p.row_wait.size(); ++row) {
      p.row_upload.push_back(row == 0 ? 1.0 : any_time(in));
    }
    plan.row_upload = p.row_upload.data();
  } else {
    plan.upload = plan.model.component[fedbuff::kUpload];
    plan.model.component[fedbuff::kUpload] = fedbuff::Distribution{};
    if (plan.upload.kind == Kind::Constant && plan.upload.p[0] == 0) {
      plan.upload.p[0] = 1.0;
    }
  }
}

// Which client is next, as far as the way tasks start admits it.
void add_selection(Input& in, Planned& p) {
  using fedbuff::Selection;
  fedbuff::SchedulePlan& plan = p.plan;
  plan.max_uses = in.one_in(4) ? 1 + in.below(3) : -1;
  if (plan.mode == fedbuff::Mode::SlotIsClient || plan.if_busy != fedbuff::IfBusy::Redraw) {
    return;
  }
  plan.selection = static_cast<Selection>(in.below(4));
  if (plan.selection == Selection::LongestIdle && plan.queues) {
    plan.selection = Selection::Uniform;
  }
  if (plan.selection == Selection::Weighted) {
    const std::int64_t least = plan.queues ? 1 : std::max<std::int64_t>(plan.n_slots, 1);
    for (std::int64_t i = 0; i < plan.n_clients; ++i) {
      const std::int64_t weight = in.below(4);
      p.probability.push_back(static_cast<double>(i < least && weight == 0 ? 1 : weight));
    }
    double sum = 0.0;
    for (const double weight : p.probability) {
      sum += weight;
    }
    for (double& weight : p.probability) {
      weight /= sum;
    }
    plan.probability = p.probability.data();
  }
}

// Triggers, refill and stops.
void add_timing(Input& in, fedbuff::SchedulePlan& plan) {
  using fedbuff::Trigger;
  static constexpr double kPeriods[] = {0.3, 1.0, 2.5, 1e-9, 1e17};
  static constexpr double kPerClient[] = {1.0, 1.0, 1.3, 2.0};
  plan.max_staleness = in.below(6) - 3 < 0 ? -1 : in.below(3);
  plan.trigger = static_cast<Trigger>(in.below(6) % 4 % 3);
  plan.per_client = plan.trigger == Trigger::Buffer ? 1.0 : one_of(in, kPerClient);
  if (plan.trigger != Trigger::Ringleader) {
    plan.step_period = in.one_in(3) ? one_of(in, kPeriods) : kInfinity;
    plan.max_wait = in.one_in(3) ? one_of(in, kPeriods) : kInfinity;
  }
  if (plan.mode == fedbuff::Mode::OpenLoop) {
    return;
  }
  plan.refill = in.one_in(2) ? 1 : in.below(std::min<std::int64_t>(plan.n_slots, 20) + 1);
  plan.stop_stale = in.one_in(3) ? 1 + in.below(3) : 0;
  plan.restart = plan.stop_stale == 1 && in.one_in(2);
}

void any_plan(Input& in, Planned& p) {
  using fedbuff::Mode;
  static constexpr double kRates[] = {0.5, 1.0, 3.0, 1e-12, 1e12};
  static constexpr double kTimeouts[] = {1.0, 2.75, 0.25, 1e-300};
  fedbuff::SchedulePlan& plan = p.plan;
  plan.mode = static_cast<Mode>(in.below(4));
  const bool many = in.one_in(32);  // more than the list of events is for
  plan.n_clients = many ? 300 : 1 + in.below(7);
  plan.n_slots = plan.mode == Mode::SlotIsClient ? plan.n_clients
                 : plan.mode == Mode::OpenLoop   ? 0
                 : many                          ? 256 + in.below(45)
                                                 : 1 + in.below(plan.n_clients);
  plan.seed = in.byte();
  plan.buffer_size = 1 + in.below(4);
  if (plan.mode == Mode::Rounds) {
    plan.buffer_size = std::min(plan.buffer_size, plan.n_slots);
  }
  if (plan.mode == Mode::OpenLoop) {
    plan.rate = one_of(in, kRates);
    plan.poisson = in.one_in(2);
    plan.if_busy = static_cast<fedbuff::IfBusy>(in.below(3));
  }
  const bool drawn =
      plan.mode == Mode::Pool || (plan.mode == Mode::OpenLoop && plan.if_busy == fedbuff::IfBusy::Redraw);
  plan.queues = drawn && in.one_in(3);
  if (plan.queues && plan.mode == Mode::Pool) {
    plan.n_slots += in.below(6);
  }
  plan.timeout = in.one_in(4) ? one_of(in, kTimeouts) : kInfinity;
  if (plan.mode != Mode::Rounds) {
    add_timing(in, plan);
    const bool fits =
        plan.buffer_size <= plan.n_clients && (plan.mode != Mode::Pool || plan.n_slots >= plan.buffer_size);
    plan.distinct_clients = fits && !plan.queues && plan.trigger == fedbuff::Trigger::Buffer && in.one_in(4);
  }
  add_selection(in, p);
  plan.server_steps = in.one_in(2) ? 1 + in.below(25) : -1;
  plan.arrivals = 1 + in.below(64);  // always: tasks without a duration never reach a time
  plan.max_time = in.one_in(3) ? any_time(in) * 3 : kInfinity;
  plan.stall_limit = 200;
  in.one_in(2) ? add_model(in, p) : add_rows(in, p);
  if (in.one_in(3)) {
    add_server(in, p);
  }
  if (in.one_in(3)) {
    add_windows(in, p);
  }
}

struct Rows {
  std::vector<std::int32_t> client;
  std::vector<std::uint32_t> task;
  std::vector<std::int64_t> version, step, staleness, started, step_rows;
  std::vector<double> start_time, arrive_time, step_time;
  std::vector<std::uint8_t> status;
  std::vector<fedbuff::TaskInFlight> flying;
  std::int64_t last_started = 0;
  fedbuff::StopReason reason = fedbuff::StopReason::Full;
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, std::int64_t n) {
  to.insert(to.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(n));
}

// The schedule, by columns with so much room beyond what is needed.
Rows resolve(const fedbuff::SchedulePlan& plan, std::int64_t more_rows, std::int64_t more_steps) {
  fedbuff::ScheduleResolver resolver(plan);
  const std::int64_t room = resolver.rows_needed() + more_rows, step_room = 2 + more_steps;
  const auto n = static_cast<std::size_t>(room), m = static_cast<std::size_t>(step_room);
  Rows all, part;
  part.client.resize(n);
  part.task.resize(n);
  part.status.resize(n);
  for (auto* column : {&part.version, &part.step, &part.staleness}) {
    column->resize(n);
  }
  for (auto* column : {&part.started, &part.step_rows}) {
    column->resize(m);
  }
  part.start_time.resize(n);
  part.arrive_time.resize(n);
  part.step_time.resize(m);
  const fedbuff::ScheduleColumns out{room,
                                     step_room,
                                     part.client.data(),
                                     part.task.data(),
                                     part.version.data(),
                                     part.step.data(),
                                     part.staleness.data(),
                                     part.start_time.data(),
                                     part.arrive_time.data(),
                                     part.status.data(),
                                     part.step_time.data(),
                                     part.started.data(),
                                     part.step_rows.data()};
  for (int calls = 0; all.reason == fedbuff::StopReason::Full; ++calls) {
    const fedbuff::ChunkEnd end = resolver.run(out);
    MUST(end.n_rows >= 0 && end.n_rows <= room && end.n_steps >= 0 && end.n_steps <= step_room && calls < 1000);
    append(all.client, part.client, end.n_rows);
    append(all.task, part.task, end.n_rows);
    append(all.version, part.version, end.n_rows);
    append(all.step, part.step, end.n_rows);
    append(all.staleness, part.staleness, end.n_rows);
    append(all.start_time, part.start_time, end.n_rows);
    append(all.arrive_time, part.arrive_time, end.n_rows);
    append(all.status, part.status, end.n_rows);
    append(all.step_time, part.step_time, end.n_steps);
    append(all.started, part.started, end.n_steps);
    append(all.step_rows, part.step_rows, end.n_steps);
    all.reason = end.reason;
  }
  all.last_started = resolver.started();
  all.flying = resolver.in_flight();
  return all;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), sizeof(T) * a.size()) == 0);
}

void compare(const Rows& a, const Rows& b) {
  MUST(a.reason == b.reason && a.last_started == b.last_started);
  MUST(same_bits(a.client, b.client) && same_bits(a.task, b.task) && same_bits(a.version, b.version));
  MUST(same_bits(a.step, b.step) && same_bits(a.staleness, b.staleness) && same_bits(a.status, b.status));
  MUST(same_bits(a.start_time, b.start_time) && same_bits(a.arrive_time, b.arrive_time));
  MUST(same_bits(a.step_time, b.step_time) && same_bits(a.started, b.started) && same_bits(a.step_rows, b.step_rows));
  MUST(a.flying.size() == b.flying.size());
  for (std::size_t i = 0; i < a.flying.size(); ++i) {
    MUST(a.flying[i].client == b.flying[i].client && a.flying[i].task == b.flying[i].task);
    MUST(a.flying[i].version == b.flying[i].version && a.flying[i].start_time == b.flying[i].start_time);
  }
}

// As fedbuff/_schedule/plan.py makes a schedule of them.
void check(const fedbuff::SchedulePlan& plan, Rows& rows) {
  const auto n_steps = static_cast<std::int64_t>(rows.step_time.size()),
             n = static_cast<std::int64_t>(rows.client.size());
  for (std::size_t i = 0; i < rows.client.size(); ++i) {
    MUST(rows.start_time[i] <= rows.arrive_time[i] && rows.arrive_time[i] <= plan.max_time);
    if (rows.step[i] >= n_steps) {
      rows.step[i] = -1;
      rows.status[i] = static_cast<std::uint8_t>(fedbuff::TaskStatus::LeftInBuffer);
    }
  }
  MUST(plan.server_steps < 0 || n_steps <= plan.server_steps);
  MUST((rows.reason == fedbuff::StopReason::ServerSteps) == (n_steps == plan.server_steps));
  MUST(rows.reason == fedbuff::StopReason::ServerSteps ||
       (rows.reason == fedbuff::StopReason::Arrivals) == (n >= plan.arrivals));
  std::vector<std::int64_t> started = rows.started, version;
  std::vector<std::int32_t> client;
  started.push_back(rows.last_started);
  for (const fedbuff::TaskInFlight& task : rows.flying) {
    client.push_back(task.client);
    version.push_back(task.version);
  }
  fedbuff::CheckedColumns v;
  v.n_clients = plan.n_clients;
  v.started_on_first = started[0];
  v.n_rows = n;
  v.client = rows.client.data();
  v.version = rows.version.data();
  v.step = rows.step.data();
  v.staleness = rows.staleness.data();
  v.arrive_time = rows.arrive_time.data();
  v.status = rows.status.data();
  v.n_steps = n_steps;
  v.step_time = rows.step_time.data();
  v.step_started = started.data() + 1;
  v.n_flying = static_cast<std::int64_t>(client.size());
  v.flying_client = client.data();
  v.flying_version = version.data();
  MUST(fedbuff::ScheduleCheck().add(v).fault == fedbuff::ScheduleFault::None);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  int n_levels = 0;
  const char* const* levels = fedbuff::available_levels();
  while (levels[n_levels] != nullptr) {
    ++n_levels;
  }
  const std::int64_t level = in.below(n_levels), more_rows = in.below(9), more_steps = in.below(5);
  Planned p;
  any_plan(in, p);
  MUST(fedbuff::force_level(levels[0]));
  Rows whole = resolve(p.plan, 128, 128);
  MUST(fedbuff::force_level(levels[level]));
  compare(resolve(p.plan, more_rows, more_steps), whole);
  check(p.plan, whole);
  return 0;
}
