#include "schedule/resolver.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <type_traits>

#include "schedule/event_queue.hpp"
#include "schedule/event_list.hpp"
#include "kernels/dispatch.hpp"
#include "memory/huge_pages.hpp"

// The counters of the loop live in registers only if everything that changes them is inlined.
#define FB_INLINED __attribute__((always_inline))

namespace fedbuff {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kBusy = std::uint32_t{1} << 31;
constexpr std::uint32_t kAttempts = 64;
constexpr std::int64_t kBareRows = 1024;  // they stay in the cache
constexpr std::int64_t kEventsPerCall = std::int64_t{1} << 17;
constexpr std::uint32_t kUnknown = 0xFFFFFFFFu;
constexpr std::uint64_t kNoBlock = std::uint64_t{1} << 63;
constexpr std::uint64_t kEnd = 0;
constexpr std::uint64_t kStart = 1;
constexpr std::uint64_t kRetry = 2;
constexpr std::uint32_t kNoSlot =
    0;  // the requests of rounds, of the open loop and of the line; tasks have slots from 1

enum class SlotState : std::uint8_t { Free, Waiting, Running };

struct Slot {
  double start = 0.0;  // while it waits: the duration to come
  std::int64_t version = 0;
  std::uint32_t client = 0;
  std::uint32_t task = 0;
  TaskStatus status = TaskStatus::Used;
  SlotState state = SlotState::Free;
  bool endless = false;  // the task never ends
};

struct FetchClient {
  const LargeVector<std::uint32_t>* clients;
  void operator()(const Slot& slot) const { __builtin_prefetch(clients->data() + slot.client); }
};

std::uint64_t bits_of(double x) { return portable::detail::bits_of(x); }

// Windows of availability, by binary search; the cycles of a period are products, so every asker meets the same bounds.
struct Windows {
  WindowPolicy policy;
  const std::int64_t* offsets;
  const double* begin;
  const double* end;
  const double* periods;  // or null

  struct At {
    std::int64_t window;  // the client's first one that ends after the time
    double cycle;
  };

  double period_of(std::uint32_t client) const { return periods != nullptr ? periods[client] : 0.0; }

  // When this window of this cycle ends. The end of a period is the begin of the next one, to the bit.
  double end_of(double period, std::int64_t window, double cycle) const {
    return end[window] == period ? (cycle + 1.0) * period : cycle * period + end[window];
  }

  At at(std::uint32_t client, double time) const {
    double cycle = 0.0;
    const double period = period_of(client);
    if (period > 0.0) {
      cycle = std::floor(time / period);
      if (cycle * period > time) {
        cycle -= 1.0;
      } else if ((cycle + 1.0) * period <= time) {
        cycle += 1.0;
      }
    }
    std::int64_t low = offsets[client];
    std::int64_t high = offsets[client + 1];
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (end_of(period, middle, cycle) > time) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return {low, cycle};
  }

  // The earliest time from `time` on when the client is available; infinite where there is none.
  double next_open(std::uint32_t client, double time) const {
    if (time == kInfinity) {
      return time;
    }
    const At found = at(client, time);
    const double period = period_of(client);
    if (found.window < offsets[client + 1]) {
      return std::max(time, found.cycle * period + begin[found.window]);
    }
    if (periods != nullptr && offsets[client] < offsets[client + 1]) {
      return std::max(time, (found.cycle + 1.0) * period + begin[offsets[client]]);
    }
    return kInfinity;
  }

  bool available(std::uint32_t client, double time) const { return next_open(client, time) <= time; }

  // When the window that the client is in at `time` closes; windows that touch across the period are one.
  double close(std::uint32_t client, double time) const {
    const std::int64_t first = offsets[client];
    const std::int64_t last = offsets[client + 1] - 1;
    const At found = at(client, time);
    if (found.window > last) {
      return kInfinity;  // time is too large for its doubles to tell the windows of a period apart
    }
    const double period = period_of(client);
    if (found.window == last && period > 0.0 && end[last] == period && begin[first] == 0.0) {
      return first == last ? kInfinity : end_of(period, first, found.cycle + 1.0);
    }
    return end_of(period, found.window, found.cycle);
  }

  // When work of this duration, begun inside a window, is done if it stops outside the windows: whole cycles at once,
  // by an exact remainder.
  double work_until(std::uint32_t client, double start, double duration) const {
    const double first_close = close(client, start);
    if (start + duration <= first_close) {
      return start + duration;
    }
    double left = duration - (first_close - start);
    if (left <= 0.0) {
      return first_close;
    }
    const std::int64_t first = offsets[client];
    const std::int64_t after = offsets[client + 1];
    const double period = period_of(client);
    auto [window, cycle] = at(client, first_close);
    for (bool in_last_cycle = false;; in_last_cycle = true) {
      for (std::int64_t w = window; w < after; ++w) {
        const double length = end[w] - begin[w];
        if (left <= length || (in_last_cycle && w == after - 1)) {
          const double done = (cycle * period + begin[w]) + left;
          return std::max(first_close, std::min(done, end_of(period, w, cycle)));
        }
        left -= length;
      }
      if (period == 0.0) {
        return kInfinity;
      }
      double per_cycle = 0.0;
      for (std::int64_t w = first; w < after; ++w) {
        per_cycle += end[w] - begin[w];
      }
      double rest = std::fmod(left, per_cycle);
      if (rest == 0.0) {
        rest = per_cycle;
      }
      cycle += 1.0 + std::rint((left - rest) / per_cycle);
      left = rest;
      window = first;
    }
  }
};

// The first of base + k max_wait, k = 1, 2, ..., that is not before `now`; after it where that of now has passed. Where
// max_wait is too small to be added to `now`, every time is a tick.
double next_tick(double base, double max_wait, double now, bool passed) {
  if (now + max_wait == now) {
    return now;
  }
  double k = std::max(1.0, std::floor((now - base) / max_wait) - 1.0);
  while (base + k * max_wait < now || (passed && base + k * max_wait == now)) {
    k += 1.0;
  }
  return base + k * max_wait;
}

// A set of clients with the k-th member by id in O(log n): bits, and counts of two levels above them.
class ClientSet {
 public:
  void resize(std::int64_t n) {
    words_.assign(static_cast<std::size_t>((n + 63) / 64), 0);
    low_.assign(static_cast<std::size_t>((n + 4095) / 4096), 0);
    high_.assign(static_cast<std::size_t>((n + 262143) / 262144), 0);
  }
  std::int64_t count() const { return count_; }
  bool has(std::uint32_t c) const { return (words_[c >> 6] >> (c & 63) & 1) != 0; }
  void set(std::uint32_t c, bool member) {
    if (member != has(c)) {
      const std::int32_t change = member ? 1 : -1;
      words_[c >> 6] ^= std::uint64_t{1} << (c & 63);
      low_[c >> 12] += change;
      high_[c >> 18] += change;
      count_ += change;
    }
  }
  std::uint32_t member(std::int64_t rank) const {
    std::size_t i = 0;
    for (; rank >= high_[i]; ++i) {
      rank -= high_[i];
    }
    for (i <<= 6; rank >= low_[i]; ++i) {
      rank -= low_[i];
    }
    for (i <<= 6;; ++i) {
      const int here = __builtin_popcountll(words_[i]);
      if (rank < here) {
        break;
      }
      rank -= here;
    }
    std::uint64_t word = words_[i];
    for (; rank > 0; --rank) {
      word &= word - 1;
    }
    return static_cast<std::uint32_t>(i << 6) + static_cast<std::uint32_t>(__builtin_ctzll(word));
  }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<std::int32_t> low_;
  std::vector<std::int32_t> high_;
  std::int64_t count_ = 0;
};

// The two queues, which hold the slots.
struct Calendar : EventQueue<Slot, FetchClient> {
  Calendar(const ScheduleKernels& kernels, const LargeVector<std::uint32_t>& clients)
      : EventQueue(kernels, FetchClient{&clients}) {}
};
struct List : EventList<Slot> {
  List(const ScheduleKernels& kernels, const LargeVector<std::uint32_t>&) : EventList(kernels) {}
};

}  // namespace

class EventLoop {
 public:
  virtual ~EventLoop() = default;
  virtual ChunkEnd run(const ScheduleColumns& out) = 0;
  virtual std::vector<TaskInFlight> in_flight() const = 0;
  double time() const { return counters_.now; }
  std::int64_t started() const { return counters_.started; }

 protected:
  // Counters of a run; `run` works on a copy, which stays in registers.
  struct Counters {
    double now = 0.0;
    std::int64_t version = 0;
    std::int64_t fill = 0;
    std::int64_t started = 0;
    std::int64_t total_rows = 0;
    std::int64_t quiet = 0;
    std::uint64_t created = 0;
    std::uint64_t starts = 0;
    double last_step = 0.0;
    double last_start = -1.0;    // when a task or a request started last
    double trigger = kInfinity;  // when the buffer, which is not empty, makes a step although it is not full
  };
  Counters counters_;
};

namespace {

template <class Queue>
class LoopOver final : public EventLoop {
 public:
  explicit LoopOver(const SchedulePlan& plan);

  ChunkEnd run(const ScheduleColumns& out) override {
    return reason_ == StopReason::Full ? (this->*run_)(out) : ChunkEnd{0, 0, reason_};
  }
  std::vector<TaskInFlight> in_flight() const override;

 private:
  SchedulePlan plan_;
  std::uint32_t asked_first_ = 0;  // slots of a closed loop that have asked for their first client
  Windows windows_;
  ScheduleKernels kernels_;  // those in force at the start
  Queue queue_;              // holds the slots
  EventHeap boundaries_;     // the next opening or closing of clients' windows, by client: of all that may be drawn
  LargeVector<std::uint32_t> clients_;  // tasks started, and kBusy
  std::vector<std::uint8_t> open_;      // inside a window; rounds take whomever, and their tasks wait
  std::vector<std::uint8_t> tracked_;   // has its boundary in the heap, and open_ is true until then; or is empty
  ClientSet eligible_;
  std::vector<std::uint32_t> free_slots_;
  std::deque<std::uint32_t> line_;
  bool overlap_;
  bool bare_;  // no task can wait, time out or be too stale
  double retry_time_ = kInfinity;
  std::vector<std::int64_t> entered_;    // distinct clients: the last buffer of each
  std::vector<std::uint32_t> deferred_;  // ... and the slots whose arrivals wait for the next one
  std::int64_t spent_ = 0;
  std::int64_t live_ = 0;

  StopReason reason_ = StopReason::Full;

  using Run = ChunkEnd (LoopOver::*)(const ScheduleColumns&);
  template <Mode kMode, bool kRecorded, bool kPlain>
  ChunkEnd run_loop(const ScheduleColumns& out);
  template <Mode kMode>
  Run choose(bool plain) const;
  Run run_ = nullptr;

  bool tasks_left(std::uint32_t client, std::uint32_t done) const {
    if (!plan_.recorded) {
      return true;
    }
    const std::int64_t rows = plan_.row_offsets[client + 1] - plan_.row_offsets[client];
    return done < rows || (plan_.wrap && rows > 0);
  }
  std::int64_t recorded_row(std::uint32_t client, std::uint32_t task) const {
    const std::int64_t first = plan_.row_offsets[client];
    const std::int64_t rows = plan_.row_offsets[client + 1] - first;
    return first + (task < rows ? task : task % rows);
  }

  template <bool kPlain>
  bool is_eligible(std::uint32_t client) const {
    if constexpr (kPlain) {
      return (clients_[client] & kBusy) == 0;
    } else {
      return eligible_.has(client);
    }
  }
  template <bool kPlain>
  void update(std::uint32_t client) {
    if constexpr (!kPlain) {
      const std::uint32_t state = clients_[client];
      eligible_.set(client,
                    open_[client] != 0 && (overlap_ || (state & kBusy) == 0) && tasks_left(client, state & ~kBusy));
    }
  }
  template <bool kPlain>
  void set_idle(std::uint32_t client, double now) {
    clients_[client] &= ~kBusy;
    if (!tracked_.empty() && tracked_[client] == 0) {
      look_at_windows(client, now);
    }
    update<kPlain>(client);
  }
  bool may_be_drawn(std::uint32_t client) const {
    return (overlap_ || (clients_[client] & kBusy) == 0) && tasks_left(client, clients_[client] & ~kBusy);
  }

  // Lookahead over starts: whom the first attempts give, and what the next task of that client would cost.
  template <bool kRecorded>
  void look_ahead(std::uint64_t start);
  template <bool kPlain>
  std::int64_t draw_client(std::uint64_t start);
  std::uint64_t selection_word(std::uint64_t start, std::uint32_t attempt) const {
    const PhiloxBlock w =
        philox4x32(plan_.seed, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start >> 32), attempt,
                   stream_word(Stream::ClientSelection, 0));
    return std::uint64_t{w.word[0]} << 32 | w.word[1];
  }
  std::uint64_t ahead_begin_ = kNoBlock;  // first start of the block at hand
  std::uint32_t ahead_client_[kDrawBatch];
  std::uint32_t ahead_second_[kDrawBatch];  // whom attempt 1 gives, where the first was busy when we looked
  std::uint32_t ahead_guess_[kDrawBatch];   // whose delays were drawn: the first or the second,
  std::uint32_t ahead_task_[kDrawBatch];    // and for which task
  double ahead_wait_[kDrawBatch];
  double ahead_duration_[kDrawBatch];
  std::uint32_t next_client_[kDrawBatch];  // of the block after it

  double open_start(double previous, std::uint64_t start) const;
  void look_at_windows(std::uint32_t client, double time);
  void cross_boundaries(double time);
  double next_opening();
  void find_end(std::uint32_t client, double start, double duration, bool ok, double& end, TaskStatus& status) const;
};

template <class Queue>
LoopOver<Queue>::LoopOver(const SchedulePlan& plan)
    : plan_(plan),
      windows_{plan.window_policy, plan.window_offsets, plan.window_begin, plan.window_end, plan.period},
      kernels_(kernels().schedule),
      queue_(kernels_, clients_),
      overlap_(plan.mode == Mode::OpenLoop && plan.if_busy == IfBusy::Overlap),
      bare_(plan.timeout == kInfinity && plan.max_staleness < 0 && plan.stall_limit > 0 &&
            plan.model.component[kWait].kind == DistributionKind::Constant && plan.model.component[kWait].p[0] == 0.0) {
  const std::size_t n = static_cast<std::size_t>(plan.n_clients);
  const bool drawn = plan.mode != Mode::SlotIsClient;
  // Plain: an idle client is eligible, and so many are idle that drawing again finds one.
  const bool plain = plan.window_policy == WindowPolicy::None && plan.max_wait == kInfinity && !plan.distinct_clients &&
                     (!plan.recorded || plan.wrap) && !overlap_ &&
                     (!drawn || (plan.mode == Mode::Pool && plan.n_slots <= plan.n_clients / 2));
  if (plan.n_slots >= static_cast<std::int64_t>(Event::kMaxSlots) - 1) {
    throw std::length_error("more than 67,108,862 tasks in flight: give a smaller concurrency");
  }
  clients_.assign(n, 0);
  entered_.assign(plan.distinct_clients ? n : 0, -1);
  queue_.add_slots(static_cast<std::size_t>(plan.n_slots));
  for (std::uint32_t c = 0; c < n; ++c) {
    spent_ += tasks_left(c, 0) ? 0 : 1;
  }
  bool all_have_rows = spent_ == 0;
  if (drawn && !(plain && all_have_rows)) {
    open_.assign(n, 1);
    eligible_.resize(plan.n_clients);
    if (plan.window_policy != WindowPolicy::None && plan.mode != Mode::Rounds) {
      tracked_.assign(n, 0);
    }
    for (std::uint32_t c = 0; c < n; ++c) {
      if (!tracked_.empty()) {
        look_at_windows(c, 0.0);
      }
      eligible_.set(c, open_[c] != 0 && tasks_left(c, 0));
    }
  }
  if (plan.mode == Mode::SlotIsClient || plan.mode == Mode::Pool) {
    queue_.gather();
    counters_.created = static_cast<std::uint64_t>(plan.n_slots);  // the first requests, which never enter the queue
  } else {
    const double first = plan.mode == Mode::OpenLoop ? open_start(0.0, 0) : 0.0;
    queue_.put(Event::make(first, kStart, counters_.created++, kNoSlot));
  }
  const bool fast = plain && all_have_rows;
  switch (plan.mode) {
    case Mode::SlotIsClient: run_ = choose<Mode::SlotIsClient>(fast); break;
    case Mode::Pool: run_ = choose<Mode::Pool>(fast); break;
    case Mode::OpenLoop:
      if constexpr (std::is_same_v<Queue, Calendar>) {
        run_ = choose<Mode::OpenLoop>(fast);
      }
      break;
    case Mode::Rounds: run_ = choose<Mode::Rounds>(fast); break;
  }
}

template <class Queue>
template <Mode kMode>
typename LoopOver<Queue>::Run LoopOver<Queue>::choose(bool plain) const {
  if constexpr (kMode == Mode::SlotIsClient || kMode == Mode::Pool) {
    if (plain) {
      return plan_.recorded ? &LoopOver::run_loop<kMode, true, true> : &LoopOver::run_loop<kMode, false, true>;
    }
  }
  return plan_.recorded ? &LoopOver::run_loop<kMode, true, false> : &LoopOver::run_loop<kMode, false, false>;
}

template <class Queue>
template <bool kRecorded>
void LoopOver<Queue>::look_ahead(std::uint64_t start) {
  const std::uint64_t n = static_cast<std::uint64_t>(plan_.n_clients);
  std::uint64_t word[kDrawBatch];
  if (ahead_begin_ == kNoBlock) {
    kernels_.draw_selection(plan_.seed, start, 0, word);
    for (int i = 0; i < kDrawBatch; ++i) {
      next_client_[i] = static_cast<std::uint32_t>(multiply_high(word[i], n));
    }
  }
  ahead_begin_ = start;
  for (int i = 0; i < kDrawBatch; ++i) {
    ahead_client_[i] = ahead_guess_[i] = next_client_[i];
    ahead_second_[i] = kUnknown;
    if ((clients_[next_client_[i]] & kBusy) != 0) {
      const std::uint64_t second = selection_word(start + static_cast<std::uint64_t>(i), 1);
      ahead_second_[i] = ahead_guess_[i] = static_cast<std::uint32_t>(multiply_high(second, n));
    }
    ahead_task_[i] = clients_[ahead_guess_[i]] & ~kBusy;
  }
  if constexpr (!kRecorded) {
    kernels_.draw_tasks(plan_.model, ahead_guess_, ahead_task_, ahead_wait_, ahead_duration_);
  }
  kernels_.draw_selection(plan_.seed, start + kDrawBatch, 0, word);
  for (int i = 0; i < kDrawBatch; ++i) {
    next_client_[i] = static_cast<std::uint32_t>(multiply_high(word[i], n));
    __builtin_prefetch(&clients_[next_client_[i]]);
    if constexpr (kRecorded) {
      __builtin_prefetch(&plan_.row_offsets[next_client_[i]]);
    }
  }
}

// The client of a start, uniform over the eligible ones; -1 where there is none.
template <class Queue>
template <bool kPlain>
std::int64_t LoopOver<Queue>::draw_client(std::uint64_t start) {
  const std::uint32_t first = ahead_client_[start % kDrawBatch];
  if (is_eligible<kPlain>(first)) {
    return first;
  }
  if constexpr (!kPlain) {
    if (eligible_.count() == 0 || (plan_.mode == Mode::OpenLoop && plan_.if_busy == IfBusy::Skip)) {
      return -1;
    }
  }
  const std::uint64_t n = static_cast<std::uint64_t>(plan_.n_clients);
  std::uint32_t attempt = 1;
  const std::uint32_t second = ahead_second_[start % kDrawBatch];
  if (second != kUnknown) {
    if (is_eligible<kPlain>(second)) {
      return second;
    }
    attempt = 2;
  }
  for (; attempt < kAttempts; ++attempt) {
    const auto client = static_cast<std::uint32_t>(multiply_high(selection_word(start, attempt), n));
    if (is_eligible<kPlain>(client)) {
      return client;
    }
  }
  const std::uint64_t word = selection_word(start, kAttempts);
  if constexpr (kPlain) {
    std::int64_t count = 0;
    for (const std::uint32_t state : clients_) {
      count += (state & kBusy) == 0 ? 1 : 0;
    }
    auto rank = static_cast<std::int64_t>(multiply_high(word, static_cast<std::uint64_t>(count)));
    std::size_t client = 0;
    for (;; ++client) {
      if ((clients_[client] & kBusy) == 0 && rank-- == 0) {
        return static_cast<std::int64_t>(client);
      }
    }
  } else {
    const auto count = static_cast<std::uint64_t>(eligible_.count());
    return eligible_.member(static_cast<std::int64_t>(multiply_high(word, count)));
  }
}

// When the open loop makes its start of this number.
template <class Queue>
double LoopOver<Queue>::open_start(double previous, std::uint64_t start) const {
  if (!plan_.poisson) {
    return static_cast<double>(start) / plan_.rate;
  }
  const PhiloxBlock w = philox4x32(plan_.seed, static_cast<std::uint32_t>(start),
                                   static_cast<std::uint32_t>(start >> 32), kOpenStart, stream_word(Stream::Delays, 0));
  return previous + detail::unit_exponential(w.word[0], w.word[1]) / plan_.rate;
}

// Whether the client is available, and when that changes.
template <class Queue>
void LoopOver<Queue>::look_at_windows(std::uint32_t client, double time) {
  const double opening = windows_.next_open(client, time);
  open_[client] = opening <= time ? 1 : 0;
  const double boundary = open_[client] != 0 ? windows_.close(client, time) : opening;
  tracked_[client] = 1;
  if (boundary < kInfinity) {
    boundaries_.put(Event::at(boundary, client));
  } else {
    boundaries_.close();
  }
}

// Brings the windows of the clients that may be drawn up to `time`, however many have passed; the others are looked at
// when they are idle again.
template <class Queue>
void LoopOver<Queue>::cross_boundaries(double time) {
  while (!boundaries_.empty() && boundaries_.top().time() <= time) {
    const auto client = static_cast<std::uint32_t>(boundaries_.top().order);
    boundaries_.take();
    if (may_be_drawn(client)) {
      look_at_windows(client, time);
      update<false>(client);
    } else {
      tracked_[client] = 0;
      boundaries_.close();
    }
  }
}

// When the next idle client with tasks left becomes available, where none is.
template <class Queue>
double LoopOver<Queue>::next_opening() {
  while (!boundaries_.empty()) {
    const auto client = static_cast<std::uint32_t>(boundaries_.top().order);
    if (may_be_drawn(client)) {
      return boundaries_.top().time();
    }
    tracked_[client] = 0;
    boundaries_.pop();
  }
  return kInfinity;
}

// When a task that starts now ends, and how: Used stands for an arrival.
template <class Queue>
void LoopOver<Queue>::find_end(std::uint32_t client, double start, double duration, bool ok, double& end,
                               TaskStatus& status) const {
  status = ok ? TaskStatus::Used : TaskStatus::Failed;
  end = start + duration;
  if (windows_.policy == WindowPolicy::Pause) {
    end = windows_.work_until(client, start, duration);
  } else if (windows_.policy == WindowPolicy::Abort) {
    const double close = windows_.close(client, start);
    if (end > close) {
      end = close;
      status = TaskStatus::Failed;
    }
  }
}

template <class Queue>
template <Mode kMode, bool kRecorded, bool kPlain>
ChunkEnd LoopOver<Queue>::run_loop(const ScheduleColumns& out) {
  constexpr bool kClosed = kMode == Mode::SlotIsClient || kMode == Mode::Pool;
  constexpr bool kDrawn = kMode != Mode::SlotIsClient;
  const std::int64_t margin = kMode == Mode::Rounds ? plan_.n_slots : 1;
  const std::uint64_t horizon = bits_of(std::min(plan_.max_time, std::numeric_limits<double>::max()));
  const std::int64_t max_staleness = plan_.max_staleness >= 0 ? plan_.max_staleness : INT64_MAX;
  const std::int64_t last_row = plan_.arrivals >= 0 ? plan_.arrivals : INT64_MAX;
  const std::int64_t buffer_size = plan_.buffer_size;
  const double timeout = plan_.timeout;
  const ScheduleColumns o = out;
  Counters s = counters_;
  std::int64_t rows = 0;
  std::int64_t steps = 0;
  StopReason reason = StopReason::Full;

  const auto write_row = [&](const Slot& slot, std::int64_t step, std::int64_t staleness, TaskStatus status)
                             FB_INLINED {
                               o.client[rows] = static_cast<std::int32_t>(slot.client);
                               o.task[rows] = slot.task;
                               o.version[rows] = slot.version;
                               o.step[rows] = step;
                               o.staleness[rows] = staleness;
                               o.start_time[rows] = slot.start;
                               o.arrive_time[rows] = s.now;
                               o.status[rows] = static_cast<std::uint8_t>(status);
                               ++rows;
                               ++s.total_rows;
                             };
  const auto make_step = [&] {
    o.step_time[steps] = s.now;
    o.started[steps] = s.started;
    o.step_rows[steps] = s.total_rows;
    ++steps;
    ++s.version;
    s.fill = 0;
    s.started = 0;
    s.last_step = s.now;
    s.trigger = kInfinity;
    if constexpr (!kPlain) {
      for (const std::uint32_t waiting : deferred_) {
        queue_.put(Event::make(s.now, kEnd, s.created++, waiting));
      }
      deferred_.clear();
    }
    return s.version == plan_.server_steps;
  };
  // The task in `slot` starts now. Bare: it never fails, waits or times out.
  const auto begin = [&](auto bare, std::uint32_t slot_index, double duration) FB_INLINED {
    Slot& slot = queue_.payload(slot_index);
    bool ok = true;
    if constexpr (kRecorded) {
      ok = plan_.row_ok[recorded_row(slot.client, slot.task)] != 0;
    }
    double end;
    if constexpr (kPlain) {
      slot.status = ok ? TaskStatus::Used : TaskStatus::Failed;
      end = s.now + duration;
    } else {
      find_end(slot.client, s.now, duration, ok, end, slot.status);
    }
    if constexpr (!decltype(bare)::value) {
      if (end > s.now + timeout) {
        end = s.now + timeout;
        slot.status = TaskStatus::TimedOut;
      }
    }
    slot.state = SlotState::Running;
    slot.endless = end == kInfinity;
    slot.version = s.version;
    slot.start = s.now;
    ++s.started;
    queue_.put(Event::make(end, kEnd, s.created++, slot_index));
  };
  // The client takes `slot` for its next task.
  const auto assign = [&](auto bare, std::uint32_t client, std::uint32_t slot_index, std::uint64_t start) FB_INLINED {
    const std::uint32_t task = clients_[client] & ~kBusy;
    clients_[client] = (task + 1) | kBusy;
    if constexpr (!kPlain) {
      if (kRecorded && !tasks_left(client, task + 1)) {
        ++spent_;
      }
      ++live_;
      if constexpr (kDrawn) {
        update<kPlain>(client);
      }
    }
    queue_.payload(slot_index).client = client;
    queue_.payload(slot_index).task = task;
    double wait;
    double duration;
    if constexpr (kRecorded) {
      const std::int64_t row = recorded_row(client, task);
      wait = plan_.row_wait[row];
      duration = plan_.row_duration[row];
    } else {
      const std::size_t ahead = start % kDrawBatch;
      if (kDrawn && ahead_guess_[ahead] == client && ahead_task_[ahead] == task) {
        wait = ahead_wait_[ahead];
        duration = ahead_duration_[ahead];
      } else {
        wait = draw_wait(plan_.model, client, task);
        duration = draw_duration(plan_.model, client, task);
      }
    }
    if constexpr (decltype(bare)::value) {
      begin(bare, slot_index, duration);
      return;
    }
    double ready = s.now + wait;
    if constexpr (!kPlain) {
      if (windows_.policy != WindowPolicy::None) {
        ready = windows_.next_open(client, ready);
      }
    }
    if (ready > s.now) {
      queue_.payload(slot_index).state = SlotState::Waiting;
      queue_.payload(slot_index).endless = ready == kInfinity;
      queue_.payload(slot_index).start = duration;
      queue_.put(Event::make(ready, kStart, s.created++, slot_index));
    } else {
      begin(bare, slot_index, duration);
    }
  };
  // Draws the client of start number s.starts; -1 where nobody is eligible.
  const auto draw = [&]() FB_INLINED -> std::int64_t {
    if (s.starts - ahead_begin_ >= kDrawBatch) {
      look_ahead<kRecorded>(s.starts / kDrawBatch * kDrawBatch);
    }
    return draw_client<kPlain>(s.starts);
  };
  const auto ask = [&](auto bare, std::uint32_t slot_index) FB_INLINED {
    if constexpr (kMode == Mode::SlotIsClient) {
      if (kPlain || tasks_left(slot_index - 1, clients_[slot_index - 1] & ~kBusy)) {
        assign(bare, slot_index - 1, slot_index, 0);
      }
    } else if constexpr (kPlain) {
      const auto client = static_cast<std::uint32_t>(draw());
      assign(bare, client, slot_index, s.starts++);
    } else {
      cross_boundaries(s.now);
      if (kMode == Mode::Pool) {
        if (slot_index != kNoSlot) {
          line_.push_back(slot_index);
        }
        while (!line_.empty()) {
          const std::int64_t client = draw();
          if (client < 0) {
            break;
          }
          const std::uint32_t first = line_.front();
          line_.pop_front();
          assign(bare, static_cast<std::uint32_t>(client), first, s.starts++);
        }
        if (!line_.empty()) {
          const double opening = next_opening();
          if (opening < retry_time_) {
            queue_.put(Event::make(opening, kRetry, s.created++, kNoSlot));
            retry_time_ = opening;
          }
        }
      } else if (kMode == Mode::Rounds) {
        for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(plan_.n_slots); ++i) {
          const std::int64_t client = draw();
          if (client < 0) {
            break;
          }
          assign(bare, static_cast<std::uint32_t>(client), i, s.starts++);
        }
      } else {
        const std::int64_t client = draw();
        if (client >= 0) {
          std::uint32_t slot = 0;
          if (!free_slots_.empty()) {
            slot = free_slots_.back();
            free_slots_.pop_back();
          } else {
            if (queue_.n_slots() >= Event::kMaxSlots) {
              throw std::length_error("more than 67,108,863 tasks in flight");
            }
            slot = static_cast<std::uint32_t>(queue_.n_slots());
            queue_.add_slots(1);
          }
          assign(bare, static_cast<std::uint32_t>(client), slot, s.starts);
        }
        ++s.starts;
        if (spent_ < plan_.n_clients) {
          queue_.put(Event::make(open_start(s.now, s.starts), kStart, s.created++, kNoSlot));
        }
      }
    }
  };

  // Arrivals that are used, each followed by the next task of its slot: as many as need no look at the limits. The
  // columns that follow from the others are filled afterwards.
  const auto run_bare = [&] {
    const auto arrivals_until = [&](std::int64_t more_steps) {
      std::int64_t arrivals;
      return __builtin_mul_overflow(more_steps, buffer_size, &arrivals) ? INT64_MAX : arrivals - s.fill;
    };
    const std::int64_t to_last_step =
        plan_.server_steps >= 0 ? arrivals_until(plan_.server_steps - s.version) - 1 : INT64_MAX;
    const std::int64_t end = rows + std::min({kBareRows, o.n_rows - rows, last_row - s.total_rows - 1,
                                              arrivals_until(o.n_steps - 1 - steps), to_last_step});
    const std::int64_t begin_row = rows;
    std::int64_t step = s.version;
    std::int64_t step_end = rows + buffer_size - s.fill;
    while (rows < end) {
      const Event top = queue_.top();
      if (top.time_bits > horizon || top.kind() != static_cast<int>(kEnd)) {
        break;
      }
      const std::uint32_t slot_index = queue_.top_slot();
      queue_.take();
      s.now = top.time();
      const Slot& slot = queue_.payload(slot_index);
      clients_[slot.client] &= ~kBusy;
      o.client[rows] = static_cast<std::int32_t>(slot.client);
      o.task[rows] = slot.task;
      o.version[rows] = slot.version;
      o.start_time[rows] = slot.start;
      o.arrive_time[rows] = s.now;
      ++rows;
      ++s.total_rows;
      if (++s.fill == buffer_size) {
        make_step();
      }
      if (queue_.was_alone(top)) {
        ask(std::true_type(), slot_index);
      } else {
        queue_.payload(slot_index).state = SlotState::Free;
        queue_.put(Event::make(s.now, kStart, s.created++, slot_index));
      }
    }
    for (std::int64_t i = begin_row; i < rows; ++step, step_end += buffer_size) {
      for (const std::int64_t until = std::min(rows, step_end); i < until; ++i) {
        o.step[i] = step;
        o.staleness[i] = step - o.version[i];
        o.status[i] = static_cast<std::uint8_t>(TaskStatus::Used);
      }
    }
  };

  if (s.created + 4 * static_cast<std::uint64_t>(o.n_rows) + 4 * queue_.n_slots() >= Event::kMaxNumber) {
    throw std::length_error("more than 68,719,476,735 events in one schedule");
  }
  for (std::int64_t turn = 0;; ++turn) {
    if (rows + margin > o.n_rows || steps + 2 > o.n_steps || turn + rows > kEventsPerCall) {
      break;
    }
    if constexpr (kClosed) {
      // The first requests come before all others at time 0, and after what has already ended then.
      if (asked_first_ < static_cast<std::uint32_t>(plan_.n_slots)) {
        if (queue_.empty() || queue_.top().time_bits > 0 || queue_.top().kind() != static_cast<int>(kEnd)) {
          ask(std::false_type(), ++asked_first_);
          if (asked_first_ == static_cast<std::uint32_t>(plan_.n_slots)) {
            queue_.lay_out_again();
          }
          continue;
        }
      }
    }
    if constexpr (kClosed && kPlain && !kRecorded) {
      if (bare_ && s.quiet == 0 && asked_first_ == static_cast<std::uint32_t>(plan_.n_slots)) {
        run_bare();
        if (rows + margin > o.n_rows || steps + 2 > o.n_steps) {
          break;
        }
      }
    }
    const Event top = queue_.top();
    bool round_over = false;
    if constexpr (!kPlain) {
      const double time = queue_.empty() ? kInfinity : top.time();
      // The time trigger: after the arrivals and before the starts of its time.
      if (s.trigger < kInfinity && s.trigger <= plan_.max_time &&
          (s.trigger < time || (s.trigger == time && top.kind() != static_cast<int>(kEnd)))) {
        s.now = s.trigger;
        if (make_step()) {
          reason = StopReason::ServerSteps;
          break;
        }
        continue;
      }
      round_over = kMode == Mode::Rounds && live_ > 0 && time == kInfinity;
    }
    if (top.time_bits > horizon && !round_over) {
      reason = plan_.max_time < kInfinity ? StopReason::MaxTime : StopReason::Exhausted;
      break;
    }
    if (++s.quiet > plan_.stall_limit) {
      reason = StopReason::Stalled;
      break;
    }
    if (!round_over) {
      s.now = top.time();
      queue_.take();
    }

    if (round_over || top.kind() == static_cast<int>(kEnd)) {
      const std::uint32_t slot_index = top.slot();
      if (!round_over) {
        Slot& slot = queue_.payload(slot_index);
        const std::int64_t staleness = s.version - slot.version;
        TaskStatus status = slot.status;
        if (staleness > max_staleness && status == TaskStatus::Used) {
          status = TaskStatus::TooStale;
        }
        const bool used = status == TaskStatus::Used;
        if constexpr (!kPlain) {
          if (plan_.distinct_clients && used) {
            if (entered_[slot.client] == s.version) {
              deferred_.push_back(slot_index);
              continue;
            }
            entered_[slot.client] = s.version;
          }
        }
        if constexpr (kPlain) {
          clients_[slot.client] &= ~kBusy;
        } else {
          --live_;
          if constexpr (kDrawn) {
            set_idle<kPlain>(slot.client, s.now);
          } else {
            clients_[slot.client] &= ~kBusy;
          }
        }
        slot.state = SlotState::Free;
        write_row(slot, used ? s.version : -1, staleness, status);
        s.fill += used ? 1 : 0;
        s.quiet = used ? 0 : s.quiet;
        if constexpr (!kPlain) {
          if (used && s.fill == 1 && plan_.max_wait < kInfinity) {
            s.trigger = next_tick(s.last_step, plan_.max_wait, s.now, s.last_start == s.now);
          }
        }
      }
      bool stepped = s.fill == buffer_size;
      if constexpr (kMode == Mode::Rounds) {
        if (stepped || round_over || live_ == 0) {
          stepped = s.fill > 0;
          for (std::uint32_t i = 1; i < queue_.n_slots(); ++i) {
            Slot& other = queue_.payload(i);
            if (other.state != SlotState::Free) {
              if (other.state == SlotState::Waiting) {
                other.start = s.now;
                ++s.started;
              }
              other.version = s.version;
              other.state = SlotState::Free;
              if (!other.endless) {
                set_idle<kPlain>(other.client, s.now);
              }
              write_row(other, -1, 0, TaskStatus::Discarded);
            }
          }
          live_ = 0;
          queue_.clear();
          queue_.put(Event::make(s.now, kStart, s.created++, kNoSlot));
        }
      }
      if (stepped && make_step()) {
        reason = StopReason::ServerSteps;
        break;
      }
      if (s.total_rows >= last_row) {
        reason = StopReason::Arrivals;
        break;
      }
      if constexpr (kClosed) {
        // With nothing else at this time the slot's request can be served at once.
        const bool alone = queue_.was_alone(top) && asked_first_ == static_cast<std::uint32_t>(plan_.n_slots);
        if (kPlain && alone) {
          ask(std::false_type(), slot_index);
        } else {
          queue_.put(Event::make(s.now, kStart, s.created++, slot_index));
        }
      } else if constexpr (kMode == Mode::OpenLoop) {
        free_slots_.push_back(slot_index);
      }
      continue;
    }

    s.last_start = s.now;
    const std::uint32_t slot_index = top.slot();
    if (slot_index != kNoSlot && queue_.payload(slot_index).state == SlotState::Waiting) {
      begin(std::false_type(), slot_index, queue_.payload(slot_index).start);
    } else {
      if (top.kind() == static_cast<int>(kRetry)) {
        retry_time_ = kInfinity;
      }
      ask(std::false_type(), slot_index);
    }
  }
  counters_ = s;
  reason_ = reason;
  return {rows, steps, reason};
}

template <class Queue>
std::vector<TaskInFlight> LoopOver<Queue>::in_flight() const {
  std::vector<TaskInFlight> tasks;
  for (std::uint32_t i = 1; i < queue_.n_slots(); ++i) {
    const Slot& slot = queue_.payload(i);
    if (slot.state == SlotState::Running) {
      tasks.push_back({static_cast<std::int32_t>(slot.client), slot.task, slot.version, slot.start});
    }
  }
  return tasks;
}

std::unique_ptr<EventLoop> make_loop(const SchedulePlan& plan) {
  // The slots of the open loop grow without bound.
  if (plan.mode != Mode::OpenLoop && plan.n_slots <= kernels().schedule.most_listed_slots) {
    return std::make_unique<LoopOver<List>>(plan);
  }
  return std::make_unique<LoopOver<Calendar>>(plan);
}

}  // namespace

ScheduleResolver::ScheduleResolver(const SchedulePlan& plan)
    : loop_(make_loop(plan)), rows_needed_(plan.mode == Mode::Rounds ? std::max<std::int64_t>(plan.n_slots, 1) : 1) {}

ScheduleResolver::~ScheduleResolver() = default;

ChunkEnd ScheduleResolver::run(const ScheduleColumns& out) {
  if (out.n_rows < rows_needed_ || out.n_steps < 2) {
    throw std::invalid_argument("no room for one event's rows");
  }
  return loop_->run(out);
}

double ScheduleResolver::time() const { return loop_->time(); }

std::int64_t ScheduleResolver::started() const { return loop_->started(); }

std::vector<TaskInFlight> ScheduleResolver::in_flight() const { return loop_->in_flight(); }

}  // namespace fedbuff
