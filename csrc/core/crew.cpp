#include "crew.hpp"

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

#include "waiting.hpp"

namespace fedbuff {

namespace {

constexpr std::chrono::seconds kStay{1};  // how long a thread waits for more

class Member;

// Those that have nothing to do. Never destroyed, as they may wait for longer than the process lives.
class Crew {
 public:
  static Crew& of_process() {
    static Crew* crew = new Crew;
    return *crew;
  }

  // One that is free, or a new one; null where none can be had.
  Member* take();
  void give_back(Member* member);
  // Whether the member, who is tired of waiting, may go: nobody has taken it meanwhile.
  bool let_go(Member* member);

 private:
  Crew() {
#if !defined(_WIN32)
    pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                   [] {
                     of_process().idle_.clear();  // their threads stayed with the parent
                     of_process().mutex_.unlock();
                   });
#endif
  }

  std::mutex mutex_;
  std::vector<Member*> idle_;
  std::size_t n_made_ = 0;
};

// A thread that waits for work.
class Member {
 public:
  Member() {
    std::thread([this] { loop(); }).detach();
  }

  void begin(int number, void* context, void (*work)(void*, int)) {
    number_ = number;
    context_ = context;
    work_ = work;
    finished_before_ = finished_.count();
    called_.ring();
  }

  void end() { finished_.wait(finished_before_); }

 private:
  void loop() {
    for (std::uint64_t calls = 0;; ++calls) {
      while (!called_.wait_for(calls, kStay)) {
        if (Crew::of_process().let_go(this)) {
          delete this;
          return;
        }
      }
      work_(context_, number_);
      finished_.ring();
    }
  }

  Bell called_, finished_;
  int number_ = 0;
  void* context_ = nullptr;
  void (*work_)(void*, int) = nullptr;
  std::uint64_t finished_before_ = 0;
};

Member* Crew::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!idle_.empty()) {
    Member* member = idle_.back();
    idle_.pop_back();
    return member;
  }
  try {
    idle_.reserve(n_made_ + 1);  // so that giving back cannot fail
    auto* made = new Member;
    ++n_made_;
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void Crew::give_back(Member* member) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(member);
}

bool Crew::let_go(Member* member) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find(idle_.begin(), idle_.end(), member);
  if (at == idle_.end()) {
    return false;
  }
  idle_.erase(at);
  --n_made_;
  return true;
}

}  // namespace

void run_together(int n, void* context, void (*work)(void*, int)) {
  std::vector<Member*> members;
  members.reserve(static_cast<std::size_t>(std::max(n, 1)));
  for (int number = 1; number < n; ++number) {
    Member* member = Crew::of_process().take();
    if (member == nullptr) {
      break;
    }
    members.push_back(member);
    member->begin(number, context, work);
  }
  work(context, 0);
  for (Member* member : members) {
    member->end();
    Crew::of_process().give_back(member);
  }
}

}  // namespace fedbuff
