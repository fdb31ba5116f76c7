#include "abi/held_replay.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "abi/saved_file.hpp"
#include "clients/local_sgd.hpp"
#include "kernels/dispatch.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kWindowBytes = std::int64_t{1} << 30;
constexpr char kMagic[] = "FBREPLAY";
constexpr std::size_t kMagicSize = sizeof kMagic - 1;
constexpr std::uint64_t kFormat = 1;
constexpr std::int64_t kMostCount = std::int64_t{1} << 62;
constexpr std::int64_t kMostName = 64;

// A number that depends on all that a row says, and on its place.
std::uint64_t mark_of(std::int64_t number, const ReplayRow& row) {
  std::uint64_t mark = static_cast<std::uint64_t>(number);
  const std::uint64_t parts[] = {static_cast<std::uint64_t>(row.client), row.task,
                                 static_cast<std::uint64_t>(row.version), static_cast<std::uint64_t>(row.step)};
  for (const std::uint64_t part : parts) {
    mark = (mark ^ part) * 0x9e3779b97f4a7c15u;
    mark ^= mark >> 31;
  }
  return mark;
}

std::size_t bytes_of(fb_dtype dtype) { return dtype == FB_BF16 ? 2 : dtype == FB_F32 || dtype == FB_I32 ? 4 : 8; }

// What a replay must have in common with the one that was saved.
std::uint64_t hash_of(const ReplayRequest& request, std::int64_t n_rows) {
  ByteHash hash;
  const fb_problem& p = request.problem;
  const fb_local_config& l = request.local;
  const fb_rule& r = request.rule;
  for (const std::int64_t number : {std::int64_t{p.family},
                                    std::int64_t{p.head},
                                    p.n_clients,
                                    n_rows,
                                    request.dim,
                                    l.steps,
                                    l.batch_size,
                                    l.epochs,
                                    std::int64_t{l.drop_last},
                                    std::int64_t{l.method},
                                    std::int64_t{l.compress},
                                    std::int64_t{l.compress_feedback},
                                    l.compress_levels,
                                    static_cast<std::int64_t>(l.seed),
                                    std::int64_t{r.base},
                                    std::int64_t{r.norm},
                                    std::int64_t{r.optimizer},
                                    r.buffer_size,
                                    r.n_clients,
                                    r.max_staleness,
                                    std::int64_t{r.decay},
                                    std::int64_t{r.delay_lr},
                                    r.tau_c,
                                    r.warm_up,
                                    r.decay_steps,
                                    r.period,
                                    std::int64_t{r.table},
                                    std::int64_t{r.table_seen},
                                    std::int64_t{r.table_wait},
                                    std::int64_t{r.weight_by},
                                    std::int64_t{r.table_keeps},
                                    std::int64_t{r.trigger},
                                    std::int64_t{r.weight_shared},
                                    std::int64_t{r.hidden_levels},
                                    static_cast<std::int64_t>(r.hidden_seed),
                                    r.stop_stale,
                                    r.own_state,
                                    std::int64_t{r.control}}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  for (const double number : {p.l2,           p.nonconvex,    p.noise_variance,  l.lr,          l.momentum,
                              l.weight_decay, l.prox,         l.effective_steps, l.alpha,       l.compress_share,
                              r.lr,           r.momentum,     r.beta1,           r.beta2,       r.epsilon,
                              r.weight_decay, r.decay_factor, r.decay_floor,     r.activation,  r.initial,
                              r.table_own,    r.table_mean,   r.weight_epsilon,  r.weight_clip, r.per_client,
                              r.control_pull}) {
    hash.add(number);
  }
  return hash.value();
}

// What a file holds of a replay between two server steps.
template <class T>
struct Saved {
  struct Array {
    std::string name;
    fb_array shown;
    std::vector<std::uint64_t> data;  // aligned for any number
  };
  std::int64_t version = 0, updates = 0;
  std::uint64_t mark = 0;
  double time = 0;
  std::vector<std::int64_t> live;
  std::vector<T> w, models, deltas;
  std::int64_t n_deltas = 0;
  std::vector<Array> arrays;
};

template <class T>
class HeldReplay final : public fb_replay {
 public:
  HeldReplay(const ReplayRequest& request, GivenWork<T> given, const T* w0)
      : given_(std::move(given)),
        n_clients_(given_.problem.n_clients),
        s_(copied(request.config.staleness, request.config.n_staleness)),
        e_(copied(request.config.client_weight, n_clients_)),
        share_(copied(request.config.client_share, n_clients_)),
        keeps_state_(given_.options.keeps_state()),
        hash_(hash_of(request, given_.problem.offsets == nullptr ? 0 : given_.problem.offsets[n_clients_])) {
    if (share_.empty()) {
      share_.assign(static_cast<std::size_t>(n_clients_), 1.0 / static_cast<double>(n_clients_));
    }
    given_.problem.client_weight = share_.data();
    workspace_ = std::make_unique<Workspace<T>>(given_.problem);
    work_ = make_local_sgd<T>(given_.problem, given_.options);
    const std::int64_t window = request.config.window_bytes > 0 ? request.config.window_bytes : kWindowBytes;
    engine_ = std::make_unique<Replay<T>>(request.rule, given_.problem.dim, w0, *work_, window);
    run_ = std::make_unique<Run<T>>(*engine_, given_.problem.dim, RunConfig<T>{});
  }

  fb_status add(const fb_columns& rows) override {
    require_whole();
    std::vector<ReplayRow> used, stale = stale_;
    std::vector<std::int64_t> ended;
    if (!read_rows(rows, used, stale, ended)) {
      return FB_ERR_SHORT_TABLE;
    }
    is_whole_ = false;  // unless all that follows comes to its end
    stale_ = std::move(stale);
    std::vector<std::uint64_t> marks = marks_of(used, rows.n_steps);
    engine_->release(ended.data(), static_cast<std::int64_t>(ended.size()));
    run_->add(used.data(), static_cast<std::int64_t>(used.size()), rows.started, rows.step_time, marks.data(),
              rows.n_steps);
    restore_if_known();
    is_whole_ = true;
    return FB_OK;
  }

  void close() override {
    require_whole();
    if (saved_) {
      throw std::invalid_argument("rows: they end before server step " + std::to_string(saved_->version) +
                                  ", where the saved replay stands");
    }
    run_->close();
    closed_ = true;
  }

  fb_replay_end run(std::int64_t max_steps, int threads) override {
    require_whole();
    if (saved_) {
      return FB_REPLAY_NEED_ROWS;
    }
    switch (run_->advance(max_steps, std::numeric_limits<double>::infinity(), threads)) {
      case RunState::NeedRows: return FB_REPLAY_NEED_ROWS;
      case RunState::Diverged: return FB_REPLAY_DIVERGED;
      case RunState::ScheduleEnd: return FB_REPLAY_CLOSED;
      default: return FB_REPLAY_STEPS;
    }
  }

  std::int64_t version() const override { return saved_ ? saved_->version : run_->version(); }
  std::int64_t updates() const override { return saved_ ? saved_->updates : run_->updates(); }
  double time() const override { return saved_ ? saved_->time : run_->time(); }
  std::int64_t dim() const override { return given_.problem.dim; }
  const void* w() const override { return saved_ ? saved_->w.data() : engine_->w(); }
  bool has_classes() const override {
    return given_.problem.family != Family::Quadratic && given_.problem.head != Head::Squared;
  }

  void evaluate(int threads, double* loss_out, double* grad_norm_sq_out, double* accuracy_out) override {
    const auto* w = static_cast<const T*>(this->w());
    const Problem<T>& p = given_.problem;
    if (grad_norm_sq_out != nullptr) {
      std::vector<T> gradient(static_cast<std::size_t>(p.dim));
      const double loss = workspace_->gradient(w, gradient.data(), threads);
      *grad_norm_sq_out = kernels().of<T>().dot(p.dim, gradient.data(), gradient.data());
      if (loss_out != nullptr) {
        *loss_out = loss;
      }
    } else if (loss_out != nullptr) {
      *loss_out = workspace_->gradient(w, nullptr, threads);
    }
    if (accuracy_out != nullptr) {
      const std::int64_t n_rows = p.offsets[p.n_clients];
      *accuracy_out = static_cast<double>(workspace_->count_correct(0, n_rows, w)) / static_cast<double>(n_rows);
    }
  }

  std::string save(const char* path) override;
  std::string load(const char* path) override;

 private:
  static std::vector<double> copied(const double* values, std::int64_t n) {
    return values == nullptr ? std::vector<double>() : std::vector<double>(values, values + n);
  }

  void require_whole() const {
    if (!is_whole_) {
      throw std::invalid_argument("replay: expected a new one, for this one was given rows that it could not take");
    }
  }
  bool read_rows(const fb_columns& rows, std::vector<ReplayRow>& used, std::vector<ReplayRow>& stale,
                 std::vector<std::int64_t>& ended) const;
  std::vector<std::uint64_t> marks_of(const std::vector<ReplayRow>& used, std::int64_t n_steps);
  void restore_if_known();
  Saved<T> read_saved(SavedFileReader& file) const;

  GivenWork<T> given_;
  const std::int64_t n_clients_;
  const std::vector<double> s_, e_;
  std::vector<double> share_;
  const bool keeps_state_;
  const std::uint64_t hash_;
  std::unique_ptr<Workspace<T>> workspace_;
  std::unique_ptr<ClientWork<T>> work_;
  std::unique_ptr<Replay<T>> engine_;
  std::unique_ptr<Run<T>> run_;
  std::vector<ReplayRow> stale_;     // too stale for a step, but their clients' states changed; no used row yet
  std::deque<std::uint64_t> marks_;  // of the steps from steps_known on that have rows
  std::int64_t n_rows_ = 0;          // that were given to the run
  std::optional<Saved<T>> saved_;    // until the rows before it are known
  bool closed_ = false;
  bool is_whole_ = true;
};

// Rows for the run, and the versions of tasks that ended unused; false where one is too stale for the table.
template <class T>
bool HeldReplay<T>::read_rows(const fb_columns& rows, std::vector<ReplayRow>& used, std::vector<ReplayRow>& stale,
                              std::vector<std::int64_t>& ended) const {
  const std::int64_t last_step = run_->steps_known() + rows.n_steps;
  for (std::int64_t i = 0; i < rows.n_steps; ++i) {
    if (rows.started[i] < 0 || !std::isfinite(rows.step_time[i])) {
      throw std::invalid_argument("started, step_time[" + std::to_string(i) + "]: expected a step of a schedule");
    }
  }
  for (std::int64_t i = 0; i < rows.n_rows; ++i) {
    const std::int32_t client = rows.client[i];
    const std::int64_t version = rows.version[i], step = rows.step[i], staleness = rows.staleness[i];
    const std::uint8_t status = rows.status[i];
    const bool counts = status == FB_TASK_USED || (keeps_state_ && status == FB_TASK_TOO_STALE);
    // Tasks that have ended were started before; a step is the last that is known, or the one after it.
    const bool known = version >= 0 && version <= last_step;
    const bool follows = known && step >= version && step <= last_step && staleness == step - version;
    const char* wrong = client < 0 || client >= n_clients_   ? "client"
                        : status > FB_TASK_STOPPED           ? "status"
                        : !known                             ? "version"
                        : status == FB_TASK_USED && !follows ? "step"
                                                             : nullptr;
    if (wrong != nullptr) {
      throw std::invalid_argument(std::string(wrong) + "[" + std::to_string(i) + "]: expected a row of a schedule");
    }
    if (!counts) {
      ended.push_back(version);
      continue;
    }
    if (status == FB_TASK_USED && !s_.empty() && staleness >= static_cast<std::int64_t>(s_.size())) {
      return false;
    }
    const double e = e_.empty() ? 1.0 : e_[static_cast<std::size_t>(client)];
    if (status == FB_TASK_TOO_STALE) {
      stale.push_back({client, rows.task[i], version, 0, -1.0, e});
      continue;
    }
    for (ReplayRow& before : stale) {  // they get the step of the used row after them
      before.step = step;
      used.push_back(before);
    }
    stale.clear();
    used.push_back(
        {client, rows.task[i], version, step, s_.empty() ? 1.0 : s_[static_cast<std::size_t>(staleness)], e});
  }
  return true;
}

// A mark of each step that is complete now.
template <class T>
std::vector<std::uint64_t> HeldReplay<T>::marks_of(const std::vector<ReplayRow>& used, std::int64_t n_steps) {
  const std::int64_t first = run_->steps_known();
  for (const ReplayRow& row : used) {
    if (row.step < first) {
      throw std::invalid_argument("step: expected rows of steps that were not complete yet");
    }
    const auto index = static_cast<std::size_t>(row.step - first);
    marks_.resize(std::max(marks_.size(), index + 1));
    marks_[index] += mark_of(n_rows_++, row);
  }
  marks_.resize(std::max(marks_.size(), static_cast<std::size_t>(n_steps)));
  std::vector<std::uint64_t> made(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(n_steps));
  marks_.erase(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(n_steps));
  return made;
}

template <class T>
void HeldReplay<T>::restore_if_known() {
  if (!saved_ || run_->steps_known() < saved_->version) {
    return;
  }
  run_->skip_to(saved_->version);
  if (run_->mark() != saved_->mark || run_->updates() != saved_->updates || run_->time() != saved_->time) {
    throw std::invalid_argument("rows: expected those of the saved replay up to server step " +
                                std::to_string(saved_->version));
  }
  std::vector<fb_array> arrays;
  for (const auto& array : saved_->arrays) {
    arrays.push_back(array.shown);
  }
  engine_->restore(saved_->w.data(), saved_->live, saved_->models.data(), arrays, saved_->deltas.data(),
                   saved_->n_deltas);
  run_->resumed(nullptr);
  saved_.reset();
}

template <class T>
std::string HeldReplay<T>::save(const char* path) {
  require_whole();
  if (saved_) {
    return "save: expected the rows that are done first, up to server step " + std::to_string(saved_->version);
  }
  const auto dim = static_cast<std::size_t>(this->dim()), width = static_cast<std::size_t>(engine_->width());
  std::vector<std::int64_t> live = engine_->live_versions();
  live.erase(std::remove(live.begin(), live.end(), version()), live.end());
  SavedFileWriter file(path);
  const std::string level = kernels().name;
  file.text(kMagic, kMagicSize);
  file.number(kFormat);
  file.number(sizeof(T));
  file.number(hash_);
  file.number(level.size());
  file.text(level.data(), level.size());
  file.number(static_cast<std::uint64_t>(version()));
  file.number(static_cast<std::uint64_t>(updates()));
  file.number(run_->mark());
  const double time = this->time();
  file.numbers(&time, 1, sizeof time);
  file.numbers(engine_->w(), dim, sizeof(T));
  file.number(live.size());
  for (const std::int64_t version : live) {
    file.number(static_cast<std::uint64_t>(version));
    file.numbers(engine_->model(version), width, sizeof(T));
  }
  const std::vector<const T*> deltas = engine_->waiting_deltas();
  file.number(deltas.size());
  for (const T* delta : deltas) {
    file.numbers(delta, dim, sizeof(T));
  }
  const std::vector<fb_array> arrays = engine_->rule_state();
  file.number(arrays.size());
  for (const fb_array& array : arrays) {
    file.number(std::strlen(array.name));
    file.text(array.name, std::strlen(array.name));
    file.number(static_cast<std::uint64_t>(array.key));
    file.number(static_cast<std::uint64_t>(array.dtype));
    file.number(static_cast<std::uint64_t>(array.size));
    file.numbers(array.data, static_cast<std::size_t>(array.size), bytes_of(array.dtype));
  }
  file.number(file.hash());
  return file.finish();
}

template <class T>
Saved<T> HeldReplay<T>::read_saved(SavedFileReader& file) const {
  const auto dim = static_cast<std::size_t>(this->dim()), width = static_cast<std::size_t>(engine_->width());
  Saved<T> made;
  file.require(file.text(kMagicSize) == kMagic, "the file holds no replay");
  file.require(file.number() == kFormat, "the file is of another version of fedbuff");
  file.require(file.number() == sizeof(T), "the file is of another dtype");
  file.require(file.number() == hash_, "the file is of another problem, other local steps or another rule");
  const std::string level = file.text(static_cast<std::size_t>(file.whole(0, kMostName, "the file holds no replay")));
  file.require(level == kernels().name, "the file was made on another CPU level, which rounds differently");
  made.version = file.whole(0, kMostCount, "version: expected at least 0");
  made.updates = file.whole(0, kMostCount, "updates: expected at least 0");
  made.mark = file.number();
  made.time = file.real();
  const auto read_model = [&](std::vector<T>& to, std::size_t n) {
    const std::size_t before = to.size();
    file.require(file.has(n, sizeof(T)), "the file ends too early");
    if (file.fault().empty()) {
      to.resize(before + n);
      file.numbers(to.data() + before, n, sizeof(T));
    }
  };
  read_model(made.w, dim);
  const std::int64_t n_live = file.whole(0, made.version, "live: expected older versions");
  for (std::int64_t i = 0; i < n_live && file.fault().empty(); ++i) {
    made.live.push_back(
        file.whole(made.live.empty() ? 0 : made.live.back() + 1, made.version - 1, "live: out of order"));
    read_model(made.models, width);
  }
  made.n_deltas = file.whole(0, kMostCount, "deltas: expected at least 0");
  for (std::int64_t i = 0; i < made.n_deltas && file.fault().empty(); ++i) {
    read_model(made.deltas, dim);
  }
  const std::int64_t n_arrays = file.whole(0, kMostCount, "arrays: expected at least 0");
  for (std::int64_t i = 0; i < n_arrays && file.fault().empty(); ++i) {
    typename Saved<T>::Array array;
    array.name = file.text(static_cast<std::size_t>(file.whole(1, kMostName, "name: too long")));
    array.shown.key = static_cast<std::int64_t>(file.number());
    array.shown.dtype = static_cast<fb_dtype>(file.whole(FB_F32, FB_BF16, "dtype: unknown"));
    array.shown.size = file.whole(0, kMostCount, "size: expected at least 0");
    const std::size_t each = bytes_of(array.shown.dtype);
    file.require(file.has(static_cast<std::uint64_t>(array.shown.size), each), "the file ends too early");
    if (file.fault().empty()) {
      const auto n = static_cast<std::size_t>(array.shown.size);
      array.data.resize(n * each / sizeof(std::uint64_t) + 1);
      file.numbers(array.data.data(), n, each);
      made.arrays.push_back(std::move(array));
    }
  }
  const std::uint64_t hash = file.hash();
  file.require(file.number() == hash && file.is_at_end(), "the file was changed or is cut off");
  for (auto& array : made.arrays) {
    array.shown.name = array.name.c_str();
    array.shown.data = array.data.data();
  }
  return made;
}

template <class T>
std::string HeldReplay<T>::load(const char* path) {
  if (saved_ || closed_ || run_->rows_known() > 0 || run_->steps_known() > 0) {
    return "load: expected a new replay, which has no rows yet";
  }
  SavedFileReader file(path);
  if (!file.fault().empty()) {
    return file.fault();
  }
  Saved<T> read = read_saved(file);
  if (!file.fault().empty()) {
    return std::string(path) + ": " + file.fault();
  }
  run_->pass_over(read.version);
  saved_ = std::move(read);
  for (auto& array : saved_->arrays) {  // short names lie inside their strings, which have moved
    array.shown.name = array.name.c_str();
  }
  restore_if_known();
  return "";
}

void check_request(const ReplayRequest& request, std::int64_t dim, std::int64_t n_clients, FieldChecks& checks) {
  const auto good = [](double x) { return std::isfinite(x) && x >= 0; };
  const fb_replay_config& c = request.config;
  checks.between("dim", request.dim, dim, dim);
  checks.require(request.rule.unit == 0, "unit", "0: a replay's deltas are of its dtype", request.rule.unit);
  if (request.rule.n_clients != 0) {
    checks.between("n_clients, of the rule", request.rule.n_clients, n_clients, n_clients);
  }
  checks.at_least("window_bytes", c.window_bytes, 0);
  if (c.staleness != nullptr) {
    checks.at_least("n_staleness", c.n_staleness, 1);
    checks.each("staleness", c.staleness, c.n_staleness, "a finite number of at least 0", good);
  }
  if (c.client_weight != nullptr) {
    checks.each("client_weight", c.client_weight, n_clients, "a finite number of at least 0", good);
  }
  if (c.client_share != nullptr) {
    checks.each("client_share", c.client_share, n_clients, "a finite number of at least 0", good);
  }
}

template <class T>
std::unique_ptr<fb_replay> make_of(const ReplayRequest& request, FieldChecks& checks) {
  GivenWork<T> given;
  read_work(request.problem, request.local, checks, given);
  if (checks.ok()) {
    check_request(request, given.problem.dim, given.problem.n_clients, checks);
  }
  const bool scaffold = given.options.method == Method::Scaffold, feddyn = given.options.method == Method::Feddyn;
  checks.require((scaffold || feddyn) == (request.rule.control != FB_CONTROL_NONE), "control",
                 "FB_CONTROL_MEAN with FB_METHOD_SCAFFOLD and FB_METHOD_FEDDYN, and with them alone");
  if (!checks.ok()) {
    return nullptr;
  }
  std::vector<T> zeros;
  const T* w0 = static_cast<const T*>(request.w0);
  if (w0 == nullptr) {
    zeros.resize(static_cast<std::size_t>(request.dim));
    w0 = zeros.data();
  }
  checks.each("w0", w0, request.dim, "a finite number", [](T x) { return std::isfinite(x); });
  return checks.ok() ? std::make_unique<HeldReplay<T>>(request, std::move(given), w0) : nullptr;
}

}  // namespace

std::unique_ptr<fb_replay> make_replay(const ReplayRequest& request, fb_dtype dtype, FieldChecks& checks) {
  return dtype == FB_F32 ? make_of<float>(request, checks) : make_of<double>(request, checks);
}

}  // namespace fedbuff
