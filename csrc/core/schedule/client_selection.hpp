// ClientSelection: which clients are busy, which may be drawn for a task, and the draws themselves.
//
// A client is eligible if it is idle, available and has tasks left. The eligible ones stand in an array, at first by
// number: one that becomes eligible goes to the end, one that is no longer eligible is replaced by the last. Start s
// takes place floor(word n / 2^64) of the n there, with word the Philox block of s. So a draw costs the same however
// few are eligible. Forms, with the same draws; without windows an idle client with tasks left is eligible, and then
//   Simple:  uniform; who leaves the array was just drawn, so places are not kept.
//   Ring:    the longest idle; the array is a queue.
//   Bits:    round robin; a set of numbers instead of the array.
//   Weights: probabilities; their classes alone.
// Else they are Placed: the place of each client is kept. A heap holds when the windows of the clients that may be
// drawn open or close; `cross_boundaries` brings the array up to the present. The places and delays of the next
// kDrawBatch starts are drawn ahead, in vector code; delays are used where the client and its task number are still
// those that were guessed. Memory: 8 bytes per client if simple; else also its place, two bytes per client and one heap
// entry per client with windows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dispatch.hpp"
#include "memory/huge_pages.hpp"
#include "schedule/availability_windows.hpp"
#include "schedule/bit_set.hpp"
#include "schedule/event_queue.hpp"
#include "schedule/plan.hpp"
#include "schedule/weighted_clients.hpp"

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
    if (plan_.max_uses >= 0 && started >= plan_.max_uses) {
      return false;
    }
    if (!plan_.recorded) {
      return true;
    }
    const std::int64_t rows = plan_.row_offsets[client + 1] - plan_.row_offsets[client];
    return started < rows || (plan_.wrap && rows > 0);
  }
  bool tasks_left(std::uint32_t client) const { return tasks_left(client, states_[client] & ~kBusy); }

  // Marks the client that was drawn last, or has a slot of its own, as busy; returns the number of its next task.
  template <Mode kMode, bool kRecorded, bool kPlain>
  FB_ALWAYS_INLINE std::uint32_t take(std::uint32_t client) {
    const std::uint32_t task = next_task<kPlain>(client);
    if constexpr (kMode != Mode::SlotIsClient) {
      if (kPlain || form_ == Form::Simple) {
        eligible_[drawn_] = eligible_[--n_eligible_];
      } else if (form_ == Form::Ring) {
        head_ = next_place(head_);
        --n_eligible_;
      } else {
        leave(client);
      }
    }
    return task;
  }

  // The number of the next task of a client that goes on without having been idle.
  template <Mode kMode>
  FB_ALWAYS_INLINE std::uint32_t retake(std::uint32_t client) {
    const std::uint32_t task = next_task<false>(client);
    if (kMode != Mode::SlotIsClient && form_ != Form::Simple && form_ != Form::Ring) {
      leave(client);
    }
    return task;
  }

  // Marks the client as idle from `now` on.
  template <Mode kMode, bool kPlain>
  FB_ALWAYS_INLINE void release(std::uint32_t client, double now) {
    states_[client] &= ~kBusy;
    if constexpr (kMode != Mode::SlotIsClient) {
      if (kPlain || form_ != Form::Placed) {
        if (kPlain || (!overlap_ && (!is_limited_ || tasks_left(client, states_[client])))) {
          join<kPlain>(client);  // with overlap it never left
        }
        return;
      }
      key_of_ended(client);
      cross_boundaries(now);
      if (!tracked_.empty() && tracked_[client] == 0) {
        read_windows(client, now);
      }
      update(client);
    }
  }

  // The client of this start, uniform over the eligible ones; -1 if there is none.
  template <Mode kMode, bool kRecorded, bool kPlain>
  FB_ALWAYS_INLINE std::int64_t draw(std::uint64_t start) {
    if constexpr (!kPlain) {
      if (plan_.selection != Selection::Uniform) {
        if (start - ahead_begin_ >= kDrawBatch) {
          if (plan_.selection == Selection::Weighted) {
            look_ahead_by_weight<kRecorded>(start / kDrawBatch * kDrawBatch);
          } else if (form_ != Form::Placed) {
            look_ahead_in_order<kRecorded>(start / kDrawBatch * kDrawBatch);
          }
        }
        return draw_otherwise(start);
      }
    }
    if (start - ahead_begin_ >= kDrawBatch) {
      look_ahead<kMode, kRecorded>(start / kDrawBatch * kDrawBatch);
    }
    const std::uint64_t word = ahead_word_[0][start % kDrawBatch];
    if constexpr (!kPlain) {
      if (kMode == Mode::OpenLoop && plan_.if_busy == IfBusy::Skip) {  // among all
        const std::uint32_t client = place_of(word, static_cast<std::size_t>(plan_.n_clients));
        return place_[client] != kNoPlace ? std::int64_t{client} : -1;
      }
      if (n_eligible_ == 0) {
        return -1;
      }
    }
    drawn_ = place_of(word, n_eligible_);
    return eligible_[drawn_];
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
  // How long the server takes for the task's upload, where it needs time: drawn ahead, or now.
  FB_ALWAYS_INLINE double server_time(std::uint64_t start, std::uint32_t client, std::uint32_t task) const {
    const std::size_t ahead = start % kDrawBatch;
    return ahead_guess_[ahead] == client && ahead_task_[ahead] == task
               ? ahead_server_[ahead]
               : draw_server_time(plan_.server_time, plan_.seed, client, task);
  }

  // Updates the availability of the clients that may be drawn to that at `time`. That of a busy client is updated when
  // the client is released.
  void cross_boundaries(double time);

  // If no client is eligible: when the next idle client with tasks left becomes available; infinity if none does.
  double next_opening();

 private:
  static constexpr std::uint32_t kNoPlace = 0xFFFFFFFFu;
  static constexpr std::uint32_t kUnknown = 0xFFFFFFFFu;
  static constexpr std::uint64_t kNoBlock = std::uint64_t{1} << 63;
  static constexpr std::size_t kAhead = 3 * kDrawBatch;
  static constexpr std::size_t kFew = 4 * kDrawBatch;  // of so few eligible ones a guess is mostly wrong

  enum class Form : std::uint8_t { Simple, Ring, Bits, Weights, Placed };

  std::size_t next_place(std::size_t place) const { return place + 1 == eligible_.size() ? 0 : place + 1; }
  // A client that is not Placed becomes eligible.
  template <bool kPlain>
  FB_ALWAYS_INLINE void join(std::uint32_t client) {
    if (kPlain || form_ == Form::Simple) {
      eligible_[n_eligible_++] = client;
    } else if (form_ == Form::Ring) {
      const std::size_t place = head_ + n_eligible_++;
      eligible_[place < eligible_.size() ? place : place - eligible_.size()] = client;
    } else if (form_ == Form::Bits) {
      bits_.insert(client);
    } else {
      weights_.insert(client);
    }
  }
  // A client has a task more; whether it is still eligible.
  void leave(std::uint32_t client) {
    if (form_ == Form::Placed) {
      update(client);
    } else if (!overlap_ || !tasks_left(client)) {
      if (form_ == Form::Bits) {
        bits_.remove(client);
      } else {
        weights_.remove(client);
      }
    }
  }
  template <bool kPlain>
  FB_ALWAYS_INLINE std::uint32_t next_task(std::uint32_t client) {
    const std::uint32_t task = states_[client] & ~kBusy;
    states_[client] = (task + 1) | kBusy;
    if (!kPlain && is_limited_ && !tasks_left(client, task + 1)) {
      ++n_spent_;
    }
    return task;
  }
  bool may_be_drawn(std::uint32_t client) const {
    return (overlap_ || (states_[client] & kBusy) == 0) && tasks_left(client);
  }
  void update(std::uint32_t client) {
    const bool wanted = open_[client] != 0 && may_be_drawn(client);
    if (wanted == (place_[client] != kNoPlace)) {
      return;
    }
    if (wanted) {
      place_[client] = static_cast<std::uint32_t>(n_eligible_);
      eligible_[n_eligible_++] = client;
      if (plan_.selection != Selection::Uniform) {
        enter_otherwise(client);
      }
    } else {
      if (plan_.selection == Selection::Weighted) {
        weights_.remove(client);
      }
      const std::uint32_t last = eligible_[--n_eligible_];
      eligible_[place_[client]] = last;
      place_[last] = place_[client];
      place_[client] = kNoPlace;
    }
  }
  static std::uint32_t place_of(std::uint64_t word, std::size_t n) {
    return static_cast<std::uint32_t>(multiply_high(word, static_cast<std::uint64_t>(n)));
  }

  // Selection that is not uniform: an eligible client joins those that may be drawn, and the draw.
  void enter_otherwise(std::uint32_t client);
  std::int64_t draw_otherwise(std::uint64_t start);
  std::int64_t draw_weighted(std::uint64_t start);
  template <bool kRecorded>
  void look_ahead_in_order(std::uint64_t start);
  template <bool kRecorded>
  void look_ahead_by_weight(std::uint64_t start);
  template <bool kRecorded>
  void draw_ahead();
  void key_of_ended(std::uint32_t client) {
    if (plan_.selection == Selection::LongestIdle) {
      key_[client] = next_key_++;
    }
  }

  void read_windows(std::uint32_t client, double time);
  template <Mode kMode, bool kRecorded>
  void look_ahead(std::uint64_t start);
  // How many will be eligible at the next kAhead starts, from this one on, as far as can be told.
  template <Mode kMode>
  void expect_eligible(std::uint64_t start, std::size_t* out) const;

  const SchedulePlan& plan_;
  AvailabilityWindows windows_;
  ScheduleKernels kernels_;  // those in force at the start
  bool overlap_;             // a client may have several tasks: at once, or in its queue
  Form form_ = Form::Placed;
  bool is_limited_;  // a client may run out of tasks
  bool is_plain_ = false;
  LargeVector<std::uint32_t> states_;  // tasks started | kBusy
  std::int64_t n_spent_ = 0;           // clients with no task left

  LargeVector<std::uint32_t> eligible_;  // n_eligible_ of them; those behind are former ones
  std::size_t n_eligible_ = 0;
  std::size_t drawn_ = 0;  // the place of the client drawn last
  std::size_t head_ = 0;   // Ring: the place of the first
  BitSet bits_;            // Bits

  // Placed:
  LargeVector<std::uint32_t> place_;   // in eligible_, by client, or kNoPlace
  std::vector<std::uint8_t> open_;     // inside a window; always 1 for rounds, whose tasks wait for a window
  std::vector<std::uint8_t> tracked_;  // its next boundary is in the heap, and open_ holds until then; or empty
  EventHeap boundaries_;               // the next opening or closing of clients' windows, by client

  // Not uniform:
  WeightedClients weights_;         // of the eligible ones
  std::vector<std::uint64_t> key_;  // by client: the smallest of an eligible one is next
  EventHeap order_;                 // keys and clients; those that do not count any more are passed over
  std::uint64_t next_key_ = 0;  // longest idle: of the next one that becomes idle; round robin: of the last drawn + 1

  // Drawn ahead, for the starts from ahead_begin_ on.
  std::uint64_t ahead_begin_ = kNoBlock;
  std::uint64_t ahead_word_[3][kDrawBatch];  // of these starts and of the two batches after them
  std::uint32_t ahead_guess_[kDrawBatch];    // whose delays were drawn, or kUnknown,
  std::uint32_t ahead_task_[kDrawBatch];     // and for which task
  double ahead_wait_[kDrawBatch];
  double ahead_duration_[kDrawBatch];
  double ahead_server_[kDrawBatch];
};

inline ClientSelection::ClientSelection(const SchedulePlan& plan)
    : plan_(plan),
      windows_{plan.window_policy, plan.window_offsets, plan.window_begin, plan.window_end, plan.period},
      kernels_(kernels().schedule),
      overlap_(plan.queues || (plan.mode == Mode::OpenLoop && plan.if_busy == IfBusy::Overlap)),
      is_limited_(plan.max_uses >= 0 || (plan.recorded && !plan.wrap)) {
  const auto n = static_cast<std::size_t>(plan.n_clients);
  const bool is_drawn = plan.mode != Mode::SlotIsClient;
  states_.assign(n, 0);
  for (std::uint32_t c = 0; c < n; ++c) {
    n_spent_ += tasks_left(c, 0) ? 0 : 1;
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const bool has_windows = plan.window_policy != WindowPolicy::None && plan.mode != Mode::Rounds;
  if (!has_windows && !(plan.mode == Mode::OpenLoop && plan.if_busy == IfBusy::Skip)) {
    switch (plan.selection) {
      case Selection::Uniform: form_ = overlap_ ? Form::Placed : Form::Simple; break;
      case Selection::LongestIdle: form_ = overlap_ ? Form::Placed : Form::Ring; break;
      case Selection::RoundRobin: form_ = Form::Bits; break;
      case Selection::Weighted: form_ = Form::Weights; break;
    }
  }
  is_plain_ = form_ == Form::Simple && plan.window_policy == WindowPolicy::None && !is_limited_ && n_spent_ == 0 &&
              plan.max_wait == kNever && !plan.distinct_clients && plan.trigger == Trigger::Buffer &&
              plan.refill == 1 && plan.stop_stale == 0 && plan.step_period == kNever && plan.uplink == kNever &&
              !plan.needs_server && (!is_drawn || plan.mode == Mode::Pool);
  std::fill(ahead_guess_, ahead_guess_ + kDrawBatch, kUnknown);
  if (!is_drawn) {
    return;
  }
  if (form_ == Form::Bits) {
    bits_.resize(n);
  } else if (form_ != Form::Weights) {
    eligible_.assign(n, 0);
  }
  if (plan.selection == Selection::Weighted) {
    weights_.set_weights(plan.probability, n);
  }
  if (form_ != Form::Placed) {
    for (std::uint32_t c = 0; c < n; ++c) {
      if (tasks_left(c, 0)) {
        join<false>(c);
      }
    }
    return;
  }
  open_.assign(n, 1);
  place_.assign(n, kNoPlace);
  if (plan.selection == Selection::RoundRobin || plan.selection == Selection::LongestIdle) {
    key_.resize(n);
    for (std::size_t c = 0; c < n; ++c) {
      key_[c] = c;
    }
    next_key_ = plan.selection == Selection::LongestIdle ? n : 0;
  }
  if (has_windows) {
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

inline void ClientSelection::enter_otherwise(std::uint32_t client) {
  if (plan_.selection == Selection::Weighted) {
    weights_.insert(client);
    return;
  }
  if (plan_.selection ==
      Selection::RoundRobin) {  // lap * n + client: behind the last one drawn, in this lap or the next
    const auto n = static_cast<std::uint64_t>(plan_.n_clients);
    const std::uint64_t key = next_key_ / n * n + client;
    key_[client] = key >= next_key_ ? key : key + n;
  }
  order_.put(Event{key_[client], client});
}

inline std::int64_t ClientSelection::draw_otherwise(std::uint64_t start) {
  if (form_ == Form::Bits) {
    const std::size_t next = bits_.first_from(next_key_);
    const std::size_t client = next != BitSet::kNone ? next : bits_.first_from(0);
    if (client == BitSet::kNone) {
      return -1;
    }
    next_key_ = client + 1;
    return static_cast<std::int64_t>(client);
  }
  if (form_ != Form::Weights && n_eligible_ == 0) {
    return -1;
  }
  if (form_ == Form::Ring) {
    return eligible_[head_];
  }
  if (plan_.selection == Selection::Weighted) {
    return draw_weighted(start);
  }
  for (;;) {
    const Event first = order_.top();
    const auto client = static_cast<std::uint32_t>(first.order);
    order_.pop();
    if (place_[client] != kNoPlace && key_[client] == first.time_bits) {
      if (plan_.selection == Selection::RoundRobin) {
        next_key_ = first.time_bits + 1;
        if (plan_.queues) {  // it stays among those that may be drawn
          enter_otherwise(client);
        }
      }
      return client;
    }
  }
}

// The client that was drawn ahead among all; if it is not eligible, attempts among those that are.
inline std::int64_t ClientSelection::draw_weighted(std::uint64_t start) {
  if (weights_.is_empty()) {
    return -1;
  }
  std::int64_t client = ahead_guess_[start % kDrawBatch];
  for (std::uint32_t attempt = 1; client < 0 || !weights_.holds(static_cast<std::size_t>(client)); ++attempt) {
    const PhiloxBlock w =
        philox4x32(plan_.seed, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start >> 32), attempt,
                   stream_word(Stream::ClientSelection, 0));
    client = weights_.draw(unit_double(w.word[0], w.word[1]));
  }
  return client;
}

template <Mode kMode>
void ClientSelection::expect_eligible(std::uint64_t start, std::size_t* out) const {
  const auto n = static_cast<std::size_t>(plan_.n_clients);
  const auto slots = static_cast<std::size_t>(plan_.n_slots);
  if (overlap_) {
    std::fill(out, out + kAhead, std::max<std::size_t>(n_eligible_, 1));
    return;
  }
  if (kMode == Mode::Pool && plan_.refill != 1) {  // as many start together as slots are refilled
    const auto together =
        std::min(slots, static_cast<std::size_t>(plan_.refill == 0 ? plan_.buffer_size : plan_.refill));
    std::size_t left = start < slots ? slots - start : together - (start - slots) % together;  // of those that do
    for (std::size_t i = 0; i < kAhead; ++i) {
      out[i] = n - slots + left;
      left = left > 1 ? left - 1 : together;
    }
    return;
  }
  // A pool that is full starts one where another has just ended.
  const std::size_t least = kMode == Mode::Pool ? n - slots + 1 : std::size_t{1};
  for (std::size_t i = 0; i < kAhead; ++i) {
    out[i] = n_eligible_ > i + least ? n_eligible_ - i : least;
  }
}

// Memory is fetched in two steps: the clients at the places of the batch after the next one, and what is known of the
// clients of the next one. How many are eligible at a start of an open loop cannot be told.
template <Mode kMode, bool kRecorded>
void ClientSelection::look_ahead(std::uint64_t start) {
  if (ahead_begin_ == kNoBlock) {
    kernels_.draw_selection(plan_.seed, start, ahead_word_[1]);
    kernels_.draw_selection(plan_.seed, start + kDrawBatch, ahead_word_[2]);
  }
  ahead_begin_ = start;
  std::copy(ahead_word_[1], ahead_word_[1] + kDrawBatch, ahead_word_[0]);
  std::copy(ahead_word_[2], ahead_word_[2] + kDrawBatch, ahead_word_[1]);
  kernels_.draw_selection(plan_.seed, start + 2 * kDrawBatch, ahead_word_[2]);
  std::size_t expected[kAhead];
  expect_eligible<kMode>(start, expected);
  if (kMode == Mode::OpenLoop || expected[kDrawBatch] < kFew) {
    std::fill(ahead_guess_, ahead_guess_ + kDrawBatch, kUnknown);
    return;
  }
  for (std::size_t i = 0; i < kDrawBatch; ++i) {
    ahead_guess_[i] = eligible_[place_of(ahead_word_[0][i], expected[i])];
  }
  draw_ahead<kRecorded>();
  for (std::size_t i = 0; i < kDrawBatch; ++i) {
    const std::uint32_t client = eligible_[place_of(ahead_word_[1][i], expected[kDrawBatch + i])];
    __builtin_prefetch(&states_[client]);
    if constexpr (kRecorded) {
      __builtin_prefetch(&plan_.row_offsets[client]);
    }
    __builtin_prefetch(&eligible_[place_of(ahead_word_[2][i], expected[2 * kDrawBatch + i])]);
  }
}

// The same where the next clients are those in a line; some of them are not if clients join before them.
template <bool kRecorded>
void ClientSelection::look_ahead_in_order(std::uint64_t start) {
  ahead_begin_ = start;
  std::size_t n = 0;
  if (form_ == Form::Ring) {
    for (std::size_t place = head_; n < kDrawBatch && n < n_eligible_; place = next_place(place)) {
      ahead_guess_[n++] = eligible_[place];
    }
  } else {
    for (std::size_t next = next_key_; n < kDrawBatch; next = ahead_guess_[n++] + std::size_t{1}) {
      next = bits_.first_from(next);
      if (next == BitSet::kNone) {
        break;
      }
      ahead_guess_[n] = static_cast<std::uint32_t>(next);
    }
  }
  std::fill(ahead_guess_ + n, ahead_guess_ + kDrawBatch, std::uint32_t{0});
  draw_ahead<kRecorded>();
  std::fill(ahead_guess_ + n, ahead_guess_ + kDrawBatch, kUnknown);
}

// The same where clients are drawn among all first, whoever is eligible.
template <bool kRecorded>
void ClientSelection::look_ahead_by_weight(std::uint64_t start) {
  ahead_begin_ = start;
  kernels_.draw_selection(plan_.seed, start, ahead_word_[0]);
  for (std::size_t i = 0; i < kDrawBatch; ++i) {
    const std::uint64_t word = ahead_word_[0][i];
    ahead_guess_[i] =
        weights_.candidate(unit_double(static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word)));
    weights_.fetch(ahead_guess_[i]);
  }
  draw_ahead<kRecorded>();
}

// The delays of the next tasks of the clients that were guessed.
template <bool kRecorded>
void ClientSelection::draw_ahead() {
  for (std::size_t i = 0; i < kDrawBatch; ++i) {
    ahead_task_[i] = states_[ahead_guess_[i]] & ~kBusy;
  }
  if (plan_.needs_server) {
    kernels_.draw_law(plan_.server_time, plan_.seed, ahead_guess_, ahead_task_, kServer, ahead_server_);
  }
  if constexpr (!kRecorded) {
    kernels_.draw_tasks(plan_.model, ahead_guess_, ahead_task_, ahead_wait_, ahead_duration_);
  } else {
    for (std::size_t i = 0; i < kDrawBatch; ++i) {
      const std::int64_t first = plan_.row_offsets[ahead_guess_[i]];
      const std::int64_t rows = plan_.row_offsets[ahead_guess_[i] + 1] - first;
      const std::int64_t task = ahead_task_[i];
      const std::int64_t row = first + (task < rows ? task : rows > 0 ? task % rows : 0);
      __builtin_prefetch(&plan_.row_wait[row]);
      __builtin_prefetch(&plan_.row_duration[row]);
      __builtin_prefetch(&plan_.row_ok[row]);
    }
  }
}

}  // namespace fedbuff
