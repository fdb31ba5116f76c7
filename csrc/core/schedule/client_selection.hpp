// ClientSelection: which clients are busy, which may be drawn for a task, and the draws themselves.
//
// A start draws a client uniformly from the eligible ones: attempt k gives client floor(word_k n / 2^64) with word_k
// the Philox block of (start, k); the first eligible one of 64 is taken, else the eligible client whose rank is drawn.
// A client is eligible if it is idle, available and has tasks left. Two forms, with the same draws:
//   plain: an idle client is eligible, and at least half of the clients are idle. No set is kept.
//   else:  the eligible clients are a ClientSet. A heap holds when the windows of the clients that may be drawn open
//          or close; `cross_boundaries` brings the set up to the present.
// The first attempts and the delays of the next kDrawBatch starts are drawn ahead, in vector code; they are used where
// the client and its task number are still those that were guessed. Memory: 4 bytes per client if plain; else also the
// set, two bytes per client and one heap entry per client with windows.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dispatch.hpp"
#include "memory/huge_pages.hpp"
#include "schedule/availability_windows.hpp"
#include "schedule/client_set.hpp"
#include "schedule/event_queue.hpp"
#include "schedule/plan.hpp"

namespace fedbuff {

class ClientSelection {
 public:
  static constexpr std::uint32_t kBusy = std::uint32_t{1} << 31;

  // `plan` must outlive this object.
  explicit ClientSelection(const SchedulePlan& plan);

  bool is_plain() const { return is_plain_; }
  const AvailabilityWindows& windows() const { return windows_; }
  const LargeVector<std::uint32_t>& states() const { return states_; }  // tasks started | kBusy, by client
  bool all_spent() const { return n_spent_ >= plan_.n_clients; }        // no client has a task left

  bool tasks_left(std::uint32_t client, std::uint32_t started) const {
    if (!plan_.recorded) {
      return true;
    }
    const std::int64_t rows = plan_.row_offsets[client + 1] - plan_.row_offsets[client];
    return started < rows || (plan_.wrap && rows > 0);
  }
  bool tasks_left(std::uint32_t client) const { return tasks_left(client, states_[client] & ~kBusy); }

  // Marks the client as busy; returns the number of its next task.
  template <Mode kMode, bool kRecorded, bool kPlain>
  FB_ALWAYS_INLINE std::uint32_t take(std::uint32_t client) {
    const std::uint32_t task = states_[client] & ~kBusy;
    states_[client] = (task + 1) | kBusy;
    if constexpr (!kPlain) {
      if (kRecorded && !tasks_left(client, task + 1)) {
        ++n_spent_;
      }
      if constexpr (kMode != Mode::SlotIsClient) {
        update(client);
      }
    }
    return task;
  }

  // Marks the client as idle from `now` on.
  template <Mode kMode, bool kPlain>
  FB_ALWAYS_INLINE void release(std::uint32_t client, double now) {
    states_[client] &= ~kBusy;
    if constexpr (!kPlain && kMode != Mode::SlotIsClient) {
      if (!tracked_.empty() && tracked_[client] == 0) {
        read_windows(client, now);
      }
      update(client);
    }
  }

  // The client of this start, uniform over the eligible ones; -1 if there is none.
  template <bool kRecorded, bool kPlain>
  FB_ALWAYS_INLINE std::int64_t draw(std::uint64_t start) {
    if (start - ahead_begin_ >= kDrawBatch) {
      look_ahead<kRecorded>(start / kDrawBatch * kDrawBatch);
    }
    const std::uint32_t first = ahead_client_[start % kDrawBatch];
    return is_eligible<kPlain>(first) ? first : draw_again<kPlain>(start);
  }

  // Whether the delays of this task were drawn ahead for this start; if so, writes them.
  FB_ALWAYS_INLINE bool delays_ahead(std::uint64_t start, std::uint32_t client, std::uint32_t task, double& wait_out,
                                     double& duration_out) const {
    const std::size_t ahead = start % kDrawBatch;
    if (ahead_guess_[ahead] != client || ahead_task_[ahead] != task) {
      return false;
    }
    wait_out = ahead_wait_[ahead];
    duration_out = ahead_duration_[ahead];
    return true;
  }

  // Updates the availability of the clients that may be drawn to that at `time`. That of a busy client is updated when
  // the client is released.
  void cross_boundaries(double time);

  // If no client is eligible: when the next idle client with tasks left becomes available; infinity if none does.
  double next_opening();

 private:
  static constexpr std::uint32_t kAttempts = 64;
  static constexpr std::uint32_t kUnknown = 0xFFFFFFFFu;
  static constexpr std::uint64_t kNoBlock = std::uint64_t{1} << 63;

  template <bool kPlain>
  bool is_eligible(std::uint32_t client) const {
    if constexpr (kPlain) {
      return (states_[client] & kBusy) == 0;
    } else {
      return eligible_.has(client);
    }
  }
  bool may_be_drawn(std::uint32_t client) const {
    return (overlap_ || (states_[client] & kBusy) == 0) && tasks_left(client);
  }
  void update(std::uint32_t client) { eligible_.set(client, open_[client] != 0 && may_be_drawn(client)); }

  std::uint64_t selection_word(std::uint64_t start, std::uint32_t attempt) const {
    const PhiloxBlock w =
        philox4x32(plan_.seed, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start >> 32), attempt,
                   stream_word(Stream::ClientSelection, 0));
    return std::uint64_t{w.word[0]} << 32 | w.word[1];
  }
  std::uint32_t client_of(std::uint64_t word) const {
    return static_cast<std::uint32_t>(multiply_high(word, static_cast<std::uint64_t>(plan_.n_clients)));
  }

  void read_windows(std::uint32_t client, double time);
  template <bool kRecorded>
  void look_ahead(std::uint64_t start);
  template <bool kPlain>
  std::int64_t draw_again(std::uint64_t start) const;
  std::uint32_t idle_client(std::uint64_t word) const;

  const SchedulePlan& plan_;
  AvailabilityWindows windows_;
  ScheduleKernels kernels_;  // those in force at the start
  bool overlap_;             // open loop: a client may have several tasks at once
  bool is_plain_ = false;
  LargeVector<std::uint32_t> states_;  // tasks started | kBusy
  std::int64_t n_spent_ = 0;           // clients with no task left

  // Not plain:
  ClientSet eligible_;
  std::vector<std::uint8_t> open_;     // inside a window; always 1 for rounds, whose tasks wait for a window
  std::vector<std::uint8_t> tracked_;  // its next boundary is in the heap, and open_ holds until then; or empty
  EventHeap boundaries_;               // the next opening or closing of clients' windows, by client

  // Drawn ahead, for the starts from ahead_begin_ on.
  std::uint64_t ahead_begin_ = kNoBlock;
  std::uint32_t ahead_client_[kDrawBatch];  // of attempt 0
  std::uint32_t ahead_second_[kDrawBatch];  // of attempt 1, where the first was busy at the time; else kUnknown
  std::uint32_t ahead_guess_[kDrawBatch];   // whose delays were drawn: the first or the second,
  std::uint32_t ahead_task_[kDrawBatch];    // and for which task
  double ahead_wait_[kDrawBatch];
  double ahead_duration_[kDrawBatch];
  std::uint32_t next_client_[kDrawBatch];  // of attempt 0, for the batch after it
};

inline ClientSelection::ClientSelection(const SchedulePlan& plan)
    : plan_(plan),
      windows_{plan.window_policy, plan.window_offsets, plan.window_begin, plan.window_end, plan.period},
      kernels_(kernels().schedule),
      overlap_(plan.mode == Mode::OpenLoop && plan.if_busy == IfBusy::Overlap) {
  const auto n = static_cast<std::size_t>(plan.n_clients);
  const bool is_drawn = plan.mode != Mode::SlotIsClient;
  states_.assign(n, 0);
  for (std::uint32_t c = 0; c < n; ++c) {
    n_spent_ += tasks_left(c, 0) ? 0 : 1;
  }
  is_plain_ = plan.window_policy == WindowPolicy::None && plan.max_wait == std::numeric_limits<double>::infinity() &&
              !plan.distinct_clients && plan.trigger == Trigger::Buffer && plan.refill == 1 && plan.stop_stale == 0 &&
              plan.step_period == std::numeric_limits<double>::infinity() && (!plan.recorded || plan.wrap) &&
              !overlap_ && n_spent_ == 0 &&
              (!is_drawn || (plan.mode == Mode::Pool && plan.n_slots <= plan.n_clients / 2));
  if (!is_drawn || is_plain_) {
    return;
  }
  open_.assign(n, 1);
  eligible_.resize(plan.n_clients);
  if (plan.window_policy != WindowPolicy::None && plan.mode != Mode::Rounds) {
    tracked_.assign(n, 0);
  }
  for (std::uint32_t c = 0; c < n; ++c) {
    if (!tracked_.empty()) {
      read_windows(c, 0.0);
    }
    update(c);
  }
}

// Whether the client is available, and when that changes.
inline void ClientSelection::read_windows(std::uint32_t client, double time) {
  const double opening = windows_.next_open(client, time);
  open_[client] = opening <= time ? 1 : 0;
  const double boundary = open_[client] != 0 ? windows_.close(client, time) : opening;
  tracked_[client] = 1;
  if (boundary < std::numeric_limits<double>::infinity()) {
    boundaries_.put(Event::at(boundary, client));
  } else {
    boundaries_.close();
  }
}

inline void ClientSelection::cross_boundaries(double time) {
  while (!boundaries_.empty() && boundaries_.top().time() <= time) {
    const auto client = static_cast<std::uint32_t>(boundaries_.top().order);
    boundaries_.take();
    if (may_be_drawn(client)) {
      read_windows(client, time);
      update(client);
    } else {
      tracked_[client] = 0;
      boundaries_.close();
    }
  }
}

inline double ClientSelection::next_opening() {
  while (!boundaries_.empty()) {
    const auto client = static_cast<std::uint32_t>(boundaries_.top().order);
    if (may_be_drawn(client)) {
      return boundaries_.top().time();
    }
    tracked_[client] = 0;
    boundaries_.pop();
  }
  return std::numeric_limits<double>::infinity();
}

template <bool kRecorded>
void ClientSelection::look_ahead(std::uint64_t start) {
  std::uint64_t word[kDrawBatch];
  if (ahead_begin_ == kNoBlock) {
    kernels_.draw_selection(plan_.seed, start, 0, word);
    for (int i = 0; i < kDrawBatch; ++i) {
      next_client_[i] = client_of(word[i]);
    }
  }
  ahead_begin_ = start;
  for (int i = 0; i < kDrawBatch; ++i) {
    ahead_client_[i] = ahead_guess_[i] = next_client_[i];
    ahead_second_[i] = kUnknown;
    if ((states_[next_client_[i]] & kBusy) != 0) {
      ahead_second_[i] = ahead_guess_[i] = client_of(selection_word(start + static_cast<std::uint64_t>(i), 1));
    }
    ahead_task_[i] = states_[ahead_guess_[i]] & ~kBusy;
  }
  if constexpr (!kRecorded) {
    kernels_.draw_tasks(plan_.model, ahead_guess_, ahead_task_, ahead_wait_, ahead_duration_);
  }
  kernels_.draw_selection(plan_.seed, start + kDrawBatch, 0, word);
  for (int i = 0; i < kDrawBatch; ++i) {
    next_client_[i] = client_of(word[i]);
    __builtin_prefetch(&states_[next_client_[i]]);
    if constexpr (kRecorded) {
      __builtin_prefetch(&plan_.row_offsets[next_client_[i]]);
    }
  }
}

// The attempts after the first.
template <bool kPlain>
std::int64_t ClientSelection::draw_again(std::uint64_t start) const {
  if constexpr (!kPlain) {
    if (eligible_.count() == 0 || (plan_.mode == Mode::OpenLoop && plan_.if_busy == IfBusy::Skip)) {
      return -1;
    }
  }
  std::uint32_t attempt = 1;
  const std::uint32_t second = ahead_second_[start % kDrawBatch];
  if (second != kUnknown) {
    if (is_eligible<kPlain>(second)) {
      return second;
    }
    attempt = 2;
  }
  for (; attempt < kAttempts; ++attempt) {
    const std::uint32_t client = client_of(selection_word(start, attempt));
    if (is_eligible<kPlain>(client)) {
      return client;
    }
  }
  const std::uint64_t word = selection_word(start, kAttempts);
  if constexpr (kPlain) {
    return idle_client(word);
  } else {
    const auto count = static_cast<std::uint64_t>(eligible_.count());
    return eligible_.member(static_cast<std::int64_t>(multiply_high(word, count)));
  }
}

// The idle client whose rank by id is drawn; there is one.
inline std::uint32_t ClientSelection::idle_client(std::uint64_t word) const {
  std::int64_t count = 0;
  for (const std::uint32_t state : states_) {
    count += (state & kBusy) == 0 ? 1 : 0;
  }
  auto rank = static_cast<std::int64_t>(multiply_high(word, static_cast<std::uint64_t>(count)));
  for (std::uint32_t client = 0;; ++client) {
    if ((states_[client] & kBusy) == 0 && rank-- == 0) {
      return client;
    }
  }
}

}  // namespace fedbuff
