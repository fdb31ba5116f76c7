#include "schedule/resolver.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <type_traits>

#include "schedule/client_selection.hpp"
#include "schedule/event_list.hpp"
#include "schedule/event_queue.hpp"
#include "schedule/slot_lists.hpp"
#include "schedule/triggers.hpp"
#include "schedule/uplink.hpp"
#include "kernels/dispatch.hpp"

namespace fedbuff {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kStretchRows = 1024;  // they stay in the cache
constexpr std::int64_t kEventsPerCall = std::int64_t{1} << 17;
constexpr std::uint64_t kEnd = 0;
constexpr std::uint64_t kStart = 1;
constexpr std::uint64_t kRetry = 2;
// kNoSlot is that of the requests of rounds and of the open loop, and of retries.

// Running: its client works on the task. Done: its arrival waits for the next buffer.
enum class SlotState : std::uint8_t { Free, Waiting, Restarting, Queued, Running, Sending, AtServer, Done };

struct Slot {
  double start = 0.0;  // while it waits: the duration of the task
  std::int64_t version = 0;
  double ahead = -1.0;  // the duration of the client's next task; negative where it was not drawn ahead
  std::uint32_t client = 0;
  std::uint32_t task = 0;
  TaskStatus status = TaskStatus::Used;
  SlotState state = SlotState::Free;
  bool endless = false;   // the task never ends
  bool deferred = false;  // Done, and the next buffer has not opened
  bool cut = false;       // the work ends before it is done
};

// What is known of a client: in the state of all, and in a table of so many bytes each, if there is one.
struct ClientTables {
  const std::uint32_t* states = nullptr;
  const char* others = nullptr;
  std::size_t other_bytes = 0;

  template <class T>
  void add(const T* table) {
    others = reinterpret_cast<const char*>(table);
    other_bytes = sizeof(T);
  }
};

struct FetchClient {
  const ClientTables* tables;
  void operator()(const Slot& slot) const {
    __builtin_prefetch(tables->states + slot.client);
    if (tables->others != nullptr) {
      __builtin_prefetch(tables->others + slot.client * tables->other_bytes);
    }
  }
};

// The event queues. They own the slots.
struct Calendar : EventQueue<Slot, FetchClient> {
  Calendar(const ScheduleKernels& kernels, const ClientTables& tables) : EventQueue(kernels, FetchClient{&tables}) {}
};
struct RemovingCalendar : EventQueue<Slot, FetchClient, true> {  // for running tasks that are stopped
  RemovingCalendar(const ScheduleKernels& kernels, const ClientTables& tables)
      : EventQueue(kernels, FetchClient{&tables}) {}
};
struct List : EventList<Slot> {
  List(const ScheduleKernels& kernels, const ClientTables&) : EventList(kernels) {}
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
  // The counters of a schedule. A call of `run` works on a copy, which stays in registers.
  struct Counters {
    double now = 0.0;
    std::int64_t version = 0;
    std::int64_t fill = 0;     // arrivals in the buffer
    std::int64_t started = 0;  // tasks started on this version
    std::int64_t total_rows = 0;
    std::int64_t quiet = 0;     // events since an arrival entered the buffer; where all must be heard: since a step
    std::uint64_t created = 0;  // events
    std::uint64_t starts = 0;   // draws of a client
    double last_step = 0.0;
    double last_start = -1.0;      // when a task or a request started last
    double trigger = kInfinity;    // when a buffer that is neither empty nor full makes a step
    double tick = kInfinity;       // the next tick of a period whose ticks always happen
    std::int64_t stop_until = -1;  // running tasks of versions up to this are stopped before anything else happens
  };
  Counters counters_;
};

namespace {

// The state that lasts from call to call, over one of the two queues. `Call` holds the loop itself.
template <class Queue>
class LoopOver final : public EventLoop {
 public:
  explicit LoopOver(const SchedulePlan& plan);

  ChunkEnd run(const ScheduleColumns& out) override {
    return reason_ == StopReason::Full ? (this->*run_)(out) : ChunkEnd{0, 0, reason_};
  }
  std::vector<TaskInFlight> in_flight() const override;

 private:
  template <Mode kMode, bool kRecorded, bool kPlain>
  class Call;
  using Run = ChunkEnd (LoopOver::*)(const ScheduleColumns&);

  template <Mode kMode, bool kRecorded, bool kPlain>
  ChunkEnd run_call(const ScheduleColumns& out) {
    return Call<kMode, kRecorded, kPlain>(*this, out).run();
  }
  template <Mode kMode>
  Run choose() const;
  double open_start(double previous, std::uint64_t start) const;
  std::uint32_t free_slot();
  std::int64_t recorded_row(std::uint32_t client, std::uint32_t task) const {
    const std::int64_t first = plan_.row_offsets[client];
    const std::int64_t rows = plan_.row_offsets[client + 1] - first;
    return first + (task < rows ? task : task % rows);
  }

  // Draws what the next task of the slot's client will take, and those of the clients whose tasks end soon.
  __attribute__((noinline)) void draw_slots_ahead(std::uint32_t slot);

  static constexpr bool kCanStop = !std::is_same_v<Queue, Calendar>;
  void make_queue_room(std::size_t n_slots) {
    queues_.resize(plan_.queues ? n_slots : 0);
    queued_duration_.resize(plan_.queues ? n_slots : 0);
    uplink_.resize(n_slots);
    deadline_.resize(uplink_.is_shared() ? n_slots : 0);
    server_line_.resize(plan_.needs_server ? n_slots : 0);
    server_time_.resize(plan_.needs_server ? n_slots : 0);
  }
  bool stops() const { return kCanStop && plan_.stop_stale > 0; }
  SchedulePlan plan_;
  ScheduleKernels kernels_;  // those in force at the start
  ClientSelection clients_;
  ClientTables tables_;  // that the queue fetches
  Queue queue_;          // owns the slots
  Run run_ = nullptr;
  StopReason reason_ = StopReason::Full;
  std::uint32_t asked_first_ = 0;          // slots of a closed loop that have asked for their first client
  bool keeps_clients_;                     // all clients are at work: a slot's next task is its client's
  bool has_fast_stretch_;                  // no task can wait, time out or be too stale
  std::int64_t n_taken_ = 0;               // slots that hold a task; not counted in plain loops
  std::vector<std::uint32_t> free_slots_;  // of the open loop
  std::deque<std::uint32_t> line_;         // slots of the pool that wait for a client, oldest first
  double retry_time_ = kInfinity;          // of the pending retry
  std::vector<std::int64_t> entered_;      // distinct clients: the last buffer that each client entered
  std::vector<std::uint32_t> deferred_;    // distinct clients: slots whose arrivals wait for the next buffer
  std::vector<std::uint32_t> open_slots_;  // that wait to be refilled, in the order in which they became free
  SlotList running_;                       // where tasks are stopped: the running ones, in the order of their starts
  ClientQueues queues_;                    // of clients that may be sent several tasks
  LargeVector<double> queued_duration_;    // by slot: of a task that waits in a queue
  Uplink uplink_;
  LargeVector<double> deadline_;     // by slot, where uploads share a link: when the task is given up
  LargeVector<double> server_time_;  // by slot: of the upload, where the server needs time
  SlotList server_line_;             // uploads that have reached the server; it handles the first
  Event handled_ = kNoEvent;         // when the server has handled the first of them
  Event next_start_ = kNoEvent;      // of the open loop
  bool has_parts_;                   // a task has events before it ends
  Hearing hearing_;
  bool always_ticks_;  // ticks of the period happen with an empty buffer too
};

template <class Queue>
LoopOver<Queue>::LoopOver(const SchedulePlan& plan)
    : plan_(plan),
      kernels_(kernels().schedule),
      clients_(plan_),
      tables_{clients_.states().data()},
      queue_(kernels_, tables_),
      keeps_clients_(plan.mode == Mode::SlotIsClient || (plan.mode == Mode::Pool && plan.n_slots == plan.n_clients)),
      has_fast_stretch_(plan.timeout == kInfinity && plan.max_staleness < 0 && plan.stall_limit > 0 &&
                        plan.model.component[kWait].kind == DistributionKind::Constant &&
                        plan.model.component[kWait].p[0] == 0.0),
      uplink_(plan.uplink, plan.timeout < kInfinity),
      has_parts_(uplink_.is_shared() || plan.needs_server),
      hearing_(plan.trigger, plan.n_clients, plan.per_client),
      always_ticks_(plan.step_period < kInfinity && (plan.restart || plan.refill == 0)) {
  if (plan.n_slots >= static_cast<std::int64_t>(Event::kMaxSlots) - 1) {
    throw std::length_error("concurrency: expected at most 67,108,862 tasks in flight");
  }
  entered_.assign(plan.distinct_clients ? static_cast<std::size_t>(plan.n_clients) : 0, -1);
  running_.resize(stops() ? static_cast<std::size_t>(plan.n_slots) + 1 : 0);
  queues_.set_clients(plan.queues ? static_cast<std::size_t>(plan.n_clients) : 0);
  if (plan.queues) {
    tables_.add(queues_.clients());
  } else if (plan.trigger != Trigger::Buffer) {
    tables_.add(hearing_.clients());
  }
  make_queue_room(static_cast<std::size_t>(plan.n_slots) + 1);
  counters_.tick = always_ticks_ ? plan.step_period : kInfinity;
  queue_.add_slots(static_cast<std::size_t>(plan.n_slots));
  if (plan.mode == Mode::SlotIsClient || plan.mode == Mode::Pool) {
    queue_.gather();
    counters_.created = static_cast<std::uint64_t>(plan.n_slots);  // the first requests, which never enter the queue
  } else {
    const double first = plan.mode == Mode::OpenLoop ? open_start(0.0, 0) : 0.0;
    const Event start = Event::make(first, kStart, counters_.created++, kNoSlot);
    if (plan.mode == Mode::OpenLoop) {
      next_start_ = start;
    } else {
      queue_.put(start);
    }
  }
  switch (plan.mode) {
    case Mode::SlotIsClient: run_ = choose<Mode::SlotIsClient>(); break;
    case Mode::Pool: run_ = choose<Mode::Pool>(); break;
    case Mode::OpenLoop:
      if constexpr (std::is_same_v<Queue, Calendar>) {
        run_ = choose<Mode::OpenLoop>();
      }
      break;
    case Mode::Rounds:
      if constexpr (!std::is_same_v<Queue, RemovingCalendar>) {
        run_ = choose<Mode::Rounds>();
      }
      break;
  }
}

template <class Queue>
template <Mode kMode>
typename LoopOver<Queue>::Run LoopOver<Queue>::choose() const {
  if constexpr (kMode == Mode::SlotIsClient || kMode == Mode::Pool) {
    if (!std::is_same_v<Queue, RemovingCalendar> && clients_.is_plain()) {
      return plan_.recorded ? &LoopOver::run_call<kMode, true, true> : &LoopOver::run_call<kMode, false, true>;
    }
  }
  return plan_.recorded ? &LoopOver::run_call<kMode, true, false> : &LoopOver::run_call<kMode, false, false>;
}

// When the open loop makes the start of this number.
template <class Queue>
double LoopOver<Queue>::open_start(double previous, std::uint64_t start) const {
  if (!plan_.poisson) {
    return static_cast<double>(start) / plan_.rate;
  }
  const PhiloxBlock w = philox4x32(plan_.seed, static_cast<std::uint32_t>(start),
                                   static_cast<std::uint32_t>(start >> 32), kOpenStart, stream_word(Stream::Delays, 0));
  return previous + detail::unit_exponential(w.word[0], w.word[1]) / plan_.rate;
}

template <class Queue>
void LoopOver<Queue>::draw_slots_ahead(std::uint32_t slot) {
  std::uint32_t slots[kDrawBatch], client[kDrawBatch], task[kDrawBatch];
  std::size_t n = 0;
  slots[n++] = slot;
  queue_.visit_soon([&](std::uint32_t soon) {
    slots[n] = soon;
    n += queue_.payload(soon).ahead < 0.0 ? 1 : 0;
    return n < kDrawBatch;
  });
  for (std::size_t i = 0; i < kDrawBatch; ++i) {
    const Slot& at = queue_.payload(slots[i < n ? i : 0]);
    client[i] = at.client;
    task[i] = at.task + 1;
  }
  double wait[kDrawBatch], duration[kDrawBatch];
  kernels_.draw_tasks(plan_.model, client, task, wait, duration);
  for (std::size_t i = 0; i < n; ++i) {
    queue_.payload(slots[i]).ahead = duration[i];
  }
}

// A slot of the open loop: the one that became free last, or a new one.
template <class Queue>
std::uint32_t LoopOver<Queue>::free_slot() {
  if (!free_slots_.empty()) {
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  if (queue_.n_slots() >= Event::kMaxSlots) {
    throw std::length_error("start_rate: expected at most 67,108,863 tasks in flight");
  }
  queue_.add_slots(1);
  make_queue_room(queue_.n_slots());
  return static_cast<std::uint32_t>(queue_.n_slots() - 1);
}

// One call of `run`: the event loop, for one mode and one kind of delays.
//
// kPlain: no windows, no trigger but a full buffer, slots are refilled at arrivals, no task is stopped, no distinct
// clients, no client runs out of tasks, an idle client is eligible, and a task is one event. Every member function is
// inlined into `run`, and the object does not leave it: so the compiler keeps the counters in registers. A member
// function that is not inlined would put all of them into memory.
template <class Queue>
template <Mode kMode, bool kRecorded, bool kPlain>
class LoopOver<Queue>::Call {
 public:
  FB_INLINE_FOR_SPEED Call(LoopOver& loop, const ScheduleColumns& out)
      : loop_(loop),
        plan_(loop.plan_),
        clients_(loop.clients_),
        queue_(loop.queue_),
        out_(out),
        horizon_(portable::detail::bits_of(std::min(loop.plan_.max_time, std::numeric_limits<double>::max()))),
        max_staleness_(loop.plan_.max_staleness >= 0 ? loop.plan_.max_staleness : INT64_MAX),
        last_row_(loop.plan_.arrivals >= 0 ? loop.plan_.arrivals : INT64_MAX),
        buffer_size_(loop.plan_.buffer_size),
        timeout_(loop.plan_.timeout),
        s_(loop.counters_) {}

  FB_INLINE_FOR_SPEED ChunkEnd run() {
    if (s_.created + 4 * static_cast<std::uint64_t>(out_.n_rows) + 4 * queue_.n_slots() >= Event::kMaxNumber) {
      throw std::length_error("schedule: expected at most 68,719,476,735 events");
    }
    for (std::int64_t turn = 0; has_room() && turn + rows_ <= kEventsPerCall; ++turn) {
      if constexpr (kStops) {
        if (s_.stop_until >= 0) {
          if (stop_next()) {
            break;
          }
          continue;
        }
      }
      if constexpr (kClosed) {
        if (!all_have_asked() && ask_first()) {
          continue;
        }
      }
      if constexpr (kClosed && kPlain && !kRecorded) {
        if (loop_.has_fast_stretch_ && s_.quiet == 0 && all_have_asked()) {
          fast_stretch();
          if (!has_room()) {
            break;
          }
        }
      }
      const Next next = find_next();
      const Event& top = next.event;
      bool round_is_over = false;
      if constexpr (!kPlain) {
        const double time = top.time_bits < kInfinityBits ? top.time() : kInfinity;
        const double due = next_tick_time();
        if (tick_is_due(top, due, time)) {
          if (on_tick(due)) {
            break;
          }
          continue;
        }
        if constexpr (kClosed) {
          if (top.time_bits >= kInfinityBits && due == kInfinity && !loop_.open_slots_.empty()) {
            refill();  // nothing else would ever happen
            continue;
          }
        }
        // A round whose last tasks never end is over.
        round_is_over = kMode == Mode::Rounds && loop_.n_taken_ > 0 && time == kInfinity;
      }
      if (top.time_bits > horizon_ && !round_is_over) {
        reason_ = plan_.max_time < kInfinity ? StopReason::MaxTime : StopReason::Exhausted;
        break;
      }
      if (++s_.quiet > plan_.stall_limit) {
        reason_ = StopReason::Stalled;
        break;
      }
      if (kMode == Mode::Rounds && round_is_over) {
        if (on_endless_round()) {
          break;
        }
        continue;
      }
      if (happen(next)) {
        break;
      }
    }
    loop_.counters_ = s_;
    loop_.reason_ = reason_;
    return {rows_, steps_, reason_};
  }

 private:
  static constexpr bool kClosed = kMode == Mode::SlotIsClient || kMode == Mode::Pool;
  static constexpr bool kDrawn = kMode != Mode::SlotIsClient;
  static constexpr bool kStops = kClosed && !kPlain && LoopOver::kCanStop;
  static constexpr std::uint64_t kInfinityBits = std::uint64_t{0x7FF} << 52;

  FB_INLINE_FOR_SPEED bool has_room() const {
    const std::int64_t rows_per_event = kMode == Mode::Rounds ? plan_.n_slots : 1;
    return rows_ + rows_per_event <= out_.n_rows && steps_ + 2 <= out_.n_steps;
  }
  FB_INLINE_FOR_SPEED bool all_have_asked() const {
    return loop_.asked_first_ == static_cast<std::uint32_t>(plan_.n_slots);
  }
  FB_INLINE_FOR_SPEED bool stop(StopReason reason) {
    reason_ = reason;
    return true;
  }

  // Handlers of events. Those that return a bool return true if the schedule ends, where nothing else is said.

  // The first requests come before all others at time 0, and after the tasks that have already ended then. Returns
  // whether one was served.
  FB_INLINE_FOR_SPEED bool ask_first() {
    if (!queue_.empty() && queue_.top().time_bits == 0 && queue_.top().kind() == static_cast<int>(kEnd)) {
      return false;
    }
    if (!kPlain && (loop_.uplink_.next_time() == 0.0 || loop_.handled_.time_bits == 0)) {
      return false;
    }
    ask<false>(++loop_.asked_first_);
    if (all_have_asked()) {
      queue_.lay_out_again();
    }
    return true;
  }

  struct Next {
    Event event;
    Event* beside = nullptr;  // where it is kept, if it is not in the queue
    bool is_upload = false;   // a transfer that is complete or given up
  };
  FB_INLINE_FOR_SPEED Next find_next() {
    Next next{queue_.top()};
    if constexpr (!kPlain) {
      if (earlier(loop_.handled_, next.event)) {
        next = {loop_.handled_, &loop_.handled_};
      }
      if constexpr (kMode == Mode::OpenLoop) {
        if (earlier(loop_.next_start_, next.event)) {
          next = {loop_.next_start_, &loop_.next_start_};
        }
      }
      const double sent = loop_.uplink_.next_time();
      if (sent < kInfinity && portable::detail::bits_of(sent) <= next.event.time_bits) {
        next = {Event::make(sent, kEnd, 0, kNoSlot), nullptr, true};
      }
    }
    return next;
  }

  // Whether the schedule ends with this event.
  FB_INLINE_FOR_SPEED bool happen(const Next& next) {
    const Event& event = next.event;
    s_.now = event.time();
    if constexpr (!kPlain) {
      if (next.is_upload) {
        return on_upload(event);
      }
    }
    if (!kPlain && next.beside != nullptr) {
      *next.beside = kNoEvent;
    } else {
      queue_.take();
    }
    if (event.kind() != static_cast<int>(kEnd)) {
      on_start(event);
      return false;
    }
    return !kPlain && loop_.has_parts_ ? on_part(event) : on_end(event, event.slot());
  }

  FB_INLINE_FOR_SPEED double next_tick_time() const { return std::min(s_.trigger, s_.tick); }

  // A tick comes after the arrivals and before the starts of its time.
  FB_INLINE_FOR_SPEED bool tick_is_due(const Event& top, double due, double time) {
    if (due == kInfinity || due > plan_.max_time) {
      return false;
    }
    return due < time || (due == time && top.kind() != static_cast<int>(kEnd));
  }

  FB_INLINE_FOR_SPEED bool on_tick(double due) {
    s_.now = due;
    const bool is_period = due == s_.tick;
    if (is_period) {
      s_.tick = next_tick(0.0, plan_.step_period, due, true);
    }
    const bool steps = s_.fill > 0;
    if (steps ? make_step() && stop(StopReason::ServerSteps) : is_stalled()) {
      return true;
    }
    if (is_period && !steps) {
      s_.stop_until = plan_.restart ? s_.version : -1;
    }
    if (plan_.refill == 0 && (is_period || steps)) {
      refill();
    }
    return false;
  }

  // Counts what happens while nothing arrives in the buffer, or no step is made where all must be heard.
  FB_INLINE_FOR_SPEED bool is_stalled() { return ++s_.quiet > plan_.stall_limit && stop(StopReason::Stalled); }

  // Stops the running task that started first, if it is one of those to stop; its client starts again.
  FB_INLINE_FOR_SPEED bool stop_next() {
    const std::uint32_t slot_index = loop_.running_.first();
    if (slot_index == kNoSlot || queue_.payload(slot_index).version > s_.stop_until) {
      s_.stop_until = -1;
      return false;
    }
    if (is_stalled()) {
      return true;
    }
    Slot& slot = queue_.payload(slot_index);
    if constexpr (kStops) {
      if (slot.state == SlotState::Running || (slot.state == SlotState::Done && !slot.deferred)) {
        queue_.remove(slot_index);
      }
    }
    slot.deferred = false;
    leave(slot_index);
    write_row(slot, -1, s_.version - slot.version, TaskStatus::Stopped);
    if (clients_.tasks_left(slot.client)) {
      slot.state = SlotState::Restarting;
    } else {
      slot.state = SlotState::Free;
      clients_.template release<kMode, kPlain>(slot.client, s_.now);
    }
    queue_.put(Event::make(s_.now, kStart, s_.created++, slot_index));
    return s_.total_rows >= last_row_ && stop(StopReason::Arrivals);
  }

  // Open slots ask for clients, in the order in which they became free: at once while nothing else has this time.
  FB_INLINE_FOR_SPEED void refill() {
    for (const std::uint32_t slot_index : loop_.open_slots_) {
      if (is_alone()) {
        s_.last_start = s_.now;
        ask<false>(slot_index);
      } else {
        queue_.put(Event::make(s_.now, kStart, s_.created++, slot_index));
      }
    }
    loop_.open_slots_.clear();
  }

  // Whether nothing else happens at this time before a start that is created now.
  FB_INLINE_FOR_SPEED bool is_alone() {
    const std::uint64_t now = portable::detail::bits_of(s_.now);
    return all_have_asked() && s_.stop_until < 0 && next_tick_time() > s_.now && loop_.uplink_.next_time() > s_.now &&
           loop_.handled_.time_bits > now && queue_.top().time_bits > now;
  }

  // The client has done its work, or the server has handled the upload.
  FB_INLINE_FOR_SPEED bool on_part(const Event top) {
    const std::uint32_t slot_index = top.slot();
    Slot& slot = queue_.payload(slot_index);
    if (slot.state == SlotState::Running && !slot.cut) {
      if (loop_.uplink_.is_shared()) {
        slot.state = SlotState::Sending;
        loop_.uplink_.join(slot_index, s_.now, find_upload(slot), loop_.deadline_[slot_index]);
        return false;
      }
      if (joins_server(slot_index)) {
        return false;
      }
    }
    return on_end(top, slot_index);
  }

  // A transfer is complete, or given up.
  FB_INLINE_FOR_SPEED bool on_upload(const Event top) {
    const Uplink::Taken taken = loop_.uplink_.take();
    Slot& slot = queue_.payload(taken.slot);
    slot.state = SlotState::Running;
    if (!taken.complete) {
      slot.status = TaskStatus::TimedOut;
    } else if (joins_server(taken.slot)) {
      return false;
    }
    return on_end(top, taken.slot);
  }

  // Puts an upload that the server has to handle at the end of its line; returns whether it has to.
  FB_INLINE_FOR_SPEED bool joins_server(std::uint32_t slot_index) {
    Slot& slot = queue_.payload(slot_index);
    if (!plan_.needs_server || slot.status != TaskStatus::Used) {
      return false;
    }
    if (plan_.queues) {
      leave_queue(slot_index);
    }
    slot.state = SlotState::AtServer;
    loop_.server_line_.join(slot_index);
    if (loop_.server_line_.first() == slot_index) {
      handle(slot_index);
    }
    return true;
  }

  // The server begins with the upload of the slot.
  FB_INLINE_FOR_SPEED void handle(std::uint32_t slot_index) {
    loop_.handled_ = Event::make(s_.now + loop_.server_time_[slot_index], kEnd, s_.created++, slot_index);
  }

  // Takes the slot out of the server's line; if it was handled, the next one's turn comes.
  FB_INLINE_FOR_SPEED void leave_server(std::uint32_t slot_index) {
    const bool was_first = loop_.server_line_.first() == slot_index;
    loop_.server_line_.leave(slot_index);
    if (was_first) {
      loop_.handled_ = kNoEvent;
      if (loop_.server_line_.first() != kNoSlot) {
        handle(loop_.server_line_.first());
      }
    }
  }

  // The task of the slot, whose event was `top`, ends.
  FB_INLINE_FOR_SPEED bool on_end(const Event top, std::uint32_t slot_index) {
    if (!end_task(slot_index)) {
      return false;
    }
    bool steps = kPlain || plan_.trigger == Trigger::Buffer ? s_.fill == buffer_size_ : heard_steps_;
    if constexpr (kMode == Mode::Rounds) {
      if (steps || loop_.n_taken_ == 0) {
        steps = end_round();
      }
    }
    if constexpr (kClosed && !kPlain) {
      if (plan_.refill != 1) {
        loop_.open_slots_.push_back(slot_index);
      }
    }
    if (after_end(steps)) {
      return true;
    }
    if constexpr (kClosed) {
      if constexpr (!kPlain) {
        if (plan_.refill != 1) {
          const bool fits = loop_.open_slots_.size() >= static_cast<std::size_t>(plan_.refill);
          if (plan_.refill == 0 ? steps : fits) {
            refill();
          }
          return false;
        }
      }
      // If nothing else happens at this time, the request of the slot can be served at once.
      if (kPlain ? queue_.was_alone(top) && all_have_asked() : is_alone()) {
        if constexpr (!kPlain) {
          s_.last_start = s_.now;
        }
        ask<false>(slot_index);
      } else {
        queue_.put(Event::make(s_.now, kStart, s_.created++, slot_index));
      }
    } else if constexpr (kMode == Mode::OpenLoop) {
      loop_.free_slots_.push_back(slot_index);
    }
    return false;
  }

  // A round whose last tasks never end is over.
  FB_INLINE_FOR_SPEED bool on_endless_round() { return after_end(end_round()); }

  // A task starts after its wait, or a client is asked for.
  FB_INLINE_FOR_SPEED void on_start(const Event top) {
    s_.last_start = s_.now;
    const std::uint32_t slot_index = top.slot();
    if (slot_index != kNoSlot && queue_.payload(slot_index).state == SlotState::Waiting) {
      begin<false>(slot_index, queue_.payload(slot_index).start);
      return;
    }
    if constexpr (kStops) {
      if (slot_index != kNoSlot && queue_.payload(slot_index).state == SlotState::Restarting) {
        const std::uint32_t client = queue_.payload(slot_index).client;
        start_task<false>(client, clients_.template retake<kMode>(client), slot_index, s_.starts);
        return;
      }
    }
    if (top.kind() == static_cast<int>(kRetry)) {
      loop_.retry_time_ = kInfinity;
    }
    ask<false>(slot_index);
  }

  // Arrivals that are used, each followed by the next task of its slot, as long as none of the limits can be reached.
  // The columns that follow from the others are filled afterwards.
  FB_INLINE_FOR_SPEED void fast_stretch() {
    const std::int64_t end = stretch_end();
    const std::int64_t begin_row = rows_;
    const std::int64_t first_step = s_.version;
    const std::int64_t first_step_end = rows_ + buffer_size_ - s_.fill;
    while (rows_ < end) {
      const Event top = queue_.top();
      if (top.time_bits > horizon_ || top.kind() != static_cast<int>(kEnd)) {
        break;
      }
      const std::uint32_t slot_index = queue_.top_slot();
      queue_.take();
      s_.now = top.time();
      const Slot& slot = queue_.payload(slot_index);
      clients_.template release<kMode, kPlain>(slot.client, s_.now);
      out_.client[rows_] = static_cast<std::int32_t>(slot.client);
      out_.task[rows_] = slot.task;
      out_.version[rows_] = slot.version;
      out_.start_time[rows_] = slot.start;
      out_.arrive_time[rows_] = s_.now;
      ++rows_;
      ++s_.total_rows;
      if (++s_.fill == buffer_size_) {
        make_step();
      }
      if (queue_.was_alone(top)) {
        if (loop_.keeps_clients_ && slot.ahead < 0.0) {
          loop_.draw_slots_ahead(slot_index);
        }
        ask<true>(slot_index);
      } else {
        queue_.payload(slot_index).state = SlotState::Free;
        queue_.put(Event::make(s_.now, kStart, s_.created++, slot_index));
      }
    }
    fill_used_rows(begin_row, first_step, first_step_end);
  }

  // The row before which a fast stretch ends, so that the columns have room and the last step and row come after it.
  FB_INLINE_FOR_SPEED std::int64_t stretch_end() const {
    const auto arrivals_until = [this](std::int64_t more_steps) {
      std::int64_t arrivals;
      return __builtin_mul_overflow(more_steps, buffer_size_, &arrivals) ? INT64_MAX : arrivals - s_.fill;
    };
    const std::int64_t to_last_step =
        plan_.server_steps >= 0 ? arrivals_until(plan_.server_steps - s_.version) - 1 : INT64_MAX;
    return rows_ + std::min({kStretchRows, out_.n_rows - rows_, last_row_ - s_.total_rows - 1,
                             arrivals_until(out_.n_steps - 1 - steps_), to_last_step});
  }

  // step, staleness and status of the rows from `begin` on, all used; the first of them enter `step`, up to step_end.
  FB_INLINE_FOR_SPEED void fill_used_rows(std::int64_t begin, std::int64_t step, std::int64_t step_end) const {
    for (std::int64_t i = begin; i < rows_; ++step, step_end += buffer_size_) {
      for (const std::int64_t until = std::min(rows_, step_end); i < until; ++i) {
        out_.step[i] = step;
        out_.staleness[i] = step - out_.version[i];
        out_.status[i] = static_cast<std::uint8_t>(TaskStatus::Used);
      }
    }
  }

  // The task of the slot ends. Returns false if its arrival waits for the next buffer.
  FB_INLINE_FOR_SPEED bool end_task(std::uint32_t slot_index) {
    Slot& slot = queue_.payload(slot_index);
    const std::int64_t staleness = s_.version - slot.version;
    TaskStatus status = slot.status;
    if (staleness > max_staleness_ && status == TaskStatus::Used) {
      status = TaskStatus::TooStale;
    }
    const bool used = status == TaskStatus::Used;
    if constexpr (!kPlain) {
      if (plan_.distinct_clients && used) {
        if (loop_.entered_[slot.client] == s_.version) {
          loop_.deferred_.push_back(slot_index);
          slot.deferred = true;
          if (slot.state == SlotState::AtServer) {
            leave_server(slot_index);
          }
          slot.state = SlotState::Done;
          return false;
        }
        loop_.entered_[slot.client] = s_.version;
      }
      leave(slot_index);
    }
    clients_.template release<kMode, kPlain>(slot.client, s_.now);
    slot.state = SlotState::Free;
    write_row(slot, used ? s_.version : -1, staleness, status);
    s_.fill += used ? 1 : 0;
    s_.quiet = used && (kPlain || plan_.trigger == Trigger::Buffer) ? 0 : s_.quiet;
    if constexpr (!kPlain) {
      if (used && s_.fill == 1) {
        set_trigger();
      }
      heard_steps_ =
          used && plan_.trigger != Trigger::Buffer && loop_.hearing_.enter(slot.client, s_.fill, buffer_size_);
    }
    return true;
  }

  // The task of the slot is over.
  FB_INLINE_FOR_SPEED void leave(std::uint32_t slot_index) {
    --loop_.n_taken_;
    if (loop_.stops()) {
      loop_.running_.leave(slot_index);
    }
    const SlotState state = queue_.payload(slot_index).state;
    if (state == SlotState::Sending) {
      loop_.uplink_.leave(slot_index, s_.now);
    }
    if (state == SlotState::AtServer) {
      leave_server(slot_index);
    } else if (plan_.queues) {
      leave_queue(slot_index);
    }
  }

  // Takes the slot out of its client's queue; if the client worked on it, it turns to the next one.
  FB_INLINE_FOR_SPEED void leave_queue(std::uint32_t slot_index) {
    const std::uint32_t client = queue_.payload(slot_index).client;
    const std::uint32_t next = loop_.queues_.leave(client, slot_index);
    if (next != kNoSlot) {
      queue_.payload(next).state = SlotState::Running;
      const double begin =
          plan_.window_policy == WindowPolicy::None ? s_.now : clients_.windows().next_open(client, s_.now);
      work<false>(next, begin, loop_.queued_duration_[next]);
    }
  }

  // When the buffer, which has its first arrival, makes a step although it is not full.
  FB_INLINE_FOR_SPEED void set_trigger() {
    const bool passed = s_.last_start == s_.now;
    if (plan_.max_wait < kInfinity) {
      s_.trigger = next_tick(s_.last_step, plan_.max_wait, s_.now, passed);
    }
    if (plan_.step_period < kInfinity && !loop_.always_ticks_) {
      s_.trigger = std::min(s_.trigger, next_tick(0.0, plan_.step_period, s_.now, passed));
    }
  }

  // Discards the tasks that are left of the round and asks for the next round. Returns whether the server steps.
  FB_INLINE_FOR_SPEED bool end_round() {
    for (std::uint32_t i = 1; i < queue_.n_slots(); ++i) {
      Slot& slot = queue_.payload(i);
      if (slot.state == SlotState::Free) {
        continue;
      }
      if (slot.state == SlotState::Waiting) {  // it starts and ends here
        slot.start = s_.now;
        ++s_.started;
      }
      slot.version = s_.version;
      slot.state = SlotState::Free;
      if (!slot.endless) {
        clients_.template release<kMode, kPlain>(slot.client, s_.now);
      }
      write_row(slot, -1, 0, TaskStatus::Discarded);
    }
    loop_.n_taken_ = 0;
    queue_.clear();
    loop_.uplink_.clear();
    loop_.server_line_.clear();
    loop_.handled_ = kNoEvent;
    queue_.put(Event::make(s_.now, kStart, s_.created++, kNoSlot));
    return s_.fill > 0;
  }

  // The step that the end of a task makes, if it makes one; true if the schedule ends with it.
  FB_INLINE_FOR_SPEED bool after_end(bool steps) {
    if (steps && make_step()) {
      return stop(StopReason::ServerSteps);
    }
    return s_.total_rows >= last_row_ && stop(StopReason::Arrivals);
  }

  // Returns whether this was the last step.
  FB_INLINE_FOR_SPEED bool make_step() {
    out_.step_time[steps_] = s_.now;
    out_.started[steps_] = s_.started;
    out_.step_rows[steps_] = s_.total_rows;
    ++steps_;
    ++s_.version;
    s_.fill = 0;
    s_.started = 0;
    s_.last_step = s_.now;
    s_.trigger = kInfinity;
    if constexpr (kPlain) {
      return s_.version == plan_.server_steps;
    } else {
      if (s_.version == plan_.server_steps) {
        return true;
      }
      follow_step();
      return false;
    }
  }

  // What a step brings about: tasks to be stopped, arrivals that waited for the next buffer, slots to be refilled.
  FB_INLINE_FOR_SPEED void follow_step() {
    s_.quiet = 0;
    loop_.hearing_.on_step();
    if (loop_.stops()) {
      s_.stop_until = std::max<std::int64_t>(s_.version - plan_.stop_stale, -1);
    }
    for (const std::uint32_t slot_index : loop_.deferred_) {
      Slot& slot = queue_.payload(slot_index);
      if (slot.version > s_.stop_until) {
        slot.deferred = false;
        queue_.put(Event::make(s_.now, kEnd, s_.created++, slot_index));
      }
    }
    loop_.deferred_.clear();
  }

  FB_INLINE_FOR_SPEED void write_row(const Slot& slot, std::int64_t step, std::int64_t staleness, TaskStatus status) {
    out_.client[rows_] = static_cast<std::int32_t>(slot.client);
    out_.task[rows_] = slot.task;
    out_.version[rows_] = slot.version;
    out_.step[rows_] = step;
    out_.staleness[rows_] = staleness;
    out_.start_time[rows_] = slot.start;
    out_.arrive_time[rows_] = s_.now;
    out_.status[rows_] = static_cast<std::uint8_t>(status);
    ++rows_;
    ++s_.total_rows;
  }

  // A client is asked for: by a slot, by a round, by a start of the open loop, or by a retry of the waiting slots.
  template <bool kFast>
  FB_INLINE_FOR_SPEED void ask(std::uint32_t slot_index) {
    if constexpr (kMode == Mode::SlotIsClient) {
      if (kPlain || clients_.tasks_left(slot_index - 1)) {
        assign<kFast>(slot_index - 1, slot_index, 0);
      }
    } else if constexpr (kPlain) {
      const auto client = static_cast<std::uint32_t>(draw());
      assign<kFast>(client, slot_index, s_.starts++);
    } else {
      clients_.cross_boundaries(s_.now);
      if constexpr (kMode == Mode::Pool) {
        serve_line(slot_index);
      } else if constexpr (kMode == Mode::Rounds) {
        start_round();
      } else {
        start_of_open_loop();
      }
    }
  }

  FB_INLINE_FOR_SPEED std::int64_t draw() { return clients_.template draw<kMode, kRecorded, kPlain>(s_.starts); }

  // The slot, if there is one, joins the line; then the line is served, oldest first, as long as clients are eligible.
  FB_INLINE_FOR_SPEED void serve_line(std::uint32_t slot_index) {
    std::deque<std::uint32_t>& line = loop_.line_;
    if (slot_index != kNoSlot) {
      if (line.empty()) {
        const std::int64_t client = draw();
        if (client >= 0) {
          assign<false>(static_cast<std::uint32_t>(client), slot_index, s_.starts++);
          return;
        }
      }
      line.push_back(slot_index);
    }
    while (!line.empty()) {
      const std::int64_t client = draw();
      if (client < 0) {
        break;
      }
      const std::uint32_t first = line.front();
      line.pop_front();
      assign<false>(static_cast<std::uint32_t>(client), first, s_.starts++);
    }
    if (!line.empty()) {
      const double opening = clients_.next_opening();
      if (opening < loop_.retry_time_) {
        queue_.put(Event::make(opening, kRetry, s_.created++, kNoSlot));
        loop_.retry_time_ = opening;
      }
    }
  }

  FB_INLINE_FOR_SPEED void start_round() {
    for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(plan_.n_slots); ++i) {
      const std::int64_t client = draw();
      if (client < 0) {
        break;
      }
      assign<false>(static_cast<std::uint32_t>(client), i, s_.starts++);
    }
  }

  // A start that finds no eligible client is lost.
  FB_INLINE_FOR_SPEED void start_of_open_loop() {
    const std::int64_t client = draw();
    if (client >= 0) {
      assign<false>(static_cast<std::uint32_t>(client), loop_.free_slot(), s_.starts);
    }
    ++s_.starts;
    if (!clients_.all_spent()) {
      loop_.next_start_ = Event::make(loop_.open_start(s_.now, s_.starts), kStart, s_.created++, kNoSlot);
    }
  }

  // The client takes the slot for its next task, which starts after its wait and inside a window.
  template <bool kFast>
  FB_INLINE_FOR_SPEED void assign(std::uint32_t client, std::uint32_t slot_index, std::uint64_t start) {
    start_task<kFast>(client, clients_.template take<kMode, kRecorded, kPlain>(client), slot_index, start);
  }

  template <bool kFast>
  FB_INLINE_FOR_SPEED void start_task(std::uint32_t client, std::uint32_t task, std::uint32_t slot_index,
                                      std::uint64_t start) {
    if constexpr (!kPlain) {
      ++loop_.n_taken_;
      if (plan_.needs_server) {
        loop_.server_time_[slot_index] = clients_.server_time(start, client, task);
      }
    }
    Slot& slot = queue_.payload(slot_index);
    const double ahead = slot.client == client && slot.task + 1 == task ? slot.ahead : -1.0;
    slot.ahead = -1.0;
    slot.client = client;
    slot.task = task;
    double wait;
    double duration = ahead;
    if constexpr (kFast) {
      if (duration < 0.0) {
        find_delays(client, task, start, wait, duration);
      }
      begin<kFast>(slot_index, duration);
      return;
    }
    find_delays(client, task, start, wait, duration);
    double ready = s_.now + wait;
    if constexpr (!kPlain) {
      if (plan_.window_policy != WindowPolicy::None) {
        ready = clients_.windows().next_open(client, ready);
      }
    }
    if (ready > s_.now) {
      slot.state = SlotState::Waiting;
      slot.endless = ready == kInfinity;
      slot.start = duration;
      queue_.put(Event::make(ready, kStart, s_.created++, slot_index));
    } else {
      begin<kFast>(slot_index, duration);
    }
  }

  // Wait and duration of a task: recorded, drawn ahead, or drawn now.
  FB_INLINE_FOR_SPEED void find_delays(std::uint32_t client, std::uint32_t task, std::uint64_t start, double& wait_out,
                                       double& duration_out) const {
    if constexpr (kRecorded) {
      const std::int64_t row = loop_.recorded_row(client, task);
      wait_out = plan_.row_wait[row];
      duration_out = plan_.row_duration[row];
    } else if (!kDrawn || !clients_.delays_ahead(start, client, task, wait_out, duration_out)) {
      wait_out = draw_wait(plan_.model, client, task);
      duration_out = draw_duration(plan_.model, client, task);
    }
  }

  // What the upload of a task takes alone, where uploads share a link.
  FB_INLINE_FOR_SPEED double find_upload(const Slot& slot) const {
    if constexpr (kRecorded) {
      return plan_.row_upload[loop_.recorded_row(slot.client, slot.task)];
    }
    return draw_upload(plan_.upload, plan_.seed, slot.client, slot.task);
  }

  // The task of the slot starts now, on the current version; if its client is busy, it waits in the queue.
  template <bool kFast>
  FB_INLINE_FOR_SPEED void begin(std::uint32_t slot_index, double duration) {
    Slot& slot = queue_.payload(slot_index);
    slot.state = SlotState::Running;
    slot.version = s_.version;
    slot.start = s_.now;
    ++s_.started;
    if constexpr (!kPlain) {
      if (loop_.stops()) {
        loop_.running_.join(slot_index);
      }
      if (plan_.queues && !loop_.queues_.join(slot.client, slot_index)) {
        slot.state = SlotState::Queued;
        loop_.queued_duration_[slot_index] = duration;
        return;
      }
    }
    work<kFast>(slot_index, s_.now, duration);
  }

  // The client works on the task of the slot from `begin` on.
  template <bool kFast>
  FB_INLINE_FOR_SPEED void work(std::uint32_t slot_index, double begin, double duration) {
    Slot& slot = queue_.payload(slot_index);
    double end = find_end(slot, begin, duration);
    if constexpr (!kFast) {
      if (end > begin + timeout_) {
        end = begin + timeout_;
        slot.status = TaskStatus::TimedOut;
        slot.cut = true;
      }
      if constexpr (!kPlain) {
        if (loop_.uplink_.is_shared()) {
          loop_.deadline_[slot_index] = begin + timeout_;
        }
      }
    }
    slot.endless = end == kInfinity;
    queue_.put(Event::make(end, kEnd, s_.created++, slot_index));
  }

  // When a task that its client works on from `begin` on ends; writes how: Used stands for an arrival.
  FB_INLINE_FOR_SPEED double find_end(Slot& slot, double begin, double duration) const {
    slot.status = TaskStatus::Used;
    if constexpr (!kPlain) {
      slot.cut = false;
      if (begin == kInfinity) {
        return begin;
      }
    }
    if constexpr (kRecorded) {
      if (plan_.row_ok[loop_.recorded_row(slot.client, slot.task)] == 0) {
        slot.status = TaskStatus::Failed;
      }
    }
    const double end = begin + duration;
    if constexpr (!kPlain) {
      if (plan_.window_policy == WindowPolicy::Pause) {
        return clients_.windows().work_until(slot.client, begin, duration);
      }
      if (plan_.window_policy == WindowPolicy::Abort) {
        const double close = clients_.windows().close(slot.client, begin);
        if (end > close) {
          slot.status = TaskStatus::Failed;
          slot.cut = true;
          return close;
        }
      }
    }
    return end;
  }

  LoopOver& loop_;
  const SchedulePlan& plan_;
  ClientSelection& clients_;
  Queue& queue_;
  const ScheduleColumns out_;
  const std::uint64_t horizon_;  // bits of the last time
  const std::int64_t max_staleness_;
  const std::int64_t last_row_;
  const std::int64_t buffer_size_;
  const double timeout_;
  Counters s_;
  bool heard_steps_ = false;  // whether the last task that ended makes a step, where all clients must be heard
  std::int64_t rows_ = 0;     // written in this call
  std::int64_t steps_ = 0;    // written in this call
  StopReason reason_ = StopReason::Full;
};

template <class Queue>
std::vector<TaskInFlight> LoopOver<Queue>::in_flight() const {
  std::vector<TaskInFlight> tasks;
  for (std::uint32_t i = 1; i < queue_.n_slots(); ++i) {
    const Slot& slot = queue_.payload(i);
    if (slot.state >= SlotState::Queued) {
      tasks.push_back({static_cast<std::int32_t>(slot.client), slot.task, slot.version, slot.start});
    }
  }
  return tasks;
}

std::unique_ptr<EventLoop> make_loop(const SchedulePlan& plan) {
  if (plan.stop_stale > 0 && plan.n_slots > kernels().schedule.most_listed_slots) {
    return std::make_unique<LoopOver<RemovingCalendar>>(plan);
  }
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
    throw std::invalid_argument("columns: expected room for the rows of one event");
  }
  return loop_->run(out);
}

double ScheduleResolver::time() const { return loop_->time(); }

std::int64_t ScheduleResolver::started() const { return loop_->started(); }

std::vector<TaskInFlight> ScheduleResolver::in_flight() const { return loop_->in_flight(); }

}  // namespace fedbuff
