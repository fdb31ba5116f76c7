#include "schedule/check_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compiler/always_inline.hpp"

namespace fedbuff {

namespace {

constexpr int kFaults = static_cast<int>(ScheduleFault::Count_);
constexpr std::uint8_t kUsed = 0, kStatuses = 7;

// The first place of each kind of fault.
class Faults {
 public:
  Faults() { std::fill(first_, first_ + kFaults, -1); }
  void note(ScheduleFault fault, std::int64_t index) {
    std::int64_t& first = first_[static_cast<int>(fault)];
    first = first < 0 ? index : first;
  }
  void note_if(bool bad, ScheduleFault fault, std::int64_t index) {
    if (bad) {
      note(fault, index);
    }
  }
  FoundFault worst() const {
    for (int fault = 1; fault < kFaults; ++fault) {
      if (first_[fault] >= 0) {
        return {static_cast<ScheduleFault>(fault), first_[fault]};
      }
    }
    return {};
  }

 private:
  std::int64_t first_[kFaults];
};

bool is_finite(double x) { return std::fabs(x) <= std::numeric_limits<double>::max(); }

// One chunk, and the state before it, which becomes that after it.
class ChunkCheck {
 public:
  ChunkCheck(const CheckedColumns& chunk, ScheduleCheck::State state)
      : chunk_(chunk),
        state_(std::move(state)),
        first_(chunk.first_step),
        after_(first_ + chunk.n_steps),
        n_clients_(static_cast<std::uint32_t>(chunk.n_clients)) {}

  FoundFault run() {
    check_steps();
    count_started();
    check_rows();
    check_flying();
    check_left();
    return faults_.worst();
  }

  ScheduleCheck::State next_state() {
    for (std::int64_t i = 0; i < chunk_.n_flying; ++i) {  // in the next chunk they end, or are in flight again
      if (chunk_.flying_version[i] >= state_.oldest) {
        ++left_on(chunk_.flying_version[i]);
      }
    }
    left_on(after_) -= chunk_.n_steps > 0 ? chunk_.step_started[chunk_.n_steps - 1] : chunk_.started_on_first;
    std::int64_t keep = state_.oldest;
    while (keep < after_ && left_on(keep) == 0) {
      ++keep;
    }
    state_.left.erase(state_.left.begin(), state_.left.begin() + (keep - state_.oldest));
    state_.oldest = keep;
    return std::move(state_);
  }

 private:
  std::int64_t& left_on(std::int64_t version) { return state_.left[static_cast<std::size_t>(version - state_.oldest)]; }

  void check_steps() {
    for (std::int64_t k = 0; k < chunk_.n_steps; ++k) {
      const double time = chunk_.step_time[k];
      faults_.note_if(!is_finite(time), ScheduleFault::StepNotFinite, k);
      faults_.note_if(time < state_.last_step_time, ScheduleFault::StepOrder, k);
      state_.last_step_time = time;
    }
  }

  void count_started() {
    state_.left.resize(static_cast<std::size_t>(after_ - state_.oldest + 1));
    left_on(first_) += chunk_.started_on_first;
    for (std::int64_t k = 0; k < chunk_.n_steps; ++k) {
      left_on(first_ + k + 1) = std::max<std::int64_t>(chunk_.step_started[k], -1);  // any negative number is a fault
    }
  }

  void check_rows() {
    double last_arrive = state_.last_arrive;
    std::int64_t last_step = state_.last_step;
    for (std::int64_t i = 0; i < chunk_.n_rows; ++i) {
      const double arrive = chunk_.arrive_time[i];
      const bool counts = has_sound_values(i, last_arrive) &&
                          (chunk_.status[i] == kUsed ? fits_its_step(i, last_step) : fits_its_time(i));
      last_arrive = arrive;
      if (counts) {
        end_task(chunk_.version[i]);
      }
    }
    state_.last_arrive = last_arrive;
    state_.last_step = last_step;
  }

  // Whether the row's values are possible by themselves and after a row that arrived at last_arrive.
  FB_ALWAYS_INLINE bool has_sound_values(std::int64_t i, double last_arrive) {
    const std::int64_t version = chunk_.version[i], step = chunk_.step[i];
    const double arrive = chunk_.arrive_time[i];
    const bool is_used = chunk_.status[i] == kUsed;
    const bool outside = static_cast<std::uint64_t>(step) - static_cast<std::uint64_t>(first_) >=
                         static_cast<std::uint64_t>(chunk_.n_steps);
    const bool bad = (static_cast<std::uint32_t>(chunk_.client[i]) >= n_clients_) | (chunk_.status[i] >= kStatuses) |
                     (version < 0) | (is_used != (step >= 0)) | (is_used & outside) | !(arrive >= last_arrive) |
                     !is_finite(arrive);
    if (bad) {
      faults_.note_if(static_cast<std::uint32_t>(chunk_.client[i]) >= n_clients_, ScheduleFault::Client, i);
      faults_.note_if(chunk_.status[i] >= kStatuses, ScheduleFault::Status, i);
      faults_.note_if(version < 0, ScheduleFault::NegativeVersion, i);
      faults_.note_if(is_used != (step >= 0), ScheduleFault::StepOfStatus, i);
      faults_.note_if(step >= 0 && outside, ScheduleFault::StepRange, i);
      faults_.note_if(!is_finite(arrive), ScheduleFault::ArriveNotFinite, i);
      faults_.note_if(arrive < last_arrive, ScheduleFault::ArriveOrder, i);
    }
    return !bad;
  }

  // Whether a used row can enter its step, after one that entered last_step.
  FB_ALWAYS_INLINE bool fits_its_step(std::int64_t i, std::int64_t& last_step) {
    const std::int64_t version = chunk_.version[i], step = chunk_.step[i], staleness = chunk_.staleness[i];
    const double arrive = chunk_.arrive_time[i], step_time = chunk_.step_time[step - first_];
    const std::int64_t before = std::exchange(last_step, step);
    const bool fits = (step >= before) & (arrive <= step_time) & (staleness >= 0) & (staleness == step - version);
    if (fits && is_made_by(version, arrive)) {
      return true;
    }
    faults_.note_if(step < before, ScheduleFault::EarlierStep, i);
    faults_.note_if(arrive > step_time, ScheduleFault::LateArrival, i);
    faults_.note_if(staleness < 0, ScheduleFault::NegativeStaleness, i);
    faults_.note_if(staleness != step - version, ScheduleFault::Staleness, i);
    faults_.note_if(version > after_ || !is_made_by(version, arrive), ScheduleFault::NewerVersion, i);
    return false;
  }

  // Whether version + staleness of an unused row is the server's version when it arrives.
  FB_ALWAYS_INLINE bool fits_its_time(std::int64_t i) {
    const std::int64_t version = chunk_.version[i], staleness = chunk_.staleness[i];
    const double arrive = chunk_.arrive_time[i];
    const bool exists = staleness >= 0 && version <= after_ && staleness <= after_ - version &&
                        version + staleness >= first_ && is_made_by(version + staleness, arrive);
    const std::int64_t at = version + (exists ? staleness : 0);
    if (exists && (at >= after_ || !(chunk_.step_time[at - first_] < arrive))) {
      return true;
    }
    faults_.note_if(staleness < 0, ScheduleFault::NegativeStaleness, i);
    faults_.note_if(staleness >= 0, ScheduleFault::VersionAtArrival, i);
    return false;
  }

  bool is_made_by(std::int64_t version, double time) const {
    return version <= first_ || chunk_.step_time[version - 1 - first_] <= time;
  }

  FB_ALWAYS_INLINE void end_task(std::int64_t version) {
    if (version >= state_.oldest) {
      --left_on(version);
    } else if (version >= state_.known_from) {
      gone_ = gone_ < 0 ? version : std::min(gone_, version);
    }
  }

  void check_flying() {
    for (std::int64_t i = 0; i < chunk_.n_flying; ++i) {
      const std::int64_t version = chunk_.flying_version[i];
      faults_.note_if(static_cast<std::uint32_t>(chunk_.flying_client[i]) >= n_clients_, ScheduleFault::FlightClient,
                      i);
      if (version < 0 || version > after_) {
        faults_.note(ScheduleFault::FlightVersion, i);
      } else {
        end_task(version);
      }
    }
  }

  void check_left() {
    faults_.note_if(gone_ >= 0, ScheduleFault::Started, gone_);
    for (std::int64_t v = state_.oldest; v <= after_ && gone_ < 0; ++v) {
      faults_.note_if(left_on(v) < 0, ScheduleFault::Started, v);
    }
  }

  const CheckedColumns& chunk_;
  ScheduleCheck::State state_;
  const std::int64_t first_, after_;
  const std::uint32_t n_clients_;
  std::int64_t gone_ = -1;  // the lowest version that had no task left
  Faults faults_;
};

ScheduleCheck::State state_before(std::int64_t first_step) {
  constexpr double kBefore = -std::numeric_limits<double>::infinity();
  return {first_step, first_step, {}, kBefore, kBefore, first_step};
}

}  // namespace

FoundFault ScheduleCheck::add(const CheckedColumns& chunk) {
  ChunkCheck check(chunk, n_chunks_ == 0 ? state_before(chunk.first_step) : state_);
  const FoundFault found = check.run();
  if (found.fault == ScheduleFault::None) {
    state_ = check.next_state();
    ++n_chunks_;
  }
  return found;
}

}  // namespace fedbuff
