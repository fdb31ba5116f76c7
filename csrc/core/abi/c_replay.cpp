// Replays of the C ABI: one thread at a time, exceptions as status codes.
#include <stdexcept>
#include <string>

#include "abi/check_rule.hpp"
#include "abi/handles.hpp"
#include "abi/held_replay.hpp"

namespace {

using fedbuff::FieldChecks;

// Keeps other threads out of a replay, and functions that it calls, for as long as it lives.
class Inside {
 public:
  explicit Inside(fb_replay& replay) : replay_(replay), alone_(!replay.inside.exchange(true)) {}
  ~Inside() {
    if (alone_) {
      replay_.inside.store(false);
    }
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  bool is_alone() const { return alone_; }

 private:
  fb_replay& replay_;
  const bool alone_;
};

// body(replay), alone. What does not fit together is an argument's fault.
template <class Body>
fb_status call(fb_replay* replay, Body body) {
  fedbuff::clear_error();
  if (replay == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  const Inside inside(*replay);
  if (!inside.is_alone()) {
    return FB_ERR_BUSY;
  }
  return fedbuff::guarded([&]() -> fb_status {
    try {
      return body(*replay);
    } catch (const std::invalid_argument& error) {
      return fedbuff::refuse(FB_ERR_ARGUMENT, error.what());
    } catch (const std::logic_error& error) {
      if (dynamic_cast<const std::length_error*>(&error) != nullptr) {
        throw;
      }
      return fedbuff::refuse(FB_ERR_ARGUMENT, error.what());
    }
  });
}

fb_status read_request(const fb_problem* problem, const fb_local_config* local, const fb_rule* rule,
                       const fb_replay_config* config, fedbuff::ReplayRequest& request) {
  const fb_replay_config standard = FB_REPLAY_CONFIG_INIT;
  fb_status status = fedbuff::read_struct(problem, request.problem);
  status = status != FB_OK ? status : fedbuff::read_struct(local, request.local);
  status = status != FB_OK ? status : fedbuff::read_struct(rule, request.rule);
  return status != FB_OK ? status : fedbuff::read_struct(config == nullptr ? &standard : config, request.config);
}

bool is_complete(const fb_columns& c) {
  const bool rows = c.n_rows == 0 || (c.client != nullptr && c.task != nullptr && c.version != nullptr &&
                                      c.step != nullptr && c.staleness != nullptr && c.status != nullptr);
  return rows && (c.n_steps == 0 || (c.step_time != nullptr && c.started != nullptr));
}

fb_status of_file(const std::string& fault) {
  return fault.empty() ? FB_OK : fedbuff::refuse(FB_ERR_FILE, fault.c_str());
}

}  // namespace

extern "C" {

fb_status fb_replay_create(const fb_problem* problem, const fb_local_config* local, const fb_rule* rule,
                           const fb_replay_config* config, fb_dtype dtype, int64_t dim, const void* w0,
                           fb_replay** replay_out) {
  fedbuff::clear_error();
  fedbuff::ReplayRequest request{};
  if (const fb_status status = read_request(problem, local, rule, config, request); status != FB_OK) {
    return status;
  }
  if (replay_out == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  FieldChecks checks;
  checks.between("dtype", dtype, FB_F32, FB_F64);
  fedbuff::check_rule(request.rule, checks);
  if (!checks.ok()) {
    return refuse(checks);
  }
  request.dim = dim;
  request.w0 = w0;
  return fedbuff::guarded([&] {
    auto replay = fedbuff::make_replay(request, dtype, checks);
    if (replay != nullptr) {
      *replay_out = replay.release();
    }
    return refuse(checks);
  });
}

void fb_replay_destroy(fb_replay** replay) { fedbuff::destroy(replay); }

fb_status fb_replay_add(fb_replay* replay, const fb_columns* rows) {
  fb_columns given;
  fedbuff::clear_error();
  if (const fb_status status = fedbuff::read_struct(rows, given); status != FB_OK) {
    return status;
  }
  FieldChecks checks;
  checks.at_least("n_rows", given.n_rows, 0);
  checks.at_least("n_steps", given.n_steps, 0);
  checks.require(is_complete(given), "columns", "arrays, none of them null");
  return checks.ok() ? call(replay, [&](fb_replay& r) { return r.add(given); }) : refuse(checks);
}

fb_status fb_replay_close(fb_replay* replay) {
  return call(replay, [](fb_replay& r) {
    r.close();
    return FB_OK;
  });
}

fb_status fb_replay_run(fb_replay* replay, int64_t max_steps, int32_t threads, int32_t* end_out) {
  return call(replay, [&](fb_replay& r) {
    FieldChecks checks;
    checks.at_least("max_steps", max_steps, 0);
    checks.between("threads", threads, 1, 1 << 16);
    checks.require(end_out != nullptr, "end_out", "an address, not null");
    if (checks.ok()) {
      *end_out = r.run(max_steps, threads);
    }
    return refuse(checks);
  });
}

int64_t fb_replay_version(const fb_replay* replay) { return replay == nullptr ? -1 : replay->version(); }
int64_t fb_replay_updates(const fb_replay* replay) { return replay == nullptr ? -1 : replay->updates(); }
double fb_replay_time(const fb_replay* replay) { return replay == nullptr ? -1.0 : replay->time(); }
int64_t fb_replay_dim(const fb_replay* replay) { return replay == nullptr ? -1 : replay->dim(); }

const void* fb_replay_w(fb_replay* replay) {
  const void* w = nullptr;
  call(replay, [&](fb_replay& r) {
    w = r.w();
    return FB_OK;
  });
  return w;
}

fb_status fb_replay_evaluate(fb_replay* replay, int32_t threads, double* loss_out, double* grad_norm_sq_out,
                             double* accuracy_out) {
  return call(replay, [&](fb_replay& r) {
    FieldChecks checks;
    checks.between("threads", threads, 1, 1 << 16);
    checks.require(accuracy_out == nullptr || r.has_classes(), "accuracy_out", "null: this problem has no classes");
    if (checks.ok()) {
      r.evaluate(threads, loss_out, grad_norm_sq_out, accuracy_out);
    }
    return refuse(checks);
  });
}

fb_status fb_replay_save(fb_replay* replay, const char* path) {
  return path == nullptr ? FB_ERR_ARGUMENT : call(replay, [&](fb_replay& r) { return of_file(r.save(path)); });
}

fb_status fb_replay_load(fb_replay* replay, const char* path) {
  return path == nullptr ? FB_ERR_ARGUMENT : call(replay, [&](fb_replay& r) { return of_file(r.load(path)); });
}

}  // extern "C"
