// Every chunk of a pass is worked on exactly once, whatever helpers and executors do.
#include "threads/core_chunks.hpp"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace fedbuff;

namespace {

// How often each chunk of a pass was worked on. Plain numbers: a pass ends after all work on it.
struct Pass {
  std::vector<int> times;
  explicit Pass(std::int64_t n) : times(static_cast<std::size_t>(n)) {}
  void operator()(std::int64_t chunk) { ++times[static_cast<std::size_t>(chunk)]; }
  std::int64_t done() const {
    std::int64_t n = 0;
    for (const int one : times) {
      CHECK(one == 0 || one == 1);
      n += one;
    }
    return n;
  }
};

fb_status run(std::int64_t n, bool all, std::int64_t want_done,
              std::int32_t (*executor)(void*, std::int64_t, fb_work, void*)) {
  CoreChunks chunks;
  Pass pass(n);
  fb_executor host = FB_EXECUTOR_INIT;
  host.run = executor;
  chunks.open(n, pass);
  const fb_status status = chunks.finish(&host, all);
  CHECK(!chunks.is_open());
  CHECK_EQ(pass.done(), want_done);
  return status;
}

std::int32_t runs_all(void*, std::int64_t n, fb_work work, void* target) {
  for (std::int64_t i = n; i-- > 0;) {
    work(target, i);
  }
  return 0;
}
std::int32_t runs_too_often(void*, std::int64_t n, fb_work work, void* target) {
  for (std::int64_t i = 0; i < 3 * n; ++i) {
    work(target, 0);
  }
  return 0;
}
std::int32_t forgets_the_last(void*, std::int64_t n, fb_work work, void* target) {
  for (std::int64_t i = 0; i + 1 < n; ++i) {
    work(target, i);
  }
  return 0;
}
std::int32_t says_that_it_failed(void*, std::int64_t, fb_work work, void* target) {
  work(target, 0);
  return 1;
}
std::int32_t throws(void*, std::int64_t, fb_work work, void* target) {
  work(target, 0);
  throw std::runtime_error("the host's own");
}
std::int32_t runs_on_threads(void*, std::int64_t n, fb_work work, void* target) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([=] {
      for (std::int64_t i = t; i < n; i += 3) {
        work(target, i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}

}  // namespace

TEST(core_chunks_are_counted) {
  CHECK_EQ(count_chunks(0), 1);
  CHECK_EQ(count_chunks(2 * kChunkSize - 1), 1);
  CHECK_EQ(count_chunks(2 * kChunkSize), 2);
  CHECK_EQ(count_chunks(2 * kChunkSize + 1), 3);
  CHECK_EQ(count_chunks(10 * kChunkSize), 10);
  CHECK(core_number() >= 0);
}

TEST(core_chunks_are_worked_on_once) {
  CoreChunks chunks;
  std::atomic<bool> stop{false};
  std::vector<std::thread> helpers;
  for (int i = 0; i < 3; ++i) {
    helpers.emplace_back([&] {
      while (!stop.load()) {
        if (chunks.is_open()) {
          chunks.help();
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (int times = 0; times < 100; ++times) {
    for (const std::int64_t n : {1, 2, 3, 17, 200}) {
      Pass pass(n);
      chunks.open(n, pass);
      CHECK_EQ(chunks.finish(nullptr, times % 2 == 0), FB_OK);
      CHECK_EQ(pass.done(), n);
      CHECK(!chunks.is_open());
    }
  }
  stop = true;
  for (std::thread& helper : helpers) {
    helper.join();
  }
}

TEST(core_chunks_with_executors) {
  for (const std::int64_t n : {2, 5, 64}) {
    for (const bool all : {false, true}) {
      CHECK_EQ(run(n, all, n, &runs_all), FB_OK);
      CHECK_EQ(run(n, all, n, &runs_too_often), FB_OK);
      CHECK_EQ(run(n, all, n, &runs_on_threads), FB_OK);
    }
    CHECK_EQ(run(n, true, n, &forgets_the_last), FB_OK);
    CHECK_EQ(run(n, true, n, &says_that_it_failed), FB_OK);
    CHECK_EQ(run(n, true, n, &throws), FB_OK);
    CHECK_EQ(run(n, false, n - 1, &forgets_the_last), FB_ERR_HOST);
    CHECK_EQ(run(n, false, 1, &says_that_it_failed), FB_ERR_HOST);
    CHECK_EQ(run(n, false, 1, &throws), FB_ERR_HOST);
  }
}
