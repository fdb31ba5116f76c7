// The thread pool: every number is called once, at the same time, by many callers, across forks; idle workers end.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "check.hpp"
#include "threads/thread_pool.hpp"
#include "threads/parallel.hpp"

using namespace fedbuff;

namespace {

// How often each number below n was called.
std::vector<int> calls_of(int n) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
  run_together(n, [&](int number) { calls[static_cast<std::size_t>(number)].fetch_add(1); });
  return {calls.begin(), calls.end()};
}

}  // namespace

TEST(thread_pool_calls_every_number_once) {
  for (int times = 0; times < 200; ++times) {
    for (const int n : {1, 2, 5}) {
      CHECK(calls_of(n) == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST(thread_pool_numbers_run_at_the_same_time) {
  std::atomic<int> here{0};
  run_together(3, [&](int) {
    here.fetch_add(1);
    while (here.load() < 3) {
      std::this_thread::yield();
    }
  });
  CHECK_EQ(here.load(), 3);
}

TEST(thread_pool_serves_many_callers_and_calls_within_calls) {
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int times = 0; times < 50; ++times) {
        run_together(2, [&](int) { run_together(2, [&](int) { total.fetch_add(1); }); });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK_EQ(total.load(), 4 * 50 * 4);
}

TEST(parallel_gives_the_first_exception) {
  std::atomic<int> done{0};
  bool thrown = false;
  try {
    run_parallel(100, 3, [&](std::int64_t i) {
      if (i == 7) {
        throw std::runtime_error("seven");
      }
      done.fetch_add(1);
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(done.load() <= 99);
}

#if defined(__linux__)
namespace {

// The exit status of a child that uses the pool.
int status_of_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // rather than wait for ever
    _exit(calls_of(3) == std::vector<int>(3, 1) && calls_of(2) == std::vector<int>(2, 1) ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

}  // namespace

TEST(thread_pool_works_after_a_fork) {
  calls_of(3);
  CHECK_EQ(status_of_child(), 0);
  CHECK(calls_of(3) == std::vector<int>(3, 1));
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // whose own locks a child may find held
TEST(thread_pool_works_after_a_fork_during_calls) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      while (!stop.load()) {
        calls_of(3);
      }
    });
  }
  for (int times = 0; times < 20; ++times) {
    CHECK_EQ(status_of_child(), 0);
  }
  stop = true;
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK(calls_of(3) == std::vector<int>(3, 1));
}
#endif

TEST(thread_pool_ends_idle_workers) {
  const auto n_threads = [] {
    int n = 0;
    DIR* tasks = opendir("/proc/self/task");
    while (const dirent* one = readdir(tasks)) {
      n += one->d_name[0] != '.' ? 1 : 0;
    }
    closedir(tasks);
    return n;
  };
  const auto until = [&](auto holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!holds() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return holds();
  };
  CHECK(until([&] { return n_threads() < 4; }));  // those of the tests before
  calls_of(8);
  CHECK(n_threads() >= 8);
  CHECK(until([&] { return n_threads() < 4; }));
  CHECK(calls_of(3) == std::vector<int>(3, 1));
}
#endif
