// Replay: the numbers of a schedule that is known in advance, on many threads, with the same bits on any number.
//
// Neither the number of threads, nor the window, nor the calls in which it is run change the result. engine.hpp says
// how it works. One thread at a time may call it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compiler/export.hpp"
#include "fedbuff/fedbuff.h"
#include "clients/client_work.hpp"
#include "kernels/problem.hpp"
#include "replay/secure_sum.hpp"
#include "replay/stats.hpp"

namespace fedbuff {

template <class T>
class ReplayEngine;

template <class T>
class FB_CORE_API Replay {
 public:
  // w0 (dim) is copied. `window_bytes` bounds the deltas that wait to be added, except for two per thread. The work
  // must outlive the replay. `secure` makes the sums where the config says fixed point; null: they are simulated.
  Replay(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
         const SumConfig& sums = {}, std::unique_ptr<SecureSum<T>> secure = nullptr);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Memory of the host's for the rows of the rule's table, as fb_server_set_table. Throws std::invalid_argument.
  void set_table(void* memory, std::int64_t bytes);

  // Adds rows, in order of arrival, and the server steps that are complete with them: for each step, how many tasks
  // started on the version that it starts from. Throws std::invalid_argument for rows out of order, and where more
  // tasks end on a version than were started on it, so that its model may be gone; then the replay cannot be used any
  // more.
  void add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps);
  // Tasks that started on these versions have ended unused, and do not need the models any more.
  void release(const std::int64_t* versions, std::int64_t n);
  // There are no more rows. Work that takes groups needs it: the last group might take more.
  void close();

  ReplayExit run(std::int64_t max_steps, int threads);

  // From now on notes |grad f(w^t)|^2 for every t with t % every == offset, when server step t is made; w^t is the
  // model that the step starts from. The problem's arrays must outlive the replay.
  void record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset);
  const std::vector<double>& gradients() const;

  std::int64_t version() const;
  const T* w() const;
  std::int64_t width() const;  // numbers of a version: dim, or 2 dim with a control variate
  // As RuleState::arrays, with what ReplayEngine::arrays adds; the data holds until the next call.
  std::vector<fb_array> rule_state() const;
  Divergence divergence() const;
  ReplayStats stats() const;

  // Throws std::logic_error that names an invariant which does not hold.
  void check() const;

  // The state between two server steps is the version, the rule's state, the models that later rows need, and the
  // deltas of the first rows after it where their group has rows before it (waiting_deltas); other deltas that wait are
  // computed again. To continue from it, make a new replay, call pass_over, add all rows from the first on, at least
  // those of the steps below `version`, and call restore.
  std::vector<std::int64_t> live_versions() const;
  const T* model(std::int64_t version) const;    // (width)
  std::vector<const T*> waiting_deltas() const;  // (dim) each
  void pass_over(std::int64_t version);
  // live ascends and is below the version; models (live, width). Returns how many of them later rows may need; the
  // others are not kept. Throws std::invalid_argument where one that a row needs is missing, or the rule has no such
  // state. deltas (n_deltas, dim).
  std::int64_t restore(const T* w, const std::vector<std::int64_t>& live, const T* models,
                       const std::vector<fb_array>& rule_state, const T* deltas = nullptr, std::int64_t n_deltas = 0);

 private:
  std::unique_ptr<ReplayEngine<T>> engine_;
};

extern template class Replay<float>;
extern template class Replay<double>;

}  // namespace fedbuff
