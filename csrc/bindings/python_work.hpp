// A Python function as a client's work: one task at a time, or a group.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "clients/client_work.hpp"
#include "gil.hpp"
#include "numpy_views.hpp"
#include "replay/stopwatch.hpp"

namespace fedbuff::bind {

// The function is called with the GIL. `call` and `check` are those of
// fedbuff.backends.spec.ClientFunction.
template <class T>
class PythonWork : public ClientWork<T> {
 public:
  PythonWork(const py::object& function, py::ssize_t dim)
      : call_(function.attr("call")), check_(function.attr("check")), dim_(dim) {}
  ~PythonWork() override {
    const GilHeld held;
    forget();
  }

  std::size_t scratch_bytes() const override { return 0; }

  // For the garbage collector: a function may lead back to the replay.
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(call_.ptr());
    Py_VISIT(check_.ptr());
    return 0;
  }
  virtual void forget() { call_ = check_ = py::object(); }

 protected:
  // The numbers of what the function returned, of this shape; `checked` keeps an array alive that was made of it.
  const T* numbers(const py::object& delta, std::initializer_list<py::ssize_t> shape, py::object& checked) const {
    if (is_array_of<T>(delta, shape)) {
      return static_cast<const T*>(py::reinterpret_borrow<py::array>(delta).data());
    }
    py::tuple wanted(shape.size());
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      wanted[axis] = *(shape.begin() + axis);
    }
    checked = call(check_, delta, wanted, py::dtype::of<T>());
    return input<T>(checked, "delta", shape);
  }

  py::object call_, check_;
  py::ssize_t dim_;
};

// function(client, task, w) returns the delta.
//
// w is a view of the engine's memory. If something still refers to it or to a view of it after the call, it becomes the
// owner of that memory, which the engine does not use again.
template <class T>
class CallbackWork final : public PythonWork<T> {
 public:
  using PythonWork<T>::PythonWork;

  double flops() const override { return 4e9 * seconds_.load(std::memory_order_relaxed); }

  void run(const ClientTask<T>* tasks, std::int64_t n_tasks, void*) override {
    const GilHeld held;
    Stopwatch watch;
    for (std::int64_t i = 0; i < n_tasks; ++i) {
      run_one(tasks[i]);
    }
    const double before = seconds_.load(std::memory_order_relaxed);
    seconds_.store(before + 0.1 * (watch.lap() / static_cast<double>(n_tasks) - before), std::memory_order_relaxed);
  }

 private:
  using Owner = std::shared_ptr<const void>;

  void run_one(const ClientTask<T>& task) {
    auto* owner = new Owner;
    const py::capsule base(owner, [](void* memory) { delete static_cast<Owner*>(memory); });
    py::array_t<T> model(this->dim_, task.w, base);
    make_read_only(model);
    try {
      const py::object delta = call(this->call_, task.row->client, task.row->task, model);
      py::object checked;
      std::copy_n(this->numbers(delta, {this->dim_}, checked), this->dim_, task.delta_out);
    } catch (...) {
      keep_if_shown(task, model, *owner);  // an error's traceback has it
      throw;
    }
    keep_if_shown(task, model, *owner);
  }

  static void keep_if_shown(const ClientTask<T>& task, const py::array& model, Owner& owner) {
    if (model.ref_count() > 1) {
      owner = task.store->keep(task.row->version);
    }
  }

  std::atomic<double> seconds_{1};  // of one task, about: without a GIL threads may overwrite each other's
};

// function(clients, tasks, W) returns the deltas of a group, row by row. W is a copy of the models, the function's own:
// its memory is used again where nobody has it after the call.
template <class T>
class GroupWork final : public PythonWork<T> {
 public:
  GroupWork(const py::object& function, py::ssize_t dim, std::int64_t most)
      : PythonWork<T>(function, dim), most_(most) {}
  ~GroupWork() override {
    const GilHeld held;
    spare_.clear();
  }

  double flops() const override { return 1e9; }  // a group at a time
  std::int64_t most_in_group() const override { return most_; }

  void run(const ClientTask<T>* tasks, std::int64_t n_tasks, void*) override {
    const GilHeld held;
    const py::ssize_t dim = this->dim_, n = n_tasks;
    py::array_t<std::int64_t> clients(n), numbers(n);
    for (py::ssize_t i = 0; i < n; ++i) {
      clients.mutable_data()[i] = tasks[i].row->client;
      numbers.mutable_data()[i] = tasks[i].row->task;
    }
    py::array_t<T> memory = take_memory();
    py::array_t<T> models({n, dim}, memory.data(), memory);
    T* to = memory.mutable_data();
    copied(n * dim, [&] {
      for (py::ssize_t i = 0; i < n; ++i) {
        std::copy_n(tasks[i].w, dim, to + i * dim);
      }
    });
    const py::object deltas = call(this->call_, clients, numbers, models);
    py::object checked;
    const T* from = this->numbers(deltas, {n, dim}, checked);
    copied(n * dim, [&] {
      for (py::ssize_t i = 0; i < n; ++i) {
        std::copy_n(from + i * dim, dim, tasks[i].delta_out);
      }
    });
    if (models.ref_count() == 1 && memory.ref_count() == 2 && deltas.ptr() != models.ptr()) {
      const std::lock_guard<std::mutex> lock(spare_mutex_);
      spare_.push_back(std::move(memory));
    }
  }

  void forget() override {
    PythonWork<T>::forget();
    spare_.clear();
  }

 private:
  py::array_t<T> take_memory() {
    {
      const std::lock_guard<std::mutex> lock(spare_mutex_);
      if (!spare_.empty()) {
        py::array_t<T> memory = std::move(spare_.back());
        spare_.pop_back();
        return memory;
      }
    }
    return py::array_t<T>({static_cast<py::ssize_t>(most_), this->dim_});
  }

  // Copies so many numbers; without the GIL where that takes long.
  template <class Body>
  static void copied(py::ssize_t n, Body body) {
    if (n < kMany) {
      body();
    } else {
      const GilReleased released;
      body();
    }
  }

  static constexpr py::ssize_t kMany = 1 << 16;
  std::int64_t most_;
  std::mutex spare_mutex_;  // nothing of Python's happens under it
  std::vector<py::array_t<T>> spare_;
};

template <class T>
std::unique_ptr<PythonWork<T>> read_function(const py::object& function, py::ssize_t dim) {
  const auto batch = function.attr("batch").cast<std::int64_t>();
  if (batch > 0) {
    return std::make_unique<GroupWork<T>>(function, dim, batch);
  }
  return std::make_unique<CallbackWork<T>>(function, dim);
}

}  // namespace fedbuff::bind
