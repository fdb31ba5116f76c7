// The replay engine and its run for Python: rows in, models and histories out, the GIL released while they run.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "bound_problem.hpp"
#include "clients/custom.hpp"
#include "gil.hpp"
#include "numpy_views.hpp"
#include "python_sum.hpp"
#include "python_work.hpp"
#include "read_rule.hpp"
#include "read_run.hpp"
#include "replay/replay.hpp"
#include "replay/run.hpp"
#include "rule_arrays.hpp"

namespace fedbuff::bind {

namespace {

template <class T>
CustomProblem<T> read_custom(std::uintptr_t gradient, std::uintptr_t context, py::ssize_t dim,
                             const py::object& samples) {
  const py::array rows = checked_array<std::int64_t>(samples, "samples", {kAny}, false);
  const auto* counts = static_cast<const std::int64_t*>(rows.data());
  return {reinterpret_cast<GradientFunction<T>>(gradient), reinterpret_cast<void*>(context), dim,
          std::vector<std::int64_t>(counts, counts + rows.size())};
}

template <class T>
void full_custom_gradient(std::uintptr_t gradient, std::uintptr_t context, const py::object& samples,
                          const py::object& weight, const py::object& w, const py::object& gradient_out) {
  const py::ssize_t dim = py::reinterpret_borrow<py::array>(w).size();
  const CustomProblem<T> problem = read_custom<T>(gradient, context, dim, samples);
  const auto* weights = input<double>(weight, "weight", {static_cast<py::ssize_t>(problem.samples.size())});
  const T* at = input<T>(w, "w", {dim});
  T* out = output<T>(gradient_out, "gradient_out", {dim});
  const GilReleased released;
  custom_gradient(problem, weights, at, out);
}

// The columns of fedbuff.backends.spec.UsedRows.
class Columns {
 public:
  explicit Columns(const py::object& rows)
      : n_(py::reinterpret_borrow<py::array>(rows.attr("client")).size()),
        client_(read<std::int32_t>(rows, "client")),
        task_(read<std::uint32_t>(rows, "task")),
        version_(read<std::int64_t>(rows, "version")),
        step_(read<std::int64_t>(rows, "step")),
        s_(read<double>(rows, "s")),
        e_(read<double>(rows, "e")) {}

  // give(rows, n) for some rows after the others: as rows they stay in the cache.
  template <class Give>
  void in_blocks(Give&& give) const {
    constexpr py::ssize_t kTogether = 1024;
    ReplayRow rows[kTogether];
    for (py::ssize_t begin = 0; begin < n_; begin += kTogether) {
      const py::ssize_t size = std::min(kTogether, n_ - begin);
      for (py::ssize_t i = 0; i < size; ++i) {
        const py::ssize_t at = begin + i;
        rows[i] = {client_[at], task_[at], version_[at], step_[at], s_[at], e_[at]};
      }
      give(rows, static_cast<std::int64_t>(size));
    }
  }

 private:
  template <class U>
  const U* read(const py::object& rows, const char* name) const {
    return input<U>(rows.attr(name), name, {n_});
  }

  py::ssize_t n_;
  const std::int32_t* client_;
  const std::uint32_t* task_;
  const std::int64_t *version_, *step_;
  const double *s_, *e_;
};

template <class T>
class BoundReplay {
 public:
  // The clients' work: local SGD on a bound problem or on a custom gradient (address, context, samples), or a function.
  BoundReplay(const py::object& rule, const py::object& w0, BoundProblem<T>* problem, const py::object& function,
              const py::object& local, std::uint64_t seed, std::int64_t window_bytes, const py::object& sums,
              const py::object& roles)
      : dim_(py::reinterpret_borrow<py::array>(w0).size()), problem_(problem) {
    const T* start = input<T>(w0, "w0", {dim_});
    if (!function.is_none() && !py::isinstance<py::tuple>(function)) {
      auto callback = read_function<T>(function, dim_);
      callback_ = callback.get();
      work_ = std::move(callback);
    } else {
      if (problem != nullptr) {
        work_ = make_local_sgd<T>(problem->problem(), read_options(local, problem->problem().n_clients, seed));
      } else {
        const auto custom = function.cast<std::tuple<std::uintptr_t, std::uintptr_t, py::object>>();
        work_ = make_custom<T>(read_custom<T>(std::get<0>(custom), std::get<1>(custom), dim_, std::get<2>(custom)),
                               read_options(local, py::len(std::get<2>(custom)), seed));
      }
    }
    std::unique_ptr<SecureSum<T>> secure;
    if (!roles.is_none()) {
      secure = std::make_unique<PythonSum<T>>(roles, dim_);
    }
    replay_ = std::make_unique<Replay<T>>(read_rule(rule), dim_, start, *work_, window_bytes, read_sums(sums),
                                          std::move(secure));
  }

  int visit(visitproc visit, void* arg) const { return callback_ == nullptr ? 0 : callback_->visit(visit, arg); }
  void forget() {
    if (callback_ != nullptr) {
      callback_->forget();
    }
  }

  void add(const py::object& used, const py::object& references, const py::object& unused) {
    const Columns columns(used);
    const py::array counts = checked_array<std::int64_t>(references, "references", {kAny}, false);
    release(unused);
    columns.in_blocks([&](const ReplayRow* rows, std::int64_t n) { replay_->add(rows, n, nullptr, 0); });
    replay_->add(nullptr, 0, static_cast<const std::int64_t*>(counts.data()), counts.size());
    ++pieces_;
  }

  void release(const py::object& unused) {
    const py::array ended = checked_array<std::int64_t>(unused, "unused", {kAny}, false);
    replay_->release(static_cast<const std::int64_t*>(ended.data()), ended.size());
  }

  Replay<T>& core() { return *replay_; }
  py::ssize_t dim() const { return dim_; }
  std::int64_t pieces() const { return pieces_; }

  int run(std::int64_t max_steps, int threads) {
    const GilReleased released;
    return static_cast<int>(replay_->run(max_steps, threads));
  }

  void record_gradients(std::int64_t every, std::int64_t offset) {
    if (problem_ == nullptr) {
      throw py::value_error("problem: expected a built-in one, whose gradients can be recorded");
    }
    replay_->record_gradients(problem_->problem(), every, offset);
  }
  py::array_t<double> gradients() const {
    const std::vector<double>& values = replay_->gradients();
    return py::array_t<double>(static_cast<py::ssize_t>(values.size()), values.data());
  }

  std::int64_t version() const { return replay_->version(); }
  py::array_t<T> w() const { return copy(replay_->w()); }
  py::dict rule_state() const { return read_rule_state(replay_->rule_state(), dim_); }
  void set_table(const py::object& memory) {
    const auto array = py::reinterpret_borrow<py::array>(memory);
    replay_->set_table(const_cast<void*>(array.data()), array.nbytes());
    table_ = memory;
  }
  std::pair<std::int64_t, std::int64_t> divergence() const {
    return {replay_->divergence().step, replay_->divergence().row};
  }
  void check() const { replay_->check(); }

  py::dict stats() const {
    const ReplayStats stats = replay_->stats();
    py::dict d;
    d["rows"] = stats.rows;
    d["live_versions"] = stats.live_versions;
    d["most_versions"] = stats.most_versions;
    d["window"] = stats.window;
    d["most_window"] = stats.most_window;
    d["commit_seconds"] = stats.commit_seconds;
    d["work_seconds"] = stats.work_seconds;
    d["wait_seconds"] = stats.wait_seconds;
    d["secure_seconds"] = stats.secure_seconds;
    d["cut"] = stats.cut;
    return d;
  }

  std::vector<std::int64_t> live_versions() const { return replay_->live_versions(); }
  py::array_t<T> model(std::int64_t version) const {
    const T* values = replay_->model(version);
    if (values == nullptr) {
      throw py::value_error("version " + std::to_string(version) + " is not kept");
    }
    return py::array_t<T>(replay_->width(), values);  // with the control variate, where there is one
  }

  py::array_t<T> waiting_deltas() const {
    const std::vector<const T*> waiting = replay_->waiting_deltas();
    py::array_t<T> deltas({static_cast<py::ssize_t>(waiting.size()), dim_});
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      std::copy_n(waiting[i], dim_, deltas.mutable_data() + static_cast<py::ssize_t>(i) * dim_);
    }
    return deltas;
  }

  void pass_over(std::int64_t version) { replay_->pass_over(version); }
  std::int64_t restore(const py::object& w, const std::vector<std::int64_t>& live, const py::object& models,
                       const py::dict& rule_state, const py::object& deltas) {
    const RuleArrays arrays(rule_state);
    const py::array waiting = checked_array<T>(deltas, "deltas", {kAny, dim_}, false);
    return replay_->restore(input<T>(w, "w", {dim_}), live,
                            input<T>(models, "models", {static_cast<py::ssize_t>(live.size()), replay_->width()}),
                            arrays.list(), static_cast<const T*>(waiting.data()), waiting.shape(0));
  }

 private:
  py::array_t<T> copy(const T* values) const { return py::array_t<T>(dim_, values); }
  py::object copy_or_none(const T* values) const { return values == nullptr ? py::none() : py::object(copy(values)); }

  py::object table_;  // the memory of the rule's table, kept alive
  py::ssize_t dim_;
  BoundProblem<T>* problem_;           // null for a custom gradient or a function; kept alive with this
  PythonWork<T>* callback_ = nullptr;  // what work_ is, where it is a function
  std::unique_ptr<ClientWork<T>> work_;
  std::unique_ptr<Replay<T>> replay_;
  std::int64_t pieces_ = 0;  // calls of add that came to their end
};

// A run over an engine, which stays visible to the garbage collector: its function may lead back to the run.
template <class T>
class BoundRun {
 public:
  BoundRun(const py::object& engine, std::int64_t eval_every, const std::vector<std::string>& metrics,
           BoundProblem<T>* problem, BoundProblem<T>* held_out, const py::object& stop, bool show_rows, bool secure,
           bool announce, std::int64_t checkpoint_every)
      : engine_(engine), replay_(engine.cast<BoundReplay<T>&>()) {
    RunConfig<T> config;
    config.eval_every = eval_every;
    config.metrics = read_metrics(metrics);
    config.problem = problem == nullptr ? nullptr : &problem->workspace();
    config.held_out = held_out == nullptr ? nullptr : &held_out->workspace();
    config.limits = read_limits(stop);
    config.show_rows = show_rows;
    config.secure = secure;
    config.announce = announce;
    config.checkpoint_every = checkpoint_every;
    config.after_part = &hear_signals;
    run_ = std::make_unique<Run<T>>(replay_.core(), replay_.dim(), std::move(config));
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(engine_.ptr());
    return 0;
  }
  void forget() {}  // the engine forgets its function

  void add(const py::object& used, const py::object& references, const py::object& unused, const py::object& step_time,
           const py::object& marks) {
    const Columns columns(used);
    const py::array counts = checked_array<std::int64_t>(references, "references", {kAny}, false);
    const py::ssize_t n = counts.size();
    const auto* times = input<double>(step_time, "step_time", {n});
    const auto* sums = marks.is_none() ? nullptr : input<std::uint64_t>(marks, "marks", {n});
    replay_.release(unused);
    columns.in_blocks(
        [&](const ReplayRow* rows, std::int64_t n_rows) { run_->add(rows, n_rows, nullptr, nullptr, nullptr, 0); });
    run_->add(nullptr, 0, static_cast<const std::int64_t*>(counts.data()), times, sums, n);
    ++pieces_;
  }
  void close() { run_->close(); }

  int advance(std::int64_t max_steps, double seconds, int threads) {
    const GilReleased released;
    return static_cast<int>(run_->advance(max_steps, seconds, threads));
  }
  void note(const std::vector<double>& values, double seconds) {
    run_->note(values.data(), static_cast<std::int64_t>(values.size()), seconds);
  }
  std::int64_t announced() const { return run_->announced(); }
  void allow(std::int64_t version) { run_->allow(version); }

  void pass_over(std::int64_t version) { run_->pass_over(version); }
  void skip_to(std::int64_t version) {
    if (version > run_->steps_known()) {
      throw py::value_error("version: its rows are not known yet");
    }
    run_->skip_to(version);
  }
  void resume(std::int64_t n_rows, const std::vector<double>& values, double mean, const py::object& evaluated,
              std::int64_t cut, double secure_seconds) {
    run_->resume({n_rows, values, mean, model(evaluated, "evaluated"), cut, secure_seconds});
  }
  void resumed(const py::object& previous) { run_->resumed(model(previous, "previous")); }

  std::int64_t version() const { return run_->version(); }
  double time() const { return run_->time(); }
  std::int64_t updates() const { return run_->updates(); }
  std::uint64_t mark() const { return run_->mark(); }
  std::int64_t steps_known() const { return run_->steps_known(); }
  std::int64_t rows_known() const { return run_->rows_known(); }
  std::int64_t pieces() const { return pieces_; }
  std::int64_t n_rows() const { return run_->n_rows(); }
  double eval_seconds() const { return run_->eval_seconds(); }
  std::int64_t cut() const { return run_->cut(); }
  double secure_seconds() const { return run_->secure_seconds(); }
  py::object evaluated() const { return copy_or_none(run_->evaluated()); }
  py::object previous() const { return copy_or_none(run_->previous()); }

  // The rows of the history from number `first` on.
  py::list rows(std::int64_t first) const {
    const std::vector<double>& values = run_->history();
    const auto columns = static_cast<std::size_t>(run_->n_columns());
    const std::size_t noted = values.size() / columns;
    py::list made;
    const std::int64_t before = run_->n_rows() - static_cast<std::int64_t>(noted);
    for (auto row = static_cast<std::size_t>(std::max<std::int64_t>(0, first - before)); row < noted; ++row) {
      py::list one;
      for (std::size_t i = 0; i < columns; ++i) {
        one.append(values[row * columns + i]);
      }
      made.append(one);
    }
    return made;
  }

 private:
  const T* model(const py::object& values, const char* name) const {
    return values.is_none() ? nullptr : input<T>(values, name, {replay_.dim()});
  }
  py::object copy_or_none(const T* values) const {
    return values == nullptr ? py::none() : py::object(py::array_t<T>(replay_.dim(), values));
  }

  py::object engine_;
  BoundReplay<T>& replay_;
  std::unique_ptr<Run<T>> run_;
  std::int64_t pieces_ = 0;  // calls of add that came to their end
};

// Lets the garbage collector see what a replay refers to.
template <class Bound>
void collect_garbage(PyHeapTypeObject* heap_type) {
  PyTypeObject* type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const bool made = py::detail::is_holder_constructed(self);
    return made ? py::cast<const Bound&>(py::handle(self)).visit(visit, arg) : 0;
  };
  type->tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) {
      py::cast<Bound&>(py::handle(self)).forget();
    }
    return 0;
  };
}

template <class T>
void bind_one(py::module_& module, const char* name) {
  using Bound = BoundReplay<T>;
  py::class_<Bound>(module, name, py::custom_type_setup(&collect_garbage<Bound>))
      .def(py::init<const py::object&, const py::object&, BoundProblem<T>*, const py::object&, const py::object&,
                    std::uint64_t, std::int64_t, const py::object&, const py::object&>(),
           py::arg("rule"), py::arg("w0"), py::arg("problem").none(true), py::arg("function").none(true),
           py::arg("local").none(true), whole("seed"), whole("window_bytes"), py::arg("sums"),
           py::arg("roles").none(true), py::keep_alive<1, 4>())
      .def("add", &Bound::add, py::arg("rows"), py::arg("references"), py::arg("unused"))
      .def("run", &Bound::run, whole("max_steps"), whole("threads"))
      .def("record_gradients", &Bound::record_gradients, whole("every"), whole("offset"))
      .def("gradients", &Bound::gradients)
      .def("version", &Bound::version)
      .def("w", &Bound::w)
      .def("rule_state", &Bound::rule_state)
      .def("set_table", &Bound::set_table, py::arg("memory"))
      .def("divergence", &Bound::divergence)
      .def("check", &Bound::check)
      .def("stats", &Bound::stats)
      .def("live_versions", &Bound::live_versions)
      .def("model", &Bound::model, whole("version"))
      .def("pieces", &Bound::pieces)
      .def("waiting_deltas", &Bound::waiting_deltas)
      .def("pass_over", &Bound::pass_over, whole("version"))
      .def("restore", &Bound::restore, py::arg("w"), py::arg("live"), py::arg("models"), py::arg("rule_state"),
           py::arg("deltas"));
}

template <class T>
void bind_run(py::module_& module, const char* name) {
  using Bound = BoundRun<T>;
  py::class_<Bound>(module, name, py::custom_type_setup(&collect_garbage<Bound>))
      .def(py::init<const py::object&, std::int64_t, const std::vector<std::string>&, BoundProblem<T>*,
                    BoundProblem<T>*, const py::object&, bool, bool, bool, std::int64_t>(),
           py::arg("engine"), whole("eval_every"), py::arg("metrics"), py::arg("problem").none(true),
           py::arg("held_out").none(true), py::arg("stop").none(true), py::arg("show_rows"), py::arg("secure"),
           py::arg("announce"), whole("checkpoint_every"), py::keep_alive<1, 5>(), py::keep_alive<1, 6>())
      .def("add", &Bound::add, py::arg("rows"), py::arg("references"), py::arg("unused"), py::arg("step_time"),
           py::arg("marks").none(true))
      .def("close", &Bound::close)
      .def("advance", &Bound::advance, whole("max_steps"), py::arg("seconds"), whole("threads"))
      .def("note", &Bound::note, py::arg("values"), py::arg("seconds"))
      .def("announced", &Bound::announced)
      .def("allow", &Bound::allow, whole("version"))
      .def("pass_over", &Bound::pass_over, whole("version"))
      .def("skip_to", &Bound::skip_to, whole("version"))
      .def("resume", &Bound::resume, whole("n_rows"), py::arg("values"), py::arg("mean"),
           py::arg("evaluated").none(true), whole("cut"), py::arg("secure_seconds"))
      .def("resumed", &Bound::resumed, py::arg("previous").none(true))
      .def("version", &Bound::version)
      .def("time", &Bound::time)
      .def("updates", &Bound::updates)
      .def("mark", &Bound::mark)
      .def("steps_known", &Bound::steps_known)
      .def("rows_known", &Bound::rows_known)
      .def("pieces", &Bound::pieces)
      .def("n_rows", &Bound::n_rows)
      .def("rows", &Bound::rows, whole("first"))
      .def("eval_seconds", &Bound::eval_seconds)
      .def("cut", &Bound::cut)
      .def("secure_seconds", &Bound::secure_seconds)
      .def("evaluated", &Bound::evaluated)
      .def("previous", &Bound::previous);
}

}  // namespace

void bind_replay(py::module_& module) {
  bind_one<float>(module, "ReplayF32");
  bind_one<double>(module, "ReplayF64");
  bind_run<float>(module, "RunF32");
  bind_run<double>(module, "RunF64");
  module.def("custom_gradient_f32", &full_custom_gradient<float>, py::arg("gradient"), py::arg("context"),
             py::arg("samples"), py::arg("weight"), py::arg("w"), py::arg("gradient_out"));
  module.def("custom_gradient_f64", &full_custom_gradient<double>, py::arg("gradient"), py::arg("context"),
             py::arg("samples"), py::arg("weight"), py::arg("w"), py::arg("gradient_out"));
}

}  // namespace fedbuff::bind
