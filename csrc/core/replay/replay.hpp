// Replay: the numbers of a schedule that is known in advance, on many threads, with the same bits on any number.
//
// An out-of-order machine with an in-order commit. Workers take the used arrivals as soon as the version that each
// downloaded exists, the oldest first; their deltas wait in a window; a server step adds its deltas in the order of
// arrival. The oldest unfinished task can always run and has its place in the window, so it cannot deadlock; every
// addition happens in one order, so neither threads, nor the window, nor the pieces in which it is run show in the
// result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "export.hpp"
#include "fedbuff/fedbuff.h"
#include "clients/client_work.hpp"
#include "kernels/problem.hpp"
#include "replay/secure_sum.hpp"

namespace fedbuff {

enum class ReplayExit : int {
  Steps = 0,     // max_steps were made
  NeedRows = 1,  // all complete steps that were given are made
  Diverged = 2,  // the next model would not be finite; nothing of that step was kept
};

struct Divergence {
  std::int64_t step = -1;
  std::int64_t row = -1;  // the first row whose delta is not finite; -1 where the sum or the step overflowed
};

struct ReplayStats {
  std::int64_t rows = 0;           // committed
  std::int64_t live_versions = 0;  // models held now
  std::int64_t most_versions = 0;  // ... and at the worst moment
  std::int64_t window = 0;         // deltas held now
  std::int64_t most_window = 0;    // ... and at the worst moment
  double commit_seconds = 0;       // adding and stepping; of small models by every 64th step
  double work_seconds = 0;    // clients' work, over all threads; of tiny tasks by every 64th turn, without helpers'
  double wait_seconds = 0;    // threads with nothing to do
  double secure_seconds = 0;  // of commit_seconds: fixed point, masks and noise
  std::int64_t cut = 0;       // numbers out of the encoding's range, in committed rows
};

template <class T>
class FB_CORE_API Replay {
 public:
  // `window_bytes` bounds the deltas that wait; places for two per thread there always are. The work must outlive the
  // replay. `secure` makes the sums where the config says fixed point; null: they are simulated.
  Replay(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
         const SumConfig& sums = {}, std::unique_ptr<SecureSum<T>> secure = nullptr);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // More rows, in order of arrival, and the server steps that are complete with them: for each, how many tasks in all
  // started on the version that it ends. Throws std::invalid_argument for rows out of order, and where more tasks end
  // on a version than were started on it, so that its model may be gone; then the replay is of no more use.
  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps);
  // Tasks that started on these versions ended unused: they need the models no longer.
  void release(const std::int64_t* versions, std::int64_t n);

  ReplayExit run(std::int64_t max_steps, int threads);

  // From now on notes |grad f(w^t)|^2 for every t with t % every == offset, when server step t is made: the models that
  // the steps started from, in order. The problem's arrays must outlive the replay.
  void record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset);
  const std::vector<double>& gradients() const;

  std::int64_t version() const;
  const T* w() const;
  const T* first_moment() const;   // (dim) or null
  const T* second_moment() const;  // (dim) or null
  Divergence divergence() const;
  ReplayStats stats() const;

  // Throws std::logic_error with the invariant that does not hold.
  void check() const;

  // Everything between two server steps: the versions that later rows need, and where it stands. Deltas that wait are
  // worked out again. A new replay that passes over steps is given all rows from the first on, at least those of the
  // steps below `version`, keeps what later rows need, and goes on after `restore` has given it the models.
  std::vector<std::int64_t> live_versions() const;
  const T* model(std::int64_t version) const;
  void pass_over(std::int64_t version);
  // live ascends and is below the version; models (live, dim). Returns how many of them later rows may need: the others
  // are left out. Throws std::invalid_argument where one that a row needs is missing.
  std::int64_t restore(const T* w, const std::vector<std::int64_t>& live, const T* models, const T* first_moment,
                       const T* second_moment);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

extern template class Replay<float>;
extern template class Replay<double>;

}  // namespace fedbuff
