#include "threads/thread_pool.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "threads/spin_wait.hpp"

namespace fedbuff {

namespace {

constexpr std::chrono::seconds kIdleTime{1};  // how long a worker without work stays

class Worker;

// The idle workers. Never destroyed: detached workers use the pool until the process ends.
class ThreadPool {
 public:
  static ThreadPool& of_process() {
    static ThreadPool* pool = new ThreadPool;
    return *pool;
  }

  // An idle worker, or a new one; null where no thread can be started.
  Worker* acquire();
  void release(Worker* worker);
  // Removes an idle worker, whose thread then ends. False where the worker was acquired meanwhile.
  bool discard(Worker* worker);

 private:
  ThreadPool() {
#if !defined(_WIN32)
    pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                   [] {
                     of_process().idle_.clear();  // a fork copies no threads but the calling one
                     of_process().n_made_ = 0;
                     of_process().mutex_.unlock();
                   });
#endif
  }

  std::mutex mutex_;
  std::vector<Worker*> idle_;
  std::size_t n_made_ = 0;
};

// A thread that waits for calls.
class Worker {
 public:
  Worker() {
    std::thread([this] { loop(); }).detach();
  }

  void begin(int number, void* context, void (*work)(void*, int)) {
    number_ = number;
    context_ = context;
    work_ = work;
    finished_before_ = finished_.count();
    called_.notify_all();
  }

  void end() { finished_.wait(finished_before_); }

 private:
  void loop() {
    for (std::uint64_t calls = 0;; ++calls) {
      while (!called_.wait_for(calls, kIdleTime)) {
        if (ThreadPool::of_process().discard(this)) {
          delete this;
          return;
        }
      }
      work_(context_, number_);
      finished_.notify_all();
    }
  }

  EventCount called_, finished_;
  int number_ = 0;
  void* context_ = nullptr;
  void (*work_)(void*, int) = nullptr;
  std::uint64_t finished_before_ = 0;
};

Worker* ThreadPool::acquire() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!idle_.empty()) {
    Worker* worker = idle_.back();
    idle_.pop_back();
    return worker;
  }
  try {
    idle_.reserve(n_made_ + 1);  // so that release() cannot fail
    auto* made = new Worker;
    ++n_made_;
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void ThreadPool::release(Worker* worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(worker);
}

bool ThreadPool::discard(Worker* worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find(idle_.begin(), idle_.end(), worker);
  if (at == idle_.end()) {
    return false;
  }
  idle_.erase(at);
  --n_made_;
  return true;
}

}  // namespace

void run_together(int n, void* context, void (*work)(void*, int)) {
  std::vector<Worker*> workers;
  workers.reserve(static_cast<std::size_t>(std::max(n, 1)));
  for (int number = 1; number < n; ++number) {
    Worker* worker = ThreadPool::of_process().acquire();
    if (worker == nullptr) {
      break;
    }
    workers.push_back(worker);
    worker->begin(number, context, work);
  }
  work(context, 0);
  for (Worker* worker : workers) {
    worker->end();
    ThreadPool::of_process().release(worker);
  }
}

}  // namespace fedbuff
