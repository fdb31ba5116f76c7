// A replay as the C ABI holds it: problem, clients' work, engine and run, and what a saved one goes on from.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/read_problem.hpp"
#include "clients/workspace.hpp"
#include "fedbuff/fedbuff.h"
#include "replay/replay.hpp"
#include "replay/run.hpp"

// Of either dtype. One thread at a time; c_replay.cpp refuses a second one by `inside`.
struct fb_replay {
  virtual ~fb_replay() = default;
  // Throw std::invalid_argument for rows that are no part of a schedule, or not those of the saved replay.
  virtual fb_status add(const fb_columns& rows) = 0;
  virtual void close() = 0;
  virtual fb_replay_end run(std::int64_t max_steps, int threads) = 0;
  virtual std::int64_t version() const = 0;
  virtual std::int64_t updates() const = 0;
  virtual double time() const = 0;
  virtual std::int64_t dim() const = 0;
  virtual const void* w() const = 0;
  virtual bool has_classes() const = 0;
  virtual void evaluate(int threads, double* loss_out, double* grad_norm_sq_out, double* accuracy_out) = 0;
  // Empty, or what is wrong with the file.
  virtual std::string save(const char* path) = 0;
  virtual std::string load(const char* path) = 0;

  std::atomic<bool> inside{false};
};

namespace fedbuff {

// Checked structs; arrays of the problem must outlive the replay.
struct ReplayRequest {
  fb_problem problem;
  fb_local_config local;
  fb_rule rule;
  fb_replay_config config;
  std::int64_t dim;
  const void* w0;  // null: zeros
};

// Null where `checks` says what is wrong.
std::unique_ptr<fb_replay> make_replay(const ReplayRequest& request, fb_dtype dtype, FieldChecks& checks);

}  // namespace fedbuff
