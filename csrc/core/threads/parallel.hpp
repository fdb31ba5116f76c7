// A loop whose iterations are independent, on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "threads/thread_pool.hpp"

namespace fedbuff {

// Calls work(0) .. work(n - 1) on up to `threads` threads, this one included. After an exception no more calls are
// begun; the first one that was caught is thrown here after all threads have stopped.
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
      error = error ? error : std::current_exception();
      next = n;
    }
  };
  run_together(static_cast<int>(std::min<std::int64_t>(threads, n)), [&](int) { loop(); });
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace fedbuff
