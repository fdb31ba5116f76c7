// What a replay reports: why a run returned, where it diverged, and counts.
#pragma once

#include <cstdint>

namespace fedbuff {

enum class ReplayExit : int {
  Steps = 0,     // max_steps were made
  NeedRows = 1,  // all complete steps that were given are made
  Diverged = 2,  // the next model would not be finite; it was not committed
};

struct Divergence {
  std::int64_t step = -1;
  std::int64_t row = -1;  // the first row whose delta is not finite; -1 where the sum or the step overflowed
};

struct ReplayStats {
  std::int64_t rows = 0;           // committed
  std::int64_t live_versions = 0;  // models held now
  std::int64_t most_versions = 0;  // the maximum of it
  std::int64_t window = 0;         // deltas held now
  std::int64_t most_window = 0;    // the maximum of it
  double commit_seconds = 0;       // adding and stepping; of small models, an estimate from every 64th step
  double work_seconds = 0;         // clients' work, over all threads; of tiny tasks, an estimate without the helpers'
  double wait_seconds = 0;         // threads that waited for work
  double secure_seconds = 0;       // of commit_seconds: fixed point, masks and noise
  std::int64_t cut = 0;            // numbers out of the encoding's range, in committed rows
};

}  // namespace fedbuff
