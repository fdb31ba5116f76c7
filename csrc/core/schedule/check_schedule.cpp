#include "schedule/check_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

}  // namespace

FoundFault ScheduleCheck::add(const CheckedColumns& chunk) {
  const std::int64_t first = chunk.first_step, n_steps = chunk.n_steps, after = first + n_steps;
  const auto n_clients = static_cast<std::uint32_t>(chunk.n_clients);
  const bool is_new = n_chunks_ == 0;
  const std::int64_t known_from = is_new ? first : known_from_;
  const std::int64_t oldest = is_new ? first : oldest_;
  double last_arrive = is_new ? -std::numeric_limits<double>::infinity() : last_arrive_;
  double last_step_time = is_new ? -std::numeric_limits<double>::infinity() : last_step_time_;
  std::int64_t last_step = is_new ? first : last_step_;
  Faults faults;

  for (std::int64_t k = 0; k < n_steps; ++k) {
    const double time = chunk.step_time[k];
    faults.note_if(!is_finite(time), ScheduleFault::StepNotFinite, k);
    faults.note_if(time < last_step_time, ScheduleFault::StepOrder, k);
    last_step_time = time;
  }

  std::vector<std::int64_t> left = is_new ? std::vector<std::int64_t>() : left_;
  left.resize(static_cast<std::size_t>(after - oldest + 1));
  const auto left_on = [&left, oldest](std::int64_t version) -> std::int64_t& {
    return left[static_cast<std::size_t>(version - oldest)];
  };
  left_on(first) += chunk.started_on_first;
  for (std::int64_t k = 0; k < n_steps; ++k) {
    left_on(first + k + 1) = std::max<std::int64_t>(chunk.step_started[k], -1);  // any negative number is a fault
  }
  std::int64_t gone = -1;  // the lowest version that had no task left
  const auto end_task = [&](std::int64_t version) {
    if (version >= oldest) {
      --left_on(version);
    } else if (version >= known_from) {
      gone = gone < 0 ? version : std::min(gone, version);
    }
  };
  const auto is_made_by = [&](std::int64_t version, double time) {
    return version <= first || chunk.step_time[version - 1 - first] <= time;
  };

  for (std::int64_t i = 0; i < chunk.n_rows; ++i) {
    const std::int64_t version = chunk.version[i], step = chunk.step[i], staleness = chunk.staleness[i];
    const double arrive = chunk.arrive_time[i];
    const bool is_used = chunk.status[i] == kUsed;
    const bool outside =
        static_cast<std::uint64_t>(step) - static_cast<std::uint64_t>(first) >= static_cast<std::uint64_t>(n_steps);
    const bool bad = (static_cast<std::uint32_t>(chunk.client[i]) >= n_clients) | (chunk.status[i] >= kStatuses) |
                     (version < 0) | (is_used != (step >= 0)) | (is_used & outside) | !(arrive >= last_arrive) |
                     !is_finite(arrive);
    if (bad) {
      faults.note_if(static_cast<std::uint32_t>(chunk.client[i]) >= n_clients, ScheduleFault::Client, i);
      faults.note_if(chunk.status[i] >= kStatuses, ScheduleFault::Status, i);
      faults.note_if(version < 0, ScheduleFault::NegativeVersion, i);
      faults.note_if(is_used != (step >= 0), ScheduleFault::StepOfStatus, i);
      faults.note_if(step >= 0 && outside, ScheduleFault::StepRange, i);
      faults.note_if(!is_finite(arrive), ScheduleFault::ArriveNotFinite, i);
      faults.note_if(arrive < last_arrive, ScheduleFault::ArriveOrder, i);
      last_arrive = arrive;
      continue;
    }
    last_arrive = arrive;
    if (is_used) {
      const bool fits = (step >= last_step) & (arrive <= chunk.step_time[step - first]) & (staleness >= 0) &
                        (staleness == step - version);
      if (!fits || !is_made_by(version, arrive)) {
        faults.note_if(step < last_step, ScheduleFault::EarlierStep, i);
        faults.note_if(arrive > chunk.step_time[step - first], ScheduleFault::LateArrival, i);
        faults.note_if(staleness < 0, ScheduleFault::NegativeStaleness, i);
        faults.note_if(staleness != step - version, ScheduleFault::Staleness, i);
        faults.note_if(version > after || !is_made_by(version, arrive), ScheduleFault::NewerVersion, i);
        last_step = step;
        continue;
      }
      last_step = step;
    } else {
      const bool exists = staleness >= 0 && version <= after && staleness <= after - version &&
                          version + staleness >= first && is_made_by(version + staleness, arrive);
      const std::int64_t at = version + (exists ? staleness : 0);
      if (!exists || (at < after && chunk.step_time[at - first] < arrive)) {
        faults.note_if(staleness < 0, ScheduleFault::NegativeStaleness, i);
        faults.note_if(staleness >= 0, ScheduleFault::VersionAtArrival, i);
        continue;
      }
    }
    end_task(version);
  }

  for (std::int64_t i = 0; i < chunk.n_flying; ++i) {
    const std::int64_t version = chunk.flying_version[i];
    faults.note_if(static_cast<std::uint32_t>(chunk.flying_client[i]) >= n_clients, ScheduleFault::FlightClient, i);
    if (version < 0 || version > after) {
      faults.note(ScheduleFault::FlightVersion, i);
    } else {
      end_task(version);
    }
  }
  faults.note_if(gone >= 0, ScheduleFault::Started, gone);
  for (std::int64_t v = oldest; v <= after && gone < 0; ++v) {
    faults.note_if(left_on(v) < 0, ScheduleFault::Started, v);
  }
  const FoundFault found = faults.worst();
  if (found.fault != ScheduleFault::None) {
    return found;
  }

  for (std::int64_t i = 0; i < chunk.n_flying; ++i) {  // in the next chunk they end, or are in flight again
    if (chunk.flying_version[i] >= oldest) {
      ++left_on(chunk.flying_version[i]);
    }
  }
  left_on(after) -= n_steps > 0 ? chunk.step_started[n_steps - 1] : chunk.started_on_first;
  std::int64_t keep = oldest;
  while (keep < after && left_on(keep) == 0) {
    ++keep;
  }
  left.erase(left.begin(), left.begin() + (keep - oldest));
  left_ = std::move(left);
  oldest_ = keep;
  known_from_ = known_from;
  last_arrive_ = last_arrive;
  last_step_time_ = last_step_time;
  last_step_ = last_step;
  ++n_chunks_;
  return {};
}

}  // namespace fedbuff
