// Independent pieces of one call on several threads, which live as long as the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fedbuff {

// Calls work(0) .. work(n - 1) on up to `threads` threads, this one included; the first exception comes back here.
template <class Work>
void run_parallel(std::int64_t n, int threads, Work work) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto loop = [&] {
    try {
      for (std::int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
        work(i);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, n); ++t) {
    try {
      pool.emplace_back(loop);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: those there are do the same work
    }
  }
  loop();
  for (std::thread& thread : pool) {
    thread.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace fedbuff
