// Arrivals are settled in the order of their tickets, one batch at a time, whatever threads, faults and cancellations
// do.
#include "threads/ticket_queue.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace fedbuff;

namespace {

// Notes the versions of settled arrivals. All of it is written under the lock of the queue, or inside its chunks.
struct Notes final : TicketQueue::Sink {
  explicit Notes(std::int64_t n_chunks = 1) : counts(static_cast<std::size_t>(n_chunks)) {}

  std::size_t settle(TicketQueue::Lock& lock, Arrival* const* arrival, std::size_t n) override {
    CHECK(!running);
    CHECK(n >= 1 && n <= TicketQueue::kMaxBatch);
    if (arrival[0]->version == throws_at) {
      throw std::bad_alloc();
    }
    if (arrival[0]->version == short_at) {
      short_at = -1;
      arrival[0]->status = FB_ERR_SHORT_TABLE;
      return 1;
    }
    const std::size_t n_settled = std::min(n, most);
    running = true;
    const fb_status status = queue.run(lock, static_cast<std::int64_t>(counts.size()), false, [&](std::int64_t chunk) {
      counts[static_cast<std::size_t>(chunk)] += n_settled;
    });
    running = false;
    if (status != FB_OK) {
      arrival[0]->status = status;
      return 1;
    }
    for (std::size_t k = 0; k < n_settled; ++k) {
      versions.push_back(arrival[k]->version);
      arrival[k]->status = FB_OK;
    }
    largest = std::max(largest, n_settled);
    return n_settled;
  }

  fb_status submit(std::int64_t version, std::int64_t ticket = FB_NO_TICKET) {
    Arrival arrival{nullptr, FB_F64, version, 1.0, ticket};
    return queue.submit(*this, arrival);
  }
  std::int64_t ticket() {
    std::int64_t taken = -1;
    CHECK_EQ(queue.take_ticket(&taken), FB_OK);
    return taken;
  }
  void each_chunk_has(std::size_t times) const {
    for (const std::size_t count : counts) {
      CHECK_EQ(count, times);
    }
  }

  TicketQueue queue;
  std::vector<std::int64_t> versions;
  std::vector<std::size_t> counts;
  std::size_t most = TicketQueue::kMaxBatch, largest = 0;
  std::int64_t throws_at = -1, short_at = -1;
  bool running = false;
};

std::vector<std::int64_t> up_to(std::int64_t n) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

TEST(ticket_queue_settles_in_the_order_of_tickets) {
  for (const std::int64_t n_chunks : {1, 40}) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{3}, TicketQueue::kMaxBatch}) {
      Notes notes(n_chunks);
      notes.most = most;
      constexpr std::int64_t kArrivals = 40;
      for (std::int64_t i = 0; i < kArrivals; ++i) {
        CHECK_EQ(notes.ticket(), i);
      }
      std::vector<std::thread> threads;
      std::atomic<int> failed{0};
      for (std::int64_t i = kArrivals; i-- > 0;) {
        threads.emplace_back([&notes, &failed, i] { failed += notes.submit(i, i) == FB_OK ? 0 : 1; });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      CHECK_EQ(failed.load(), 0);
      CHECK(notes.versions == up_to(kArrivals));
      CHECK(notes.largest <= most);
      notes.each_chunk_has(kArrivals);
    }
  }
}

TEST(ticket_queue_settles_every_arrival_once) {
  Notes notes(25);
  constexpr std::int64_t kThreads = 4, kEach = 200;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (std::int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&notes, &failed, t] {
      for (std::int64_t i = 0; i < kEach; ++i) {
        const std::int64_t ticket = i % 3 == 0 ? notes.ticket() : FB_NO_TICKET;
        failed += notes.submit(t * kEach + i, ticket) == FB_OK ? 0 : 1;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const auto lock = notes.queue.lock();  // between two batches
    CHECK(!notes.running);
  }
  for (int i = 0; i < 100; ++i) {
    const auto lock = notes.queue.lock_without(notes.running);
    CHECK(!notes.running);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(failed.load(), 0);
  notes.each_chunk_has(kThreads * kEach);
  std::sort(notes.versions.begin(), notes.versions.end());
  CHECK(notes.versions == up_to(kThreads * kEach));
}

TEST(ticket_queue_refuses_tickets_that_are_not_there) {
  Notes notes;
  CHECK_EQ(notes.submit(0, 0), FB_ERR_TICKET);
  const std::int64_t first = notes.ticket(), second = notes.ticket();
  CHECK_EQ(notes.submit(0, second + 1), FB_ERR_TICKET);
  CHECK_EQ(notes.submit(0, -5), FB_ERR_TICKET);
  CHECK_EQ(notes.submit(7, first), FB_OK);
  CHECK_EQ(notes.submit(7, first), FB_ERR_TICKET);
  CHECK_EQ(notes.queue.cancel_ticket(first), FB_ERR_TICKET);
  CHECK_EQ(notes.queue.cancel_ticket(second), FB_OK);
  CHECK_EQ(notes.queue.cancel_ticket(second), FB_ERR_TICKET);
  CHECK_EQ(notes.submit(8, second), FB_ERR_TICKET);
  CHECK_EQ(notes.submit(9), FB_OK);
  CHECK(notes.versions == std::vector<std::int64_t>({7, 9}));
}

TEST(ticket_queue_goes_on_when_a_ticket_is_cancelled) {
  Notes notes;
  const std::int64_t gone = notes.ticket(), last = notes.ticket();
  std::thread waiter([&] { CHECK_EQ(notes.submit(5, last), FB_OK); });
  CHECK_EQ(notes.queue.cancel_ticket(gone), FB_OK);
  waiter.join();
  CHECK(notes.versions == std::vector<std::int64_t>({5}));
}

TEST(ticket_queue_close_ends_all_waiting) {
  Notes notes;
  notes.ticket();  // never used
  const std::int64_t second = notes.ticket();
  std::thread with_ticket([&] { CHECK_EQ(notes.submit(1, second), FB_ERR_CLOSED); });
  std::thread without([&] { CHECK_EQ(notes.submit(2), FB_ERR_CLOSED); });
  notes.queue.close();
  with_ticket.join();
  without.join();
  std::int64_t ticket = -1;
  CHECK_EQ(notes.queue.take_ticket(&ticket), FB_ERR_CLOSED);
  CHECK_EQ(notes.submit(3), FB_ERR_CLOSED);
  CHECK(notes.versions.empty());
  CHECK(notes.queue.closed());
}

TEST(ticket_queue_survives_what_settling_throws) {
  Notes notes;
  notes.throws_at = 2;
  for (std::int64_t i = 0; i < 5; ++i) {
    notes.ticket();
  }
  std::vector<std::thread> threads;
  std::vector<fb_status> status(5);
  for (std::int64_t i = 5; i-- > 0;) {
    threads.emplace_back([&notes, &status, i] { status[static_cast<std::size_t>(i)] = notes.submit(i, i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // Arrival 2 fails where it is the first of its batch, and is settled where it is in the batch of another.
  const bool alone = status[2] == FB_ERR_MEMORY;
  CHECK(alone || status[2] == FB_OK);
  CHECK(notes.versions ==
        (alone ? std::vector<std::int64_t>({0, 1, 3, 4}) : std::vector<std::int64_t>({0, 1, 2, 3, 4})));
  CHECK_EQ(notes.submit(2), FB_ERR_MEMORY);
  CHECK_EQ(notes.submit(6), FB_OK);
}

TEST(ticket_queue_keeps_the_ticket_of_a_short_table) {
  Notes notes;
  notes.short_at = 4;
  const std::int64_t ticket = notes.ticket();
  CHECK_EQ(notes.submit(4, ticket), FB_ERR_SHORT_TABLE);
  CHECK_EQ(notes.submit(4, ticket), FB_OK);
  CHECK(notes.versions == std::vector<std::int64_t>({4}));
}

TEST(ticket_queue_uses_the_executor_and_reports_its_failure) {
  Notes notes(30);
  int calls = 0;
  fb_executor host = FB_EXECUTOR_INIT;
  host.context = &calls;
  host.run = [](void* context, std::int64_t n, fb_work work, void* argument) -> std::int32_t {
    const int call = (*static_cast<int*>(context))++;
    for (std::int64_t i = 0; call == 0 && i < n; ++i) {
      work(argument, i);
    }
    return 0;
  };
  notes.queue.set_executor(&host);
  CHECK_EQ(notes.submit(0), FB_OK);
  CHECK_EQ(notes.submit(1), FB_ERR_HOST);
  CHECK_EQ(calls, 2);
  notes.queue.set_executor(nullptr);
  CHECK_EQ(notes.submit(2), FB_OK);
  CHECK(notes.versions == std::vector<std::int64_t>({0, 2}));
}
