// The spin lock excludes, the backoff ends, and no notification of an event count is lost.
#include "threads/spin_wait.hpp"

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace fedbuff;

namespace {

template <class Body>
void on_threads(int n, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

TEST(spin_lock_excludes) {
  SpinLock mutex;
  int count = 0;  // not atomic: the lock protects it
  on_threads(4, [&](int) {
    for (int i = 0; i < 5000; ++i) {
      const std::lock_guard<SpinLock> lock(mutex);
      ++count;
    }
  });
  CHECK_EQ(count, 4 * 5000);
}

TEST(spin_lock_waits_for_a_holder_that_sleeps) {
  SpinLock mutex;
  bool written = false;
  std::unique_lock<SpinLock> held(mutex);
  std::thread waiter([&] {
    const std::lock_guard<SpinLock> lock(mutex);
    CHECK(written);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the waiter spins and yields
  written = true;
  held.unlock();
  waiter.join();
}

TEST(backoff_ends_and_begins_anew) {
  Backoff backoff;
  for (int times = 0; times < 2; ++times) {
    for (int i = 0; i < 13; ++i) {
      CHECK(backoff.pause());  // while it spins, and at the first yield
    }
    while (backoff.pause()) {
    }
    CHECK(!backoff.pause());
    backoff = Backoff();
  }
}

TEST(event_count_does_not_wait_for_what_has_been) {
  EventCount event;
  const std::uint64_t seen = event.count();
  CHECK(!event.wait_for(seen, std::chrono::seconds(0)));
  event.notify_all();
  CHECK_EQ(event.count(), seen + 1);
  event.wait(seen);
  event.sleep(seen);
  CHECK(event.wait_for(seen, std::chrono::seconds(0)));
}

TEST(event_count_loses_no_notification) {
  for (const bool spin : {true, false}) {
    EventCount there, back;
    int ball = 0;  // not atomic: handed over with the notifications
    const int rounds = 2000;
    std::thread other([&] {
      for (int i = 0; i < rounds; ++i) {
        const auto turn = static_cast<std::uint64_t>(i);
        spin ? there.wait(turn) : there.sleep(turn);
        ++ball;
        back.notify_all();
      }
    });
    for (int i = 0; i < rounds; ++i) {
      ++ball;
      there.notify_all();
      const auto turn = static_cast<std::uint64_t>(i);
      spin ? back.wait(turn) : back.sleep(turn);
      CHECK_EQ(ball, 2 * (i + 1));
    }
    other.join();
  }
}

TEST(event_count_wakes_all) {
  EventCount event;
  std::atomic<int> woken{0};
  std::thread notifier([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that most of them sleep
    event.notify_all();
  });
  on_threads(4, [&](int i) {
    if (i % 2 == 0) {
      event.sleep(0);
    } else {
      CHECK(event.wait_for(0, std::chrono::seconds(60)));
    }
    woken.fetch_add(1);
  });
  notifier.join();
  CHECK_EQ(woken.load(), 4);
}
