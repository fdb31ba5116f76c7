// A C replay that is given the rows of a schedule, in parts, some of them changed: it refuses them, or comes to its
// end; saved and loaded on the way, it ends with the same bits.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "fedbuff/fedbuff.hpp"
#include "input.hpp"

namespace {

using fuzz::Input;

constexpr std::int64_t kClients = 5;

fedbuff::ScheduleRows whole(Input& in) {
  fb_delays delays = FB_DELAYS_INIT;
  delays.n_clients = kClients;
  delays.compute.kind = FB_LAW_EXPONENTIAL;
  delays.compute.p[0] = 1.0;
  fb_schedule_config config = FB_SCHEDULE_CONFIG_INIT;
  config.seed = in.byte();
  config.concurrency = 1 + in.below(kClients);
  config.buffer_size = 1 + in.below(3);
  config.max_staleness = in.below(6) - 1;
  config.timeout = in.one_in(3) ? 1.5 : 0.0;
  config.server_steps = 1 + in.below(12);
  fedbuff::Schedule schedule(delays, config);
  fedbuff::ScheduleRows rows;
  MUST(schedule.next(rows, 4096) != FB_SCHEDULE_MORE);
  return rows;
}

template <class Number>
void set(Input& in, std::vector<Number>& column, Number value) {
  if (!column.empty()) {
    column[in.byte() % column.size()] = value;
  }
}

void change(Input& in, fedbuff::ScheduleRows& rows) {
  const std::int64_t value = in.whole();
  switch (in.below(7)) {
    case 0: set(in, rows.client, static_cast<std::int32_t>(value)); break;
    case 1: set(in, rows.version, value); break;
    case 2: set(in, rows.step, value); break;
    case 3: set(in, rows.staleness, value); break;
    case 4: set(in, rows.status, static_cast<std::uint8_t>(value)); break;
    case 5: set(in, rows.started, value); break;
    default: set(in, rows.step_time, in.real());
  }
}

struct Pulls {
  Pulls() {
    problem.family = FB_QUADRATIC;
    problem.n_clients = kClients;
    problem.layer_size = &dim;
    problem.curvature_shared = 1;
    problem.curvature = &one;
    problem.center = center;
    local.lr = 0.5;
  }
  fedbuff::Replay<double> replay() const { return {problem, local, fedbuff::rule(2, 0.5), 2}; }

  const std::int32_t dim = 2;
  const double one = 1.0, center[2 * kClients] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config local = FB_LOCAL_CONFIG_INIT;
};

// Parts of about so many steps; false where one is refused.
bool feed(fedbuff::Replay<double>& replay, fedbuff::ScheduleRows& rows, std::int64_t steps_at_once) {
  fb_columns all = rows.columns();
  const std::int64_t n_rows = all.n_rows, n_steps = all.n_steps;
  std::int64_t row = 0;
  for (std::int64_t step = 0; step < n_steps; step += steps_at_once) {
    const std::int64_t end = step + steps_at_once < n_steps ? step + steps_at_once : n_steps;
    const std::int64_t last = end == n_steps ? n_rows : rows.step_rows[static_cast<std::size_t>(end - 1)];
    fb_columns part = all;
    part.n_rows = last - row, part.n_steps = end - step;
    part.client += row, part.task += row, part.version += row, part.step += row, part.staleness += row;
    part.status += row, part.step_time += step, part.started += step;
    const fb_status status = fb_replay_add(replay.get(), &part);
    MUST(status == FB_OK || (status == FB_ERR_ARGUMENT && fb_error_text()[0] != '\0'));
    if (status != FB_OK) {
      return false;
    }
    std::int32_t ended = 0;
    MUST(fb_replay_run(replay.get(), 3, 1, &ended) == FB_OK);
    row = last;
  }
  return true;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  fedbuff::ScheduleRows rows = whole(in);
  const std::int64_t steps_at_once = 1 + in.below(4), n_changes = in.below(3);
  for (std::int64_t i = 0; i < n_changes; ++i) {
    change(in, rows);
  }
  const Pulls pulls;
  fedbuff::Replay<double> replay = pulls.replay();
  if (!feed(replay, rows, steps_at_once)) {
    MUST(n_changes > 0);
    return 0;
  }
  const std::string path = "/tmp/fedbuff-fuzz-replay-" + std::to_string(getpid());
  replay.save(path);
  replay.close();
  const fb_replay_end end = replay.run(1000, 1);
  MUST(end == FB_REPLAY_CLOSED);
  fedbuff::Replay<double> other = pulls.replay();
  other.load(path);
  if (!feed(other, rows, 1 + in.below(4))) {  // a changed row may name a version that smaller parts do not have yet
    MUST(n_changes > 0);
    std::remove(path.c_str());
    return 0;
  }
  other.close();
  MUST(other.run(1000, 1) == end && other.version() == replay.version());
  MUST(std::memcmp(other.w().data(), replay.w().data(), 2 * sizeof(double)) == 0);
  std::remove(path.c_str());
  return 0;
}
