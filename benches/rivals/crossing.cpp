// How long a line of the cache takes from one core to another and back: two threads wait for each other's number.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

/// Seconds of a round trip, the mean of so many.
extern "C" double crossing(std::int64_t rounds) {
  alignas(128) std::atomic<std::int64_t> turn{0};
  std::thread other([&] {
    for (std::int64_t i = 0; i < rounds; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < rounds; ++i) {
    turn.store(2 * i + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) {
    }
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  other.join();
  return taken.count() / static_cast<double>(rounds);
}
