// fedbuff for C++17: owners of the C ABI's handles, and exceptions instead of status codes. Header only.
//
// Owners move and do not copy. A model is float or double; deltas are spans of it, or of int32_t or int64_t where the
// rule has a unit. After an exception nothing has changed. What was moved from or closed throws fedbuff::Error.
#ifndef FEDBUFF_HPP
#define FEDBUFF_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fedbuff/fedbuff.h"

// The inline namespace keeps these names apart from those inside the library.
namespace fedbuff {
inline namespace v1 {

class Error : public std::runtime_error {
 public:
  explicit Error(fb_status status) : std::runtime_error(fb_status_text(status)), status_(status) {}
  Error(fb_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  fb_status status() const noexcept { return status_; }

 private:
  fb_status status_;
};

inline void check(fb_status status) {
  if (status != FB_OK) {
    throw Error(status);
  }
}

// The same for calls that say more by fb_error_text.
inline void check_said(fb_status status) {
  if (status != FB_OK) {
    const std::string text = fb_error_text();
    throw text.empty() ? Error(status) : Error(status, text);
  }
}

// A view of contiguous numbers that it does not own.
template <class T>
class Span {
 public:
  Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <class Container, class = decltype(std::declval<Container&>().data() + std::declval<Container&>().size())>
  Span(Container&& container) noexcept : Span(container.data(), container.size()) {}  // NOLINT: as std::span

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size_; }
  T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_;
  std::size_t size_;
};

template <class T>
constexpr fb_dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return FB_F32;
  } else if constexpr (std::is_same_v<T, double>) {
    return FB_F64;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return FB_I32;
  } else {
    static_assert(std::is_same_v<T, std::int64_t>, "float, double, int32_t or int64_t");
    return FB_I64;
  }
}

namespace detail {

// A handle that is destroyed with its owner.
template <class Handle, void (*destroy)(Handle**)>
class Owner {
 public:
  Owner() = default;
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      destroy(&handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Owner() { destroy(&handle_); }
  Handle* get() const noexcept { return handle_; }
  Handle** out() noexcept { return &handle_; }

 private:
  Handle* handle_ = nullptr;
};

template <class T>
std::int64_t size_of(const T& values) {
  return static_cast<std::int64_t>(values.size());
}

}  // namespace detail

inline fb_rule rule(std::int64_t buffer_size, double lr) {
  fb_rule made = FB_RULE_INIT;
  made.buffer_size = buffer_size;
  made.lr = lr;
  return made;
}

// The host's threads: called with n and a function of 0 .. n - 1, returns when all calls have. It may throw.
class Executor {
 public:
  using Run = std::function<void(std::int64_t n, const std::function<void(std::int64_t)>& work)>;
  explicit Executor(Run run) : run_(std::make_unique<Run>(std::move(run))) {}

  fb_executor c() const {
    fb_executor made = FB_EXECUTOR_INIT;
    made.context = run_.get();
    made.run = [](void* context, std::int64_t n, fb_work work, void* argument) noexcept -> std::int32_t {
      try {
        (*static_cast<Run*>(context))(n, [=](std::int64_t part) { work(argument, part); });
        return 0;
      } catch (...) {
        return 1;
      }
    };
    return made;
  }

 private:
  std::unique_ptr<Run> run_;
};

// A model that does not change for as long as it is held.
template <class T>
class Model {
 public:
  Model(fb_model* model, std::size_t size) noexcept : model_(model), size_(size) {}
  Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)), size_(other.size_) {}
  Model& operator=(Model&& other) noexcept {
    std::swap(model_, other.model_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Model() { fb_model_release(model_); }

  const T* data() const noexcept { return static_cast<const T*>(fb_model_data(model_)); }
  std::size_t size() const noexcept { return model_ == nullptr ? 0 : size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size(); }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }

 private:
  fb_model* model_;
  std::size_t size_;
};

template <class T>
struct Download {
  std::int64_t version;
  Model<T> w;
};

// FedBuff's server. Thread-safe.
template <class T>
class Server {
 public:
  Server(const fb_rule& rule, Span<const T> w0) {
    check_said(fb_server_create(&rule, dtype_of<T>(), detail::size_of(w0), w0.data(), server_.out()));
  }

  std::int64_t version() const noexcept { return fb_server_version(server_.get()); }
  std::int64_t fill() const noexcept { return fb_server_fill(server_.get()); }
  std::int64_t dropped() const noexcept { return fb_server_dropped(server_.get()); }
  std::int64_t outstanding() const noexcept { return fb_server_outstanding(server_.get()); }
  std::int64_t live_models() const noexcept { return fb_server_live_models(server_.get()); }
  std::size_t dim() const noexcept { return static_cast<std::size_t>(fb_server_dim(server_.get())); }

  Model<T> w() const {
    fb_model* model = fb_server_model(server_.get());
    check(model == nullptr ? FB_ERR_ARGUMENT : FB_OK);
    return {model, dim()};
  }
  Download<T> download() {
    std::int64_t version = -1;
    fb_model* model = nullptr;
    check(fb_server_download(server_.get(), &version, &model));
    return {version, {model, dim()}};
  }
  // Into memory of the caller's; returns the version.
  std::int64_t download_to(Span<T> w_out) {
    std::int64_t version = -1;
    check(fb_server_download_to(server_.get(), dtype_of<T>(), detail::size_of(w_out), w_out.data(), &version));
    return version;
  }
  void cancel(std::int64_t version) { check(fb_server_cancel(server_.get(), version)); }
  void set_staleness(Span<const double> weight) {
    check(fb_server_set_staleness(server_.get(), weight.data(), detail::size_of(weight)));
  }
  void set_staleness_at(std::int64_t staleness, double weight) {
    check(fb_server_set_staleness_at(server_.get(), staleness, weight));
  }
  std::int64_t take_ticket() {
    std::int64_t ticket = FB_NO_TICKET;
    check(fb_server_take_ticket(server_.get(), &ticket));
    return ticket;
  }
  void cancel_ticket(std::int64_t ticket) { check(fb_server_cancel_ticket(server_.get(), ticket)); }

  // D is T, or int32_t or int64_t where the rule has a unit.
  template <class D = T>
  fb_outcome upload(Span<const D> delta, std::int64_t version, double e = 1.0, std::int64_t ticket = FB_NO_TICKET) {
    std::int32_t outcome = FB_ADDED;
    check(fb_server_upload(server_.get(), dtype_of<D>(), detail::size_of(delta), delta.data(), version, e, ticket,
                           &outcome));
    return static_cast<fb_outcome>(outcome);
  }

  // For rules with a table: the delta of this client.
  fb_outcome upload_from(Span<const T> delta, std::int64_t version, std::int64_t client, double e = 1.0,
                         std::int64_t ticket = FB_NO_TICKET) {
    std::int32_t outcome = FB_ADDED;
    check(fb_server_upload_from(server_.get(), dtype_of<T>(), detail::size_of(delta), delta.data(), version, e, client,
                                ticket, &outcome));
    return static_cast<fb_outcome>(outcome);
  }

  // For rules with a control variate: `change` (dim) is what the client's state has changed by.
  fb_outcome upload_change(Span<const T> delta, Span<const T> change, std::int64_t version, double e = 1.0,
                           std::int64_t ticket = FB_NO_TICKET) {
    check(delta.size() == change.size() ? FB_OK : FB_ERR_SIZE);
    std::int32_t outcome = FB_ADDED;
    check(fb_server_upload_change(server_.get(), dtype_of<T>(), detail::size_of(delta), delta.data(), change.data(),
                                  version, e, ticket, &outcome));
    return static_cast<fb_outcome>(outcome);
  }
  // Models that came back in parts; each upload has its status.
  void upload_models(Span<fb_model_upload> uploads) {
    check(fb_server_upload_models(server_.get(), dtype_of<T>(), static_cast<std::int64_t>(dim()),
                                  detail::size_of(uploads), uploads.data()));
  }

  // Steps with what is in the buffer; false where it is empty.
  bool step() {
    const fb_status status = fb_server_step(server_.get());
    if (status != FB_ERR_EMPTY) {
      check(status);
    }
    return status == FB_OK;
  }
  // Versions whose tasks the rule stops, with how many are due on each.
  std::vector<std::pair<std::int64_t, std::int64_t>> overdue() const {
    std::vector<std::int64_t> versions, tasks;
    std::int64_t n = fb_server_overdue(server_.get(), 0, nullptr, nullptr);
    while (n > static_cast<std::int64_t>(versions.size())) {  // others may download meanwhile
      versions.resize(static_cast<std::size_t>(n));
      tasks.resize(static_cast<std::size_t>(n));
      n = fb_server_overdue(server_.get(), n, versions.data(), tasks.data());
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (std::size_t i = 0; static_cast<std::int64_t>(i) < n; ++i) {
      found.emplace_back(versions[i], tasks[i]);
    }
    return found;
  }

  void set_executor(Executor executor) {
    const fb_executor c = executor.c();
    check(fb_server_set_executor(server_.get(), &c));
    executor_ = std::move(executor);
  }
  void close() { check(fb_server_close(server_.get())); }
  // Memory for the rows of a table, which must outlive the server; before the first upload.
  void set_table(void* memory, std::int64_t bytes) { check(fb_server_set_table(server_.get(), memory, bytes)); }

  // A second server in the same state, without tickets out and executor.
  Server clone() const {
    Server made;
    check(fb_server_clone(server_.get(), made.server_.out()));
    return made;
  }
  // The state, to save; its pointers hold until the server's next call. Room for n_due and n_arrays is the caller's.
  void get_state(fb_server_state& state) { check(fb_server_get_state(server_.get(), &state)); }
  static Server restored(const fb_rule& rule, std::size_t dim, const fb_server_state& state) {
    Server made;
    check_said(fb_server_restore(&rule, dtype_of<T>(), static_cast<std::int64_t>(dim), &state, made.server_.out()));
    return made;
  }
  fb_server* get() const noexcept { return server_.get(); }

 private:
  Server() = default;

  std::optional<Executor> executor_;  // outlives the server, which is destroyed first
  detail::Owner<fb_server, fb_server_destroy> server_;
};

// A sum of deltas, for those who write their own server. Thread-safe.
template <class T>
class DeltaBuffer {
 public:
  explicit DeltaBuffer(std::size_t dim, double unit = 0.0) {
    check_said(fb_buffer_create(dtype_of<T>(), static_cast<std::int64_t>(dim), unit, buffer_.out()));
  }

  template <class D = T>
  void add(Span<const D> delta, double weight = 1.0, std::int64_t ticket = FB_NO_TICKET) {
    check(fb_buffer_add(buffer_.get(), dtype_of<D>(), detail::size_of(delta), delta.data(), weight, ticket));
  }
  std::int64_t take_ticket() {
    std::int64_t ticket = FB_NO_TICKET;
    check(fb_buffer_take_ticket(buffer_.get(), &ticket));
    return ticket;
  }
  void cancel_ticket(std::int64_t ticket) { check(fb_buffer_cancel_ticket(buffer_.get(), ticket)); }
  std::int64_t count() const noexcept { return fb_buffer_count(buffer_.get()); }
  std::size_t dim() const noexcept { return static_cast<std::size_t>(fb_buffer_dim(buffer_.get())); }
  // The sum, until the buffer's next change; S is T, or int64_t where there is a unit.
  template <class S = T>
  Span<const S> sum() {
    const auto* data = static_cast<const S*>(fb_buffer_sum(buffer_.get()));
    check(data == nullptr ? FB_ERR_ARGUMENT : FB_OK);
    return {data, dim()};
  }
  void set_executor(Executor executor) {
    const fb_executor c = executor.c();
    check(fb_buffer_set_executor(buffer_.get(), &c));
    executor_ = std::move(executor);
  }
  void clear() { check(fb_buffer_clear(buffer_.get())); }
  // w <- w - lr * sum; empties the buffer.
  void step(Span<T> w, double lr) {
    check(fb_buffer_step(buffer_.get(), dtype_of<T>(), detail::size_of(w), w.data(), lr, w.data()));
  }
  void close() { check(fb_buffer_close(buffer_.get())); }
  fb_buffer* get() const noexcept { return buffer_.get(); }

 private:
  std::optional<Executor> executor_;  // outlives the buffer, which is destroyed first
  detail::Owner<fb_buffer, fb_buffer_destroy> buffer_;
};

// What a client does with the model that it downloaded. Thread-safe. The problem's arrays must outlive it.
template <class T>
class LocalSGD {
 public:
  using Gradient =
      std::function<void(std::int64_t client, Span<const std::int64_t> rows, Span<const T> w, Span<T> out)>;

  LocalSGD(const fb_problem& problem, const fb_local_config& config) {
    check_said(fb_local_create(&problem, &config, dtype_of<T>(), local_.out()));
  }
  // The host's own gradient: the mean over the given rows of the client, into `out`.
  LocalSGD(Gradient gradient, std::size_t dim, Span<const std::int64_t> samples, const fb_local_config& config)
      : host_(std::make_unique<Host>(Host{std::move(gradient), dim})) {
    check_said(fb_local_create_custom(&call, host_.get(), detail::size_of(samples), samples.data(), &config,
                                      dtype_of<T>(), static_cast<std::int64_t>(dim), local_.out()));
  }

  std::size_t dim() const noexcept { return static_cast<std::size_t>(fb_local_dim(local_.get())); }
  std::int64_t n_clients() const noexcept { return fb_local_n_clients(local_.get()); }
  // `version`: that of w, where the step size follows it.
  void delta(std::int64_t client, std::uint32_t task, Span<const T> w, Span<T> delta_out, std::int64_t version = 0) {
    check(w.size() == delta_out.size() ? FB_OK : FB_ERR_SIZE);
    check(fb_local_delta_at(local_.get(), dtype_of<T>(), detail::size_of(w), client, task, version, w.data(),
                            delta_out.data()));
  }
  // With a method that keeps a state of clients: `state` is the client's, and is changed; `control` the server's, empty
  // where the method has none.
  void delta(std::int64_t client, std::uint32_t task, Span<const T> w, Span<const T> control, Span<T> state,
             Span<T> delta_out, std::int64_t version = 0) {
    check(w.size() == delta_out.size() && w.size() == state.size() ? FB_OK : FB_ERR_SIZE);
    check(fb_local_delta_state(local_.get(), dtype_of<T>(), detail::size_of(w), client, task, version, w.data(),
                               control.size() == 0 ? nullptr : control.data(), state.data(), delta_out.data()));
  }
  fb_local* get() const noexcept { return local_.get(); }

 private:
  struct Host {
    Gradient gradient;
    std::size_t dim;
  };
  static std::int32_t call(std::int64_t client, std::int64_t n_rows, const std::int64_t* rows, const void* w,
                           void* gradient_out, void* context) {
    const auto* host = static_cast<Host*>(context);
    host->gradient(client, Span<const std::int64_t>(rows, static_cast<std::size_t>(n_rows)),
                   Span<const T>(static_cast<const T*>(w), host->dim),
                   Span<T>(static_cast<T*>(gradient_out), host->dim));
    return 0;
  }

  std::unique_ptr<Host> host_;
  detail::Owner<fb_local, fb_local_destroy> local_;
};

// Events in the order of time, then kind, then creation. For one thread at a time.
class EventQueue {
 public:
  EventQueue() { check(fb_queue_create(queue_.out())); }

  void push(double time, std::int64_t item, std::int32_t kind = 0) {
    check(fb_queue_push(queue_.get(), time, item, kind));
  }
  // The same, with a ticket for `cancel`.
  std::int64_t push_ticket(double time, std::int64_t item, std::int32_t kind = 0) {
    std::int64_t ticket = 0;
    check(fb_queue_push_ticket(queue_.get(), time, item, kind, &ticket));
    return ticket;
  }
  // The event of this ticket will not come out; false where it did, or was cancelled.
  bool cancel(std::int64_t ticket) {
    const fb_status status = fb_queue_cancel(queue_.get(), ticket);
    if (status != FB_ERR_TICKET) {
      check(status);
    }
    return status == FB_OK;
  }
  fb_event pop() {
    fb_event event;
    check(fb_queue_pop(queue_.get(), &event));
    return event;
  }
  fb_event peek() const {
    fb_event event;
    check(fb_queue_peek(queue_.get(), &event));
    return event;
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(fb_queue_size(queue_.get())); }
  bool empty() const noexcept { return size() == 0; }
  void clear() { check(fb_queue_clear(queue_.get())); }
  fb_queue* get() const noexcept { return queue_.get(); }

 private:
  detail::Owner<fb_queue, fb_queue_destroy> queue_;
};

struct FlyingTask {
  std::int32_t client;
  std::uint32_t task;
  std::int64_t version;
  double start_time;
};

// Rows and steps of a schedule.
struct ScheduleRows {
  std::vector<std::int32_t> client;
  std::vector<std::uint32_t> task;
  std::vector<std::int64_t> version, step, staleness;
  std::vector<double> start_time, arrive_time;
  std::vector<std::uint8_t> status;  // fb_task_status
  std::vector<double> step_time;
  std::vector<std::int64_t> started, step_rows;

  void resize(std::size_t n_rows, std::size_t n_steps) {
    client.resize(n_rows), task.resize(n_rows), version.resize(n_rows), step.resize(n_rows);
    staleness.resize(n_rows), start_time.resize(n_rows), arrive_time.resize(n_rows), status.resize(n_rows);
    step_time.resize(n_steps), started.resize(n_steps), step_rows.resize(n_steps);
  }
  // A view, until the next change.
  fb_columns columns() {
    fb_columns c = FB_COLUMNS_INIT;
    c.n_rows = detail::size_of(client), c.n_steps = detail::size_of(step_time);
    c.client = client.data(), c.task = task.data(), c.version = version.data(), c.step = step.data();
    c.staleness = staleness.data(), c.start_time = start_time.data(), c.arrive_time = arrive_time.data();
    c.status = status.data(), c.step_time = step_time.data(), c.started = started.data();
    c.step_rows = step_rows.data();
    return c;
  }
};

// Who arrives when. For one thread at a time. The arrays of delays and config must outlive it.
class Schedule {
 public:
  Schedule(const fb_delays& delays, const fb_schedule_config& config) {
    check_said(fb_schedule_create(&delays, &config, schedule_.out()));
  }

  std::int64_t rows_needed() const noexcept { return fb_schedule_rows_needed(schedule_.get()); }
  double time() const noexcept { return fb_schedule_time(schedule_.get()); }
  // The next rows, about so many, in the place of those in `rows_out`; call again after FB_SCHEDULE_MORE.
  fb_schedule_end next(ScheduleRows& rows_out, std::size_t room = 65536) {
    room = room < static_cast<std::size_t>(rows_needed()) ? static_cast<std::size_t>(rows_needed()) : room;
    rows_out.resize(room, room + 2);
    const fb_columns columns = rows_out.columns();
    std::int64_t n_rows = 0, n_steps = 0;
    std::int32_t end = FB_SCHEDULE_MORE;
    check_said(fb_schedule_next(schedule_.get(), &columns, &n_rows, &n_steps, &end));
    rows_out.resize(static_cast<std::size_t>(n_rows), static_cast<std::size_t>(n_steps));
    return static_cast<fb_schedule_end>(end);
  }
  std::vector<FlyingTask> in_flight() const {
    const std::int64_t n = fb_schedule_in_flight(schedule_.get(), 0, nullptr, nullptr, nullptr, nullptr);
    check(n < 0 ? FB_ERR_ARGUMENT : FB_OK);
    const auto size = static_cast<std::size_t>(n);
    std::vector<std::int32_t> client(size);
    std::vector<std::uint32_t> task(size);
    std::vector<std::int64_t> version(size);
    std::vector<double> start_time(size);
    fb_schedule_in_flight(schedule_.get(), n, client.data(), task.data(), version.data(), start_time.data());
    std::vector<FlyingTask> found;
    for (std::size_t i = 0; i < size; ++i) {
      found.push_back({client[i], task[i], version[i], start_time[i]});
    }
    return found;
  }
  fb_schedule* get() const noexcept { return schedule_.get(); }

 private:
  detail::Owner<fb_schedule, fb_schedule_destroy> schedule_;
};

// The numbers of a schedule. For one thread at a time. The problem's arrays must outlive it.
template <class T>
class Replay {
 public:
  Replay(const fb_problem& problem, const fb_local_config& local, const fb_rule& rule, std::size_t dim,
         const fb_replay_config& config = FB_REPLAY_CONFIG_INIT) {
    make(problem, local, rule, config, dim, nullptr);
  }
  Replay(const fb_problem& problem, const fb_local_config& local, const fb_rule& rule, Span<const T> w0,
         const fb_replay_config& config = FB_REPLAY_CONFIG_INIT) {
    make(problem, local, rule, config, w0.size(), w0.data());
  }

  void add(const fb_columns& rows) { check_said(fb_replay_add(replay_.get(), &rows)); }
  void close() { check_said(fb_replay_close(replay_.get())); }
  fb_replay_end run(std::int64_t max_steps, std::int32_t threads) {
    std::int32_t end = FB_REPLAY_STEPS;
    check_said(fb_replay_run(replay_.get(), max_steps, threads, &end));
    return static_cast<fb_replay_end>(end);
  }
  // All rows that a schedule has left, and the server steps of them.
  fb_replay_end run(Schedule& schedule, std::int32_t threads) {
    ScheduleRows rows;
    for (fb_schedule_end end = FB_SCHEDULE_MORE; end == FB_SCHEDULE_MORE;) {
      end = schedule.next(rows);
      add(rows.columns());
      if (run(INT64_MAX, threads) == FB_REPLAY_DIVERGED) {
        return FB_REPLAY_DIVERGED;
      }
    }
    close();
    return run(INT64_MAX, threads);
  }

  std::int64_t version() const noexcept { return fb_replay_version(replay_.get()); }
  std::int64_t updates() const noexcept { return fb_replay_updates(replay_.get()); }
  double time() const noexcept { return fb_replay_time(replay_.get()); }
  std::size_t dim() const noexcept { return static_cast<std::size_t>(fb_replay_dim(replay_.get())); }
  // Until the replay's next call.
  Span<const T> w() const {
    const auto* data = static_cast<const T*>(fb_replay_w(replay_.get()));
    check(data == nullptr ? FB_ERR_ARGUMENT : FB_OK);
    return {data, dim()};
  }
  double loss(std::int32_t threads) const {
    double value = 0;
    check_said(fb_replay_evaluate(replay_.get(), threads, &value, nullptr, nullptr));
    return value;
  }
  double grad_norm_sq(std::int32_t threads) const {
    double value = 0;
    check_said(fb_replay_evaluate(replay_.get(), threads, nullptr, &value, nullptr));
    return value;
  }
  double accuracy(std::int32_t threads) const {
    double value = 0;
    check_said(fb_replay_evaluate(replay_.get(), threads, nullptr, nullptr, &value));
    return value;
  }
  void save(const std::string& path) const { check_said(fb_replay_save(replay_.get(), path.c_str())); }
  void load(const std::string& path) { check_said(fb_replay_load(replay_.get(), path.c_str())); }
  fb_replay* get() const noexcept { return replay_.get(); }

 private:
  void make(const fb_problem& problem, const fb_local_config& local, const fb_rule& rule,
            const fb_replay_config& config, std::size_t dim, const T* w0) {
    check_said(fb_replay_create(&problem, &local, &rule, &config, dtype_of<T>(), static_cast<std::int64_t>(dim), w0,
                                replay_.out()));
  }

  detail::Owner<fb_replay, fb_replay_destroy> replay_;
};

struct Arrival {
  std::int64_t client, version;
  double start_time, arrive_time;
};

// A live run as an arrival log. Thread-safe.
class Recorder {
 public:
  Recorder() { check(fb_recorder_create(recorder_.out())); }

  void started(std::int64_t client, std::int64_t version, double time = FB_NOW) {
    check_said(fb_recorder_started(recorder_.get(), client, version, time));
  }
  void arrived(std::int64_t client, double time = FB_NOW) {
    check_said(fb_recorder_arrived(recorder_.get(), client, time));
  }
  void cancelled(std::int64_t client) { check_said(fb_recorder_cancelled(recorder_.get(), client)); }
  std::size_t size() const noexcept { return static_cast<std::size_t>(fb_recorder_count(recorder_.get())); }
  std::size_t in_flight() const noexcept { return static_cast<std::size_t>(fb_recorder_in_flight(recorder_.get())); }
  std::vector<Arrival> rows() const {
    const std::size_t n = size();
    std::vector<std::int64_t> client(n), version(n);
    std::vector<double> start_time(n), arrive_time(n);
    fb_recorder_rows(recorder_.get(), static_cast<std::int64_t>(n), client.data(), version.data(), start_time.data(),
                     arrive_time.data());
    std::vector<Arrival> made;
    for (std::size_t i = 0; i < n; ++i) {
      made.push_back({client[i], version[i], start_time[i], arrive_time[i]});
    }
    return made;
  }
  void save(const std::string& path) const { check_said(fb_recorder_save(recorder_.get(), path.c_str())); }
  fb_recorder* get() const noexcept { return recorder_.get(); }

 private:
  detail::Owner<fb_recorder, fb_recorder_destroy> recorder_;
};

// Whether the layers fit together: their number of weights, or an exception that says what does not fit.
inline std::int64_t network_dim(const fb_network& network) {
  std::int64_t dim = 0;
  char text[256] = "";
  const fb_status status = fb_network_check(&network, &dim, text, sizeof text);
  if (status != FB_OK) {
    throw Error(status, text[0] == '\0' ? fb_status_text(status) : text);
  }
  return dim;
}

// sum <- sum + weight * delta.
template <class T>
void accumulate(Span<T> sum, Span<const T> delta, double weight) {
  check(sum.size() == delta.size() ? FB_OK : FB_ERR_SIZE);
  check(fb_accumulate(dtype_of<T>(), detail::size_of(sum), sum.data(), delta.data(), weight, sum.data()));
}
// The same in whole numbers: D is int32_t or int64_t.
template <class D>
void accumulate_fixed(Span<std::int64_t> sum, Span<const D> delta, double weight) {
  check(sum.size() == delta.size() ? FB_OK : FB_ERR_SIZE);
  check(fb_accumulate_fixed(dtype_of<D>(), detail::size_of(sum), sum.data(), delta.data(), weight, sum.data()));
}
// w <- w - scale * sum.
template <class T>
void step(Span<T> w, Span<const T> sum, double scale) {
  check(w.size() == sum.size() ? FB_OK : FB_ERR_SIZE);
  check(fb_step(dtype_of<T>(), detail::size_of(w), w.data(), sum.data(), scale, w.data()));
}
// w <- w - scale * sum_k weight[k] * delta[k], in one pass; on the executor's threads, where there is one.
template <class T>
void aggregate(Span<T> w, Span<const T* const> delta, Span<const T> weight, double scale,
               const Executor* executor = nullptr) {
  check(delta.size() == weight.size() ? FB_OK : FB_ERR_SIZE);
  const fb_executor c = executor == nullptr ? fb_executor{} : executor->c();
  check(fb_aggregate(dtype_of<T>(), detail::size_of(w), w.data(), detail::size_of(delta),
                     reinterpret_cast<const void* const*>(delta.data()), weight.data(), scale,
                     executor == nullptr ? nullptr : &c, w.data()));
}

}  // namespace v1
}  // namespace fedbuff

#endif  // FEDBUFF_HPP
