// The recorder of the C ABI: starts and arrivals of a live run, as rows of an arrival log.
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/handles.hpp"
#include "abi/saved_file.hpp"
#include "fedbuff/fedbuff.h"

namespace {

struct Row {
  std::int64_t client, version;
  double start_time, arrive_time;
};

fb_status no_start(std::int64_t client) {
  return fedbuff::refuse(FB_ERR_ARGUMENT, ("client: expected one with a task, got " + std::to_string(client)).c_str());
}

}  // namespace

struct fb_recorder {
  fb_status started(std::int64_t client, std::int64_t version, double time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fedbuff::FieldChecks checks;
    checks.at_least("client", client, 0);
    checks.at_least("version", version, 0);
    checks.require(open_.find(client) == open_.end(), "client", "one without a task in flight",
                   static_cast<double>(client));
    double now = 0;
    if (checks.ok() && tick(time, checks, now)) {
      open_.emplace(client, Row{client, version, now, 0});
      now_ = now;
    }
    return refuse(checks);
  }

  fb_status arrived(std::int64_t client, double time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(client);
    if (found == open_.end()) {
      return no_start(client);
    }
    fedbuff::FieldChecks checks;
    double now = 0;
    if (tick(time, checks, now)) {
      rows_.push_back(found->second);
      rows_.back().arrive_time = now_ = now;
      open_.erase(found);
    }
    return refuse(checks);
  }

  fb_status cancelled(std::int64_t client) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return open_.erase(client) == 1 ? FB_OK : no_start(client);
  }

  std::int64_t in_flight() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::int64_t>(open_.size());
  }
  std::vector<Row> rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_;
  }
  std::int64_t count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::int64_t>(rows_.size());
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The time of a call; times that are read here are never the same.
  bool tick(double time, fedbuff::FieldChecks& checks, double& now_out) const {
    now_out = time;
    if (time == FB_NOW) {
      const double now = std::chrono::duration<double>(Clock::now() - origin_).count();
      now_out = now > now_ ? now : std::nextafter(now_, now_ + 1);
    }
    return checks.require(std::isfinite(now_out) && now_out >= now_, "time", "FB_NOW, or a time that is not earlier",
                          time);
  }

  mutable std::mutex mutex_;
  const Clock::time_point origin_ = Clock::now();
  double now_ = 0;
  std::unordered_map<std::int64_t, Row> open_;
  std::vector<Row> rows_;
};

extern "C" {

fb_status fb_recorder_create(fb_recorder** recorder_out) {
  fedbuff::clear_error();
  return recorder_out == nullptr ? FB_ERR_ARGUMENT
                                 : fedbuff::create(recorder_out, [] { return std::make_unique<fb_recorder>(); });
}

void fb_recorder_destroy(fb_recorder** recorder) { fedbuff::destroy(recorder); }

fb_status fb_recorder_started(fb_recorder* recorder, int64_t client, int64_t version, double time) {
  fedbuff::clear_error();
  return recorder == nullptr ? FB_ERR_ARGUMENT
                             : fedbuff::guarded([&] { return recorder->started(client, version, time); });
}

fb_status fb_recorder_arrived(fb_recorder* recorder, int64_t client, double time) {
  fedbuff::clear_error();
  return recorder == nullptr ? FB_ERR_ARGUMENT : fedbuff::guarded([&] { return recorder->arrived(client, time); });
}

fb_status fb_recorder_cancelled(fb_recorder* recorder, int64_t client) {
  fedbuff::clear_error();
  return recorder == nullptr ? FB_ERR_ARGUMENT : fedbuff::guarded([&] { return recorder->cancelled(client); });
}

int64_t fb_recorder_count(const fb_recorder* recorder) { return recorder == nullptr ? -1 : recorder->count(); }
int64_t fb_recorder_in_flight(const fb_recorder* recorder) { return recorder == nullptr ? -1 : recorder->in_flight(); }

int64_t fb_recorder_rows(const fb_recorder* recorder, int64_t n, int64_t* client_out, int64_t* version_out,
                         double* start_time_out, double* arrive_time_out) {
  if (recorder == nullptr || n < 0 ||
      (n > 0 &&
       (client_out == nullptr || version_out == nullptr || start_time_out == nullptr || arrive_time_out == nullptr))) {
    return -1;
  }
  std::int64_t count = -1;
  const fb_status status = fedbuff::guarded([&] {
    const std::vector<Row> rows = recorder->rows();
    count = static_cast<std::int64_t>(rows.size());
    for (std::int64_t i = 0; i < std::min(n, count); ++i) {
      const Row& row = rows[static_cast<std::size_t>(i)];
      client_out[i] = row.client;
      version_out[i] = row.version;
      start_time_out[i] = row.start_time;
      arrive_time_out[i] = row.arrive_time;
    }
    return FB_OK;
  });
  return status == FB_OK ? count : -1;
}

fb_status fb_recorder_save(const fb_recorder* recorder, const char* path) {
  fedbuff::clear_error();
  if (recorder == nullptr || path == nullptr) {
    return FB_ERR_ARGUMENT;
  }
  return fedbuff::guarded([&] {
    fedbuff::SavedFileWriter file(path);
    constexpr char kHeader[] = "client,version,start_time,arrive_time\n";
    file.text(kHeader, sizeof kHeader - 1);
    for (const Row& row : recorder->rows()) {
      char line[128];
      const int n = std::snprintf(line, sizeof line, "%" PRId64 ",%" PRId64 ",%.17g,%.17g\n", row.client, row.version,
                                  row.start_time, row.arrive_time);
      file.text(line, static_cast<std::size_t>(n));
    }
    const std::string fault = file.finish();
    return fault.empty() ? FB_OK : fedbuff::refuse(FB_ERR_FILE, fault.c_str());
  });
}

}  // extern "C"
