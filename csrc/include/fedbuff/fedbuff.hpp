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
#include <type_traits>
#include <utility>
#include <vector>

#include "fedbuff/fedbuff.h"

namespace fedbuff {

class Error : public std::runtime_error {
 public:
  explicit Error(fb_status status) : std::runtime_error(fb_status_text(status)), status_(status) {}
  fb_status status() const noexcept { return status_; }

 private:
  fb_status status_;
};

inline void check(fb_status status) {
  if (status != FB_OK) {
    throw Error(status);
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
    check(fb_server_create(&rule, dtype_of<T>(), detail::size_of(w0), w0.data(), server_.out()));
  }

  std::int64_t version() const noexcept { return fb_server_version(server_.get()); }
  std::int64_t fill() const noexcept { return fb_server_fill(server_.get()); }
  std::int64_t dropped() const noexcept { return fb_server_dropped(server_.get()); }
  std::int64_t outstanding() const noexcept { return fb_server_outstanding(server_.get()); }
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
  fb_server* get() const noexcept { return server_.get(); }

 private:
  std::optional<Executor> executor_;  // outlives the server, which is destroyed first
  detail::Owner<fb_server, fb_server_destroy> server_;
};

// A sum of deltas, for those who write their own server. Thread-safe.
template <class T>
class DeltaBuffer {
 public:
  explicit DeltaBuffer(std::size_t dim, double unit = 0.0) {
    check(fb_buffer_create(dtype_of<T>(), static_cast<std::int64_t>(dim), unit, buffer_.out()));
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
  void clear() { check(fb_buffer_clear(buffer_.get())); }
  // w <- w - lr * sum; empties the buffer.
  void step(Span<T> w, double lr) {
    check(fb_buffer_step(buffer_.get(), dtype_of<T>(), detail::size_of(w), w.data(), lr, w.data()));
  }
  void close() { check(fb_buffer_close(buffer_.get())); }
  fb_buffer* get() const noexcept { return buffer_.get(); }

 private:
  detail::Owner<fb_buffer, fb_buffer_destroy> buffer_;
};

// What a client does with the model that it downloaded. Thread-safe. The problem's arrays must outlive it.
template <class T>
class LocalSGD {
 public:
  using Gradient =
      std::function<void(std::int64_t client, Span<const std::int64_t> rows, Span<const T> w, Span<T> out)>;

  LocalSGD(const fb_problem& problem, const fb_local_config& config) {
    check(fb_local_create(&problem, &config, dtype_of<T>(), local_.out()));
  }
  // The host's own gradient: the mean over the given rows of the client, into `out`.
  LocalSGD(Gradient gradient, std::size_t dim, Span<const std::int64_t> samples, const fb_local_config& config)
      : host_(std::make_unique<Host>(Host{std::move(gradient), dim})) {
    check(fb_local_create_custom(&call, host_.get(), detail::size_of(samples), samples.data(), &config, dtype_of<T>(),
                                 static_cast<std::int64_t>(dim), local_.out()));
  }

  std::size_t dim() const noexcept { return static_cast<std::size_t>(fb_local_dim(local_.get())); }
  std::int64_t n_clients() const noexcept { return fb_local_n_clients(local_.get()); }
  // `version`: that of w, where the step size follows it.
  void delta(std::int64_t client, std::uint32_t task, Span<const T> w, Span<T> delta_out, std::int64_t version = 0) {
    check(w.size() == delta_out.size() ? FB_OK : FB_ERR_SIZE);
    check(fb_local_delta_at(local_.get(), dtype_of<T>(), detail::size_of(w), client, task, version, w.data(),
                            delta_out.data()));
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

}  // namespace fedbuff

#endif  // FEDBUFF_HPP
