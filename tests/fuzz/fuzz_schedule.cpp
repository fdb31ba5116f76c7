// Columns of a schedule, sound or changed anywhere, whole or in chunks: the check refuses them, or a replay comes to
// its end with them. What it lets through is all that a replay sees.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "clients/local_sgd.hpp"
#include "clients/workspace.hpp"
#include "input.hpp"
#include "replay/run.hpp"
#include "schedule/check_schedule.hpp"

namespace {

using fuzz::Input;

constexpr std::int64_t kDim = 2;

struct Columns {
  std::int64_t n_clients = 1, first_step = 0, started_on_first = 0;
  std::vector<std::int32_t> client, flying_client;
  std::vector<std::int64_t> version, step, staleness, step_started, flying_version;
  std::vector<double> arrive_time, step_time;
  std::vector<std::uint8_t> status;

  fedbuff::CheckedColumns view() const {
    fedbuff::CheckedColumns v;
    v.n_clients = n_clients;
    v.first_step = first_step;
    v.started_on_first = started_on_first;
    v.n_rows = static_cast<std::int64_t>(client.size());
    v.client = client.data();
    v.version = version.data();
    v.step = step.data();
    v.staleness = staleness.data();
    v.arrive_time = arrive_time.data();
    v.status = status.data();
    v.n_steps = static_cast<std::int64_t>(step_time.size());
    v.step_time = step_time.data();
    v.step_started = step_started.data();
    v.n_flying = static_cast<std::int64_t>(flying_client.size());
    v.flying_client = flying_client.data();
    v.flying_version = flying_version.data();
    return v;
  }
};

// Step t is made at time t + 1; its rows, and some that are dropped, arrive before. Tasks start when their version is
// made, so that a chunk's tasks in flight are those of its versions that end later.
Columns sound(Input& in, std::int64_t n_clients, std::int64_t n_steps) {
  Columns c;
  c.n_clients = n_clients;
  std::vector<std::int64_t> started(static_cast<std::size_t>(n_steps) + 1, 0);
  const auto row = [&](std::int64_t at, std::int64_t version, std::int64_t step, double time) {
    c.client.push_back(static_cast<std::int32_t>(in.below(n_clients)));
    c.version.push_back(version);
    c.step.push_back(step);
    c.staleness.push_back(at - version);
    c.arrive_time.push_back(time);
    c.status.push_back(static_cast<std::uint8_t>(step >= 0 ? 0 : 1 + in.below(6)));
    ++started[static_cast<std::size_t>(version)];
  };
  for (std::int64_t step = 0; step < n_steps; ++step) {
    const std::int64_t n_rows = 1 + in.below(4);
    for (std::int64_t i = 0; i < n_rows; ++i) {
      const std::int64_t version = std::max<std::int64_t>(0, step - in.below(4));
      const bool used = i == 0 || !in.one_in(8);
      row(step, version, used ? step : -1, static_cast<double>(step) + static_cast<double>(i + 1) / 8);
    }
    c.step_time.push_back(static_cast<double>(step) + 1);
  }
  for (std::int64_t i = in.below(4); i > 0; --i) {
    c.flying_client.push_back(static_cast<std::int32_t>(in.below(n_clients)));
    c.flying_version.push_back(in.below(n_steps + 1));
    ++started[static_cast<std::size_t>(c.flying_version.back())];
  }
  c.started_on_first = started[0];
  c.step_started.assign(started.begin() + 1, started.end());
  return c;
}

template <class T>
std::vector<T> part(const std::vector<T>& all, std::size_t begin, std::size_t end) {
  return std::vector<T>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                        all.begin() + static_cast<std::ptrdiff_t>(end));
}

// The steps begin, ..., end - 1 of sound columns.
Columns chunk(const Columns& all, std::int64_t begin, std::int64_t end) {
  const auto first_row = [&](std::int64_t step) {
    return static_cast<std::size_t>(
        std::lower_bound(all.arrive_time.begin(), all.arrive_time.end(), static_cast<double>(step)) -
        all.arrive_time.begin());
  };
  const std::size_t from = first_row(begin), to = first_row(end), b = static_cast<std::size_t>(begin),
                    e = static_cast<std::size_t>(end);
  Columns c;
  c.n_clients = all.n_clients;
  c.first_step = begin;
  c.started_on_first = begin == 0 ? all.started_on_first : all.step_started[b - 1];
  c.client = part(all.client, from, to);
  c.version = part(all.version, from, to);
  c.step = part(all.step, from, to);
  c.staleness = part(all.staleness, from, to);
  c.arrive_time = part(all.arrive_time, from, to);
  c.status = part(all.status, from, to);
  c.step_time = part(all.step_time, b, e);
  c.step_started = part(all.step_started, b, e);
  for (std::size_t i = to; i < all.client.size(); ++i) {
    if (all.version[i] <= end) {
      c.flying_client.push_back(all.client[i]);
      c.flying_version.push_back(all.version[i]);
    }
  }
  for (std::size_t i = 0; i < all.flying_client.size(); ++i) {
    if (all.flying_version[i] <= end) {
      c.flying_client.push_back(all.flying_client[i]);
      c.flying_version.push_back(all.flying_version[i]);
    }
  }
  return c;
}

template <class T>
void set(Input& in, std::vector<T>& column, T value) {
  if (!column.empty()) {
    T& old = column[in.byte() % column.size()];
    const std::int64_t near = in.below(5) - 2;
    if constexpr (std::numeric_limits<T>::is_integer) {
      const auto sum = static_cast<std::uint64_t>(old) + static_cast<std::uint64_t>(near);
      old = in.one_in(2) ? static_cast<T>(sum) : value;
    } else {
      old = in.one_in(2) ? old + static_cast<T>(near) : value;
    }
  }
}

void change(Input& in, Columns& c) {
  const std::int64_t which = in.below(12), value = in.whole();
  switch (which) {
    case 0: set(in, c.client, static_cast<std::int32_t>(value)); break;
    case 1: set(in, c.version, value); break;
    case 2: set(in, c.step, value); break;
    case 3: set(in, c.staleness, value); break;
    case 4: set(in, c.arrive_time, in.real()); break;
    case 5: set(in, c.status, static_cast<std::uint8_t>(value)); break;
    case 6: set(in, c.step_time, in.real()); break;
    case 7: set(in, c.step_started, value); break;
    case 8: set(in, c.flying_client, static_cast<std::int32_t>(value)); break;
    case 9: set(in, c.flying_version, value); break;
    case 10: c.started_on_first = value < 0 ? 0 : value; break;
    default:  // the same row twice
      if (!c.client.empty()) {
        const std::size_t from = in.byte() % c.client.size(), to = in.byte() % c.client.size();
        c.client[to] = c.client[from];
        c.version[to] = c.version[from];
        c.step[to] = c.step[from];
        c.staleness[to] = c.staleness[from];
        c.status[to] = c.status[from];
      }
  }
}

class Follower {
 public:
  explicit Follower(std::int64_t n_clients)
      : center_(static_cast<std::size_t>(n_clients * kDim), 1.0),
        weight_(static_cast<std::size_t>(n_clients), 1.0 / static_cast<double>(n_clients)) {
    fedbuff::Problem<double> p{};
    p.family = fedbuff::Family::Quadratic;
    p.n_clients = n_clients;
    p.dim = kDim;
    p.client_weight = weight_.data();
    p.center = center_.data();
    p.curvature = &curvature_;
    p.curvature_form = fedbuff::Curvature::Scalar;
    p.curvature_shared = true;
    fedbuff::LocalOptions local;
    local.lr = 0.5;
    local.seed = 1;
    work_ = fedbuff::make_local_sgd<double>(p, local);
    fb_rule rule = FB_RULE_INIT;
    rule.norm = FB_NORM_ARRIVALS;
    engine_ = std::make_unique<fedbuff::Replay<double>>(rule, kDim, w0_, *work_, 1 << 16);
    run_ = std::make_unique<fedbuff::Run<double>>(*engine_, kDim, fedbuff::RunConfig<double>{});
  }

  // As fedbuff/_replay/feed.py gives a stream's chunk to a run.
  void give(const Columns& c) {
    std::vector<fedbuff::ReplayRow> rows;
    std::vector<std::int64_t> unused, started{c.started_on_first};
    for (std::size_t i = 0; i < c.client.size(); ++i) {
      if (c.status[i] == 0) {
        rows.push_back({c.client[i], static_cast<std::uint32_t>(i), c.version[i], c.step[i], 1.0, 1.0});
      } else {
        unused.push_back(c.version[i]);
      }
    }
    started.insert(started.end(), c.step_started.begin(), c.step_started.end());
    engine_->release(unused.data(), static_cast<std::int64_t>(unused.size()));
    run_->add(rows.data(), static_cast<std::int64_t>(rows.size()), started.data(), c.step_time.data(), nullptr,
              static_cast<std::int64_t>(c.step_time.size()));
    advance();
  }

  void end(std::int64_t n_steps) {
    run_->close();
    advance();
    MUST(state_ == fedbuff::RunState::ScheduleEnd && run_->version() == n_steps);
  }

 private:
  void advance() {
    do {
      state_ = run_->advance(5, std::numeric_limits<double>::infinity(), 1);
      engine_->check();
    } while (state_ == fedbuff::RunState::Slice);
    MUST(state_ == fedbuff::RunState::NeedRows || state_ == fedbuff::RunState::ScheduleEnd);
  }

  std::vector<double> center_, weight_;
  const double curvature_ = 1.0, w0_[kDim] = {0.0, 0.0};
  std::unique_ptr<fedbuff::ClientWork<double>> work_;
  std::unique_ptr<fedbuff::Replay<double>> engine_;
  std::unique_ptr<fedbuff::Run<double>> run_;
  fedbuff::RunState state_ = fedbuff::RunState::NeedRows;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const std::int64_t n_clients = 1 + in.below(6), n_steps = 1 + in.below(12), n_changes = in.below(4);
  const std::int64_t length = in.one_in(2) ? 1 + in.below(n_steps) : n_steps, changed = in.below(4);
  const Columns all = sound(in, n_clients, n_steps);
  fedbuff::ScheduleCheck check;
  Follower follower(n_clients);
  for (std::int64_t begin = 0, number = 0; begin < n_steps; begin += length, ++number) {
    Columns one = chunk(all, begin, std::min(begin + length, n_steps));
    for (std::int64_t i = 0; i < n_changes && number == changed % ((n_steps + length - 1) / length); ++i) {
      change(in, one);
    }
    const fedbuff::FoundFault found = check.add(one.view());
    if (found.fault != fedbuff::ScheduleFault::None) {
      MUST(n_changes > 0 && found.index >= 0 && check.n_chunks() == number);
      return 0;
    }
    follower.give(one);
  }
  follower.end(n_steps);
  return 0;
}
