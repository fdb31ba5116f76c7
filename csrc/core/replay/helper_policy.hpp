// Whether helper threads take rows of tiny tasks, and how many rows they get.
//
// Whether helpers make a run faster depends on how far the cores are from each other. So runs are made in both ways
// until kTrialRows rows were timed in each; then the faster way is used, and both are tried again after kTrialsApart
// times as many rows. The helpers' share falls when the leader has waited for them in many steps, and rises otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace fedbuff {

class HelperPolicy {
 public:
  static constexpr std::int64_t kShares = 16;
  static constexpr std::int64_t kTrialRows = 20'000;
  static constexpr std::int64_t kTrialsApart = 100;
  static constexpr std::int64_t kStepsAWait = 6;  // fewer steps than this for each one that waited: the share falls

  // Whether the next run uses helpers.
  bool wants_helpers() {
    if (!helped_.is_known() || !alone_.is_known()) {
      return !helped_.is_known();
    }
    const bool wanted = helped_.is_faster_than(alone_);
    if ((wanted ? helped_ : alone_).rows > kTrialsApart * kTrialRows) {
      helped_ = alone_ = {};
    }
    return wanted;
  }

  // Out of kShares: how many of the rows that helpers could take they get.
  std::int64_t share() const { return share_; }

  // The leader waits for a helper in the step of this version. Whether it is the first time in that step.
  bool note_wait(std::int64_t version) {
    const bool is_new = std::exchange(waited_at_, version) != version;
    n_waits_ += is_new ? 1 : 0;
    return is_new;
  }

  void note_run(bool helped, double seconds, std::int64_t rows) {
    Pace& pace = helped ? helped_ : alone_;
    pace.seconds += seconds;
    pace.rows += rows;
  }

  // After a run with helpers that made this many steps.
  void adapt_share(std::int64_t steps) {
    const bool too_many = std::exchange(n_waits_, 0) * kStepsAWait > steps;
    share_ = std::clamp<std::int64_t>(share_ + (too_many ? -1 : 1), 1, kShares);
  }

 private:
  struct Pace {
    double seconds = 0;
    std::int64_t rows = 0;

    bool is_known() const { return rows >= kTrialRows; }
    bool is_faster_than(const Pace& other) const {
      return seconds * static_cast<double>(other.rows) < other.seconds * static_cast<double>(rows);
    }
  };

  Pace helped_, alone_;
  std::int64_t share_ = kShares;
  std::int64_t n_waits_ = 0, waited_at_ = -1;  // steps of the run that waited for a helper, and the last one
};

}  // namespace fedbuff
