#include "server/server.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <vector>

#include "memory/index_ring.hpp"
#include "memory/placement.hpp"
#include "server/held_deltas.hpp"
#include "server/own_rule.hpp"
#include "server/rule_state.hpp"
#include "threads/ticket_queue.hpp"

fb_model* fb_model::create(std::size_t bytes) {
  auto* model = new fb_model;
  const std::size_t alignment = fedbuff::alignment_of(bytes);
  model->data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (model->data == nullptr) {
    delete model;
    throw std::bad_alloc();
  }
  return model;
}

void fb_model::release() {
  if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    std::free(data);
    delete this;
  }
}

namespace fedbuff {

namespace {

// A counted reference to a model.
class Hold {
 public:
  Hold() = default;
  explicit Hold(fb_model* model) : model_(model) {}  // takes over one count
  Hold(Hold&& other) noexcept : model_(other.model_) { other.model_ = nullptr; }
  Hold& operator=(Hold&& other) noexcept {
    std::swap(model_, other.model_);
    return *this;
  }
  ~Hold() { reset(); }

  void reset() {
    if (model_ != nullptr) {
      model_->release();
      model_ = nullptr;
    }
  }
  Hold again() const {
    model_->hold();
    return Hold(model_);
  }
  fb_model* get() const { return model_; }
  bool alone() const { return model_->holders.load(std::memory_order_acquire) == 1; }
  explicit operator bool() const { return model_ != nullptr; }

 private:
  fb_model* model_ = nullptr;
};

// A version that was downloaded.
struct Due {
  std::int64_t tasks = 0;  // downloads that were neither uploaded nor cancelled
  Hold model;              // kept where the rule needs it and the version is an old one
};

// The newest kMostVersions versions are kept in a ring, older ones in a map if tasks are due on them; likewise the
// weights of a staleness above the table's in a map. So memory grows with the tasks that are due, not with staleness.
constexpr std::int64_t kMostVersions = 1 << 16;
constexpr std::size_t kMostFarWeights = 1 << 12;

template <class T>
class Server final : public fb_server, private TicketQueue::Sink {
 public:
  Server(const fb_rule& rule, std::int64_t dim, const void* w0)
      : rule_(rule),
        dim_(dim),
        model_(fb_model::create(model_bytes())),
        state_(rule, dim, OnFailure::Restore),
        own_(rule) {
    std::memset(model_.get()->data, 0, model_bytes());
    std::memcpy(model_.get()->data, w0, bytes());
    next_changes_.resize(has_control() ? size() : 0);
    state_.start_from(values(model_));
    due_.push_back({});
    terms_.reserve(TicketQueue::kMaxBatch);
  }

  void set_staleness(const double* weight, std::int64_t n_weights) override {
    std::vector<double> copy(weight, weight + n_weights);
    const auto lock = queue_.lock();
    staleness_weight_.swap(copy);
    far_weight_.clear();
  }

  void set_staleness_at(std::int64_t staleness, double weight) override {
    const auto lock = queue_.lock();
    if (far_weight_.size() >= kMostFarWeights) {
      far_weight_.clear();
    }
    far_weight_[staleness] = weight;
  }

  fb_status upload(fb_dtype dtype, std::int64_t dim, const void* delta, std::int64_t version, double e,
                   std::int64_t client, std::int64_t ticket, std::int32_t* outcome_out) override {
    if (const fb_status status = state_.sum().accepts(dtype, dim); status != FB_OK) {
      return status;
    }
    if (has_control()) {
      return FB_ERR_ARGUMENT;
    }
    if (needs_client(rule_) && (client < 0 || client >= rule_.n_clients)) {
      return FB_ERR_CLIENT;
    }
    Arrival arrival{delta, dtype, version, e, ticket, client};
    const fb_status status = queue_.submit(*this, arrival);
    if (status == FB_OK && outcome_out != nullptr) {
      *outcome_out = arrival.outcome;
    }
    return status;
  }

  fb_status upload_change(fb_dtype dtype, std::int64_t dim, const void* delta, const void* change, std::int64_t version,
                          double e, std::int64_t ticket, std::int32_t* outcome_out) override {
    if (const fb_status status = state_.sum().accepts(dtype, dim); status != FB_OK) {
      return status;
    }
    if (!has_control()) {
      return FB_ERR_ARGUMENT;
    }
    if (!kernels().of<T>().all_finite(dim_, static_cast<const T*>(change))) {
      queue_.cancel_ticket(ticket);
      return FB_ERR_NOT_FINITE;
    }
    Arrival arrival{delta, dtype, version, e, ticket};
    arrival.change = change;
    const fb_status status = queue_.submit(*this, arrival);
    if (status == FB_OK && outcome_out != nullptr) {
      *outcome_out = arrival.outcome;
    }
    return status;
  }

  fb_status upload_models(fb_dtype dtype, std::int64_t dim, std::int64_t n, fb_model_upload* uploads) override {
    if (const fb_status status = state_.sum().accepts(dtype, dim); status != FB_OK) {
      return status;
    }
    if (has_control()) {
      return FB_ERR_ARGUMENT;
    }
    if (!state_.adds_blocks()) {
      PlacedVector<T> delta(size());
      for (std::int64_t k = 0; k < n; ++k) {
        fb_model_upload& one = uploads[k];
        DeltaSum<T>::model_delta(one, {0, size()}, delta.data());
        try {
          one.status = upload(dtype, dim, delta.data(), one.version, one.e, one.client, FB_NO_TICKET, &one.outcome);
        } catch (const std::bad_alloc&) {
          one.status = FB_ERR_MEMORY;  // those before it were uploaded
        }
      }
      return FB_OK;
    }
    std::deque<Arrival> arrivals;
    for (std::int64_t k = 0; k < n; ++k) {
      Arrival& arrival = arrivals.emplace_back();
      arrival.dtype = dtype;
      arrival.version = uploads[k].version;
      arrival.e = uploads[k].e;
      arrival.client = uploads[k].client;
      arrival.model = &uploads[k];
    }
    queue_.submit_all(*this, arrivals);
    for (std::int64_t k = 0; k < n; ++k) {
      uploads[k].status = arrivals[static_cast<std::size_t>(k)].status;
      uploads[k].outcome = arrivals[static_cast<std::size_t>(k)].outcome;
    }
    return FB_OK;
  }

  fb_status step() override {
    if (rule_.trigger == FB_TRIGGER_RINGLEADER) {
      return FB_ERR_ARGUMENT;
    }
    Arrival arrival{};
    return queue_.submit(*this, arrival);
  }

  std::int64_t overdue(std::int64_t n, std::int64_t* version_out, std::int64_t* tasks_out) const override {
    const auto lock = queue_.lock();
    std::int64_t found = 0;
    for_each_due([&](std::int64_t version, const Due& due) {
      if (rule_.stop_stale > 0 && due.tasks > 0 && version_ - version >= rule_.stop_stale) {
        if (found < n) {
          version_out[found] = version;
          tasks_out[found] = due.tasks;
        }
        ++found;
      }
    });
    return found;
  }

  fb_status set_table(void* memory, std::int64_t bytes) override {
    const auto lock = queue_.lock();
    return state_.rows().use(memory, bytes);
  }

  fb_status take_ticket(std::int64_t* ticket_out) override { return queue_.take_ticket(ticket_out); }
  fb_status cancel_ticket(std::int64_t ticket) override { return queue_.cancel_ticket(ticket); }
  void set_executor(const fb_executor* executor) override { queue_.set_executor(executor); }
  void close() override { queue_.close(); }
  bool is_lost() override { return queue_.is_lost(); }

  fb_status cancel(std::int64_t version) override {
    const auto lock = queue_.lock();
    if (queue_.closed()) {
      return FB_ERR_CLOSED;
    }
    Due* due = nullptr;
    const fb_status status = find(version, due);
    if (status == FB_OK) {
      return_task(version);
    }
    return status;
  }

  fb_status download(std::int64_t* version_out, fb_model** model_out) override {
    const auto lock = queue_.lock_without(stepping_);
    if (queue_.closed()) {
      return FB_ERR_CLOSED;
    }
    *version_out = version_;
    *model_out = held_model();
    ++due_.back().tasks;
    return FB_OK;
  }

  fb_model* model() override {
    const auto lock = queue_.lock_without(stepping_);
    return held_model();
  }

  std::unique_ptr<fb_server> clone() override {
    const auto lock = queue_.lock();
    return std::unique_ptr<fb_server>(new Server(*this));
  }

  void get_state(fb_server_state& state) override {
    const auto lock = queue_.lock();
    state.version = version_;
    state.fill = n_in_buffer();
    state.dropped = dropped_;
    state.sum_weights = state_.weights().e;
    state.sum_scaled_weights = state_.weights().se;
    state.w = model_.get()->data;
    state.sum = state_.sum().raw();
    state.staleness = state_.weights().staleness;
    state.first = state_.moment(0);
    state.second = state_.moment(1);
    const std::vector<fb_array> arrays = this->arrays();
    const auto others = arrays.begin() + std::min(2, n_moments(rule_));  // but for first and second
    if (state.arrays != nullptr) {
      std::copy(others, arrays.end(), state.arrays);
    }
    state.n_arrays = arrays.end() - others;
    std::int64_t n = 0;
    for_each_due([&](std::int64_t version, const Due& due) {
      if (due.tasks == 0) {
        return;
      }
      if (state.due != nullptr) {
        state.due_version[n] = version;
        state.due[n] = due.tasks;
        state.kept[n] = due.model ? due.model.get()->data : nullptr;
      }
      ++n;
    });
    state.n_due = n;
  }

  fb_status restore(const fb_server_state& state) override {
    version_ = state.version;
    dropped_ = state.dropped;
    if (!holds()) {
      state_.restore({state.fill, state.sum_weights, state.sum_scaled_weights, state.staleness}, state.sum);
    }
    if (const fb_status status = restore_arrays(state); status != FB_OK) {
      return status;
    }
    far_due_.clear();
    const std::int64_t oldest = state.n_due > 0 ? state.due_version[0] : state.version;
    due_.restart(std::max(oldest, state.version - kMostVersions + 1));
    while (due_.end() <= state.version) {
      due_.push_back({});
    }
    for (std::int64_t i = 0; i < state.n_due; ++i) {
      const std::int64_t version = state.due_version[i];
      Due& due = version >= due_.begin() ? due_[version] : far_due_[version];
      due.tasks = state.due[i];
      if (needs_start(rule_) && version != state.version) {
        due.model = Hold(fb_model::create(model_bytes()));
        std::memcpy(due.model.get()->data, state.kept[i], bytes());
      }
    }
    return FB_OK;
  }

  fb_dtype dtype() const override { return sizeof(T) == 4 ? FB_F32 : FB_F64; }
  std::int64_t dim() const override { return dim_; }
  std::int64_t version() const override { return read(version_); }
  std::int64_t fill() const override {
    const auto lock = queue_.lock_without(stepping_);
    return n_in_buffer();
  }
  std::int64_t dropped() const override { return read(dropped_); }
  std::int64_t outstanding() const override {
    const auto lock = queue_.lock();
    std::int64_t n = 0;
    for_each_due([&](std::int64_t, const Due& due) { n += due.tasks; });
    return n;
  }
  std::int64_t live_models() const override {
    const auto lock = queue_.lock();
    std::int64_t n = 1;
    for_each_due([&](std::int64_t, const Due& due) { n += due.model ? 1 : 0; });
    return n;
  }

 private:
  // A copy; the caller holds the lock of `other`.
  Server(const Server& other)
      : rule_(other.rule_),
        dim_(other.dim_),
        model_(other.model_.again()),
        state_(other.state_),
        own_(other.own_),
        held_(other.held_),
        version_(other.version_),
        dropped_(other.dropped_),
        staleness_weight_(other.staleness_weight_),
        far_weight_(other.far_weight_) {
    const auto again = [](const Due& due) { return Due{due.tasks, due.model ? due.model.again() : Hold()}; };
    due_.restart(other.due_.begin());
    for (std::int64_t version = due_.begin(); version < other.due_.end(); ++version) {
      due_.push_back(again(other.due_[version]));
    }
    for (const auto& [version, due] : other.far_due_) {
      far_due_.emplace(version, again(due));
    }
    terms_.reserve(TicketQueue::kMaxBatch);
    next_changes_.resize(other.next_changes_.size());
  }

  using Term = typename RuleState<T>::Term;

  bool holds() const { return holds_deltas(rule_); }
  std::int64_t n_in_buffer() const { return holds() ? held_.size() : state_.weights().arrivals; }
  std::vector<fb_array> arrays() const {
    std::vector<fb_array> found = state_.arrays();
    if (holds()) {
      held_.list(dim_, found);
    }
    if (has_control()) {
      found.push_back({"control", -1, dim_, dtype(), values(model_) + dim_});
    }
    if (!own_.state().empty()) {
      const std::vector<double>& numbers = own_.state();
      found.push_back({"own_state", -1, static_cast<std::int64_t>(numbers.size()), FB_F64, numbers.data()});
    }
    return found;
  }

  // What the rule keeps, of which the first two moments have members of their own.
  fb_status restore_arrays(const fb_server_state& state) {
    std::vector<fb_array> given(state.arrays, state.arrays + state.n_arrays);
    const std::vector<fb_array> own = state_.arrays();
    for (int i = 0; i < n_moments(rule_); ++i) {
      const auto is_own = [&](const fb_array& array) {
        return std::strcmp(array.name, own[static_cast<std::size_t>(i)].name) == 0;
      };
      if (i < 2) {
        given.push_back(own[static_cast<std::size_t>(i)]);
        given.back().data = i == 0 ? state.first : state.second;
      } else if (std::none_of(given.begin(), given.end(), is_own)) {
        return FB_ERR_ARGUMENT;
      }
    }
    for (const fb_array& array : given) {
      if (has_control() && std::strcmp(array.name, "control") == 0) {
        if (array.dtype != dtype() || array.size != dim_) {
          return array.dtype != dtype() ? FB_ERR_DTYPE : FB_ERR_SIZE;
        }
        std::memcpy(values(model_) + dim_, array.data, bytes());
        continue;
      }
      if (holds() && std::strncmp(array.name, "held", 4) == 0) {
        continue;
      }
      if (own_.is_there() && std::strcmp(array.name, "own_state") == 0) {
        if (array.dtype != FB_F64 || array.size != rule_.own_state) {
          return array.dtype != FB_F64 ? FB_ERR_DTYPE : FB_ERR_SIZE;
        }
        own_.restore(static_cast<const double*>(array.data));
        continue;
      }
      if (const fb_status status = state_.restore(array); status != FB_OK) {
        return status;
      }
    }
    return holds() ? restore_held(given, state.fill) : FB_OK;
  }

  fb_status restore_held(const std::vector<fb_array>& given, std::int64_t n) {
    const auto column = [&](const char* name, fb_dtype dtype) -> const void* {
      const auto found = std::find_if(given.begin(), given.end(), [&](const fb_array& array) {
        return std::strcmp(array.name, name) == 0 && array.dtype == dtype && array.size == n;
      });
      return found == given.end() ? nullptr : found->data;
    };
    const auto* client = static_cast<const std::int64_t*>(column("held_client", FB_I64));
    const auto* staleness = static_cast<const std::int64_t*>(column("held_staleness", FB_I64));
    const auto* s = static_cast<const double*>(column("held_s", FB_F64));
    const auto* e = static_cast<const double*>(column("held_e", FB_F64));
    if (n > 0 && (client == nullptr || staleness == nullptr || s == nullptr || e == nullptr)) {
      return FB_ERR_ARGUMENT;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const auto delta = std::find_if(given.begin(), given.end(), [&](const fb_array& array) {
        return std::strcmp(array.name, "held") == 0 && array.key == i;
      });
      const bool known = client[i] >= 0 && client[i] < rule_.n_clients;
      if (delta == given.end() || (needs_client(rule_) && !known) || staleness[i] < 0) {
        return FB_ERR_ARGUMENT;
      }
      if (const fb_status status = state_.sum().accepts(delta->dtype, delta->size); status != FB_OK) {
        return status;
      }
      held_.push(dim_, static_cast<const T*>(delta->data), client[i], staleness[i], s[i], e[i]);
    }
    return FB_OK;
  }

  bool has_control() const { return fedbuff::has_control(rule_); }
  std::size_t size() const { return static_cast<std::size_t>(dim_); }
  std::size_t bytes() const { return size() * sizeof(T); }
  std::size_t model_bytes() const { return has_control() ? 2 * bytes() : bytes(); }
  static T* values(const Hold& hold) { return static_cast<T*>(hold.get()->data); }
  std::int64_t read(const std::int64_t& value) const {
    const auto lock = queue_.lock_without(stepping_);
    return value;
  }

  fb_status find(std::int64_t version, Due*& due_out) {
    if (version < 0 || version > version_) {
      return FB_ERR_NEVER_GIVEN;
    }
    if (version < due_.begin()) {
      const auto far = far_due_.find(version);
      due_out = far == far_due_.end() ? nullptr : &far->second;
      return due_out != nullptr ? FB_OK : FB_ERR_NOTHING_DUE;
    }
    due_out = &due_[version];
    return due_out->tasks > 0 ? FB_OK : FB_ERR_NOTHING_DUE;
  }

  // Every version that may be due, the oldest first.
  template <class Function>
  void for_each_due(Function&& function) const {
    for (const auto& [version, due] : far_due_) {
      function(version, due);
    }
    for (std::int64_t version = due_.begin(); version < due_.end(); ++version) {
      function(version, due_[version]);
    }
  }

  // Makes room for the next version's entry: the oldest are moved to the map if tasks are due on them.
  void make_room() {
    while (due_.size() >= kMostVersions) {
      if (due_.front().tasks > 0) {
        far_due_.emplace(due_.begin(), std::move(due_.front()));
      }
      due_.pop_front();
    }
    due_.make_room();
  }

  fb_model* held_model() {
    model_.get()->hold();
    return model_.get();
  }

  // One task on `version` has ended: frees entries and models that no task is due on.
  void return_task(std::int64_t version) {
    if (version < due_.begin()) {
      const auto far = far_due_.find(version);
      if (--far->second.tasks == 0) {
        far_due_.erase(far);
      }
      return;
    }
    Due& due = due_[version];
    if (--due.tasks == 0) {
      due.model.reset();
    }
    while (due_.size() > 1 && due_.front().tasks == 0) {
      due_.pop_front();
    }
  }

  // Adds the first arrival, and those after it up to a full buffer, in one pass. An arrival that cannot be added, or
  // is too stale, is settled alone; a pass that fails is repeated with its first arrival alone.
  std::size_t settle(TicketQueue::Lock& lock, Arrival* const* arrival, std::size_t n) override {
    if (arrival[0]->is_step() || holds()) {
      arrival[0]->status = arrival[0]->is_step() ? step_now(lock) : hold(lock, *arrival[0]);
      return 1;
    }
    terms_.clear();
    WeightSums after = state_.weights();
    double norm = 1;
    bool full = false;
    const bool alone = rule_.table != FB_TABLE_NONE || rule_.trigger != FB_TRIGGER_BUFFER || has_control();
    n = alone || state_.weighs_sum() ? 1 : n;
    for (std::size_t at = 0; at < n && !full && !arrival[at]->is_step(); ++at) {
      Arrival& next = *arrival[at];
      next.status = consider(arrival, at, after, full, norm);
      if (next.status != FB_OK || next.outcome == FB_TOO_STALE) {
        if (at > 0) {
          break;
        }
        return 1;
      }
    }
    const std::int64_t row = state_.row_of(arrival[0]->client, version_);
    if (rule_.table != FB_TABLE_NONE) {
      state_.begin_row(row, terms_[0]);
    }
    if (const fb_status status = add(lock); status != FB_OK) {
      state_.drop_row();
      if (terms_.size() > 1 && status != FB_ERR_HOST) {
        return settle(lock, arrival, 1);
      }
      arrival[0]->status = status == FB_ERR_OVERFLOW ? state_.reason(terms_[0]) : status;
      return 1;
    }
    if (has_control() && !state_.sum_changes(static_cast<const T*>(arrival[0]->change), next_changes_.data())) {
      arrival[0]->status = FB_ERR_OVERFLOW;
      return 1;
    }
    Hold next;
    if (full) {  // what may throw comes before the first change
      next = prepare_step();
    }
    state_.commit_sum();
    if (full && !step(lock, after, norm, next)) {
      state_.undo_sum();
      state_.drop_row();
      if (terms_.size() > 1) {
        return settle(lock, arrival, 1);
      }
      arrival[0]->status = FB_ERR_DIVERGED;
      return 1;
    }
    if (has_control()) {
      std::copy(next_changes_.begin(), next_changes_.end(), state_.changes_out());
    }
    state_.set_weights(after);
    if (rule_.table != FB_TABLE_NONE) {
      state_.store_row(row, terms_[0]);
    }
    state_.hear(arrival[0]->client, after.arrivals);
    if (full) {
      advance(std::move(next));
      arrival[terms_.size() - 1]->outcome = FB_STEPPED;
    }
    for (std::size_t k = 0; k < terms_.size(); ++k) {
      return_task(arrival[k]->version);
    }
    return terms_.size();
  }

  // An arrival whose weight is known at the step only.
  fb_status hold(TicketQueue::Lock& lock, Arrival& arrival) {
    double s = 1;
    const auto* delta = static_cast<const T*>(arrival.delta);
    if (const fb_status status = admit(arrival, 0, s); status != FB_OK || arrival.outcome == FB_TOO_STALE) {
      return status;
    }
    if (!kernels().of<T>().all_finite(dim_, delta)) {
      return FB_ERR_NOT_FINITE;
    }
    held_.push(dim_, delta, arrival.client, version_ - arrival.version, s, arrival.e);
    const std::int64_t fill = held_.size();
    Hold next;
    if (state_.completes(arrival.client, fill)) {
      fb_status status = FB_ERR_MEMORY;
      try {
        status = step_held(lock, next);
      } catch (const std::bad_alloc&) {
      }
      if (status != FB_OK) {
        held_.pop();
        return status;
      }
      arrival.outcome = FB_STEPPED;
    }
    state_.hear(arrival.client, fill);
    if (next) {
      held_.clear();
      advance(std::move(next));
    }
    return_task(arrival.version);
    return FB_OK;
  }

  // e of what is held, divided by its client's arrivals where the rule shares them out.
  std::vector<double> shared_weights() const {
    std::vector<std::int64_t> counts;
    if (rule_.weight_shared != 0) {
      counts = held_.count(rule_.n_clients);
    }
    std::vector<double> e;
    for (std::int64_t i = 0; i < held_.size(); ++i) {
      const bool shares = rule_.weight_shared != 0;
      e.push_back(shares ? held_.e(i) / static_cast<double>(counts[static_cast<std::size_t>(held_.client(i))])
                         : held_.e(i));
    }
    return e;
  }

  // The next model by the host's own rule. A status but FB_OK: nothing has changed.
  fb_status step_own(TicketQueue::Lock& lock, Hold& next_out) {
    const std::vector<double> shared = shared_weights();
    own_.begin();
    for (std::int64_t i = 0; i < held_.size(); ++i) {
      own_.add(held_.delta(i), held_.s(i) * shared[static_cast<std::size_t>(i)], held_.staleness(i), held_.client(i));
    }
    Hold next = prepare_step();
    OwnStep made = OwnStep::Failed;
    lock.unlock();  // the function is the host's: downloads go on, and find the present model
    try {
      made = own_.step(dim_, version_, values(model_), values(next));
    } catch (...) {
      made = OwnStep::Failed;
    }
    lock.lock();
    if (made != OwnStep::Made) {
      spare_ = std::move(next);
      return made == OwnStep::Diverged ? FB_ERR_DIVERGED : FB_ERR_HOST;
    }
    own_.commit();
    next_out = std::move(next);
    return FB_OK;
  }

  // The next model from what is held. A status but FB_OK: nothing has changed.
  fb_status step_held(TicketQueue::Lock& lock, Hold& next_out) {
    if (own_.is_there()) {
      return step_own(lock, next_out);
    }
    const std::vector<double> shared = shared_weights();
    terms_.clear();
    WeightSums after;
    for (std::int64_t i = 0; i < held_.size(); ++i) {
      const double e = shared[static_cast<std::size_t>(i)];
      double weight = 0;
      state_.weigh(held_.s(i), e, held_.staleness(i), 1.0, after, weight);
      terms_.emplace_back(held_.delta(i), dtype(), weight, nullptr);
    }
    const double norm = norm_of(rule_, after);
    if (norm == 0) {
      return FB_ERR_ZERO_NORM;
    }
    if (const fb_status status = add(lock); status != FB_OK) {
      return status;
    }
    next_out = prepare_step();
    state_.commit_sum();
    if (!step(lock, after, norm, next_out)) {
      state_.undo_sum();
      return FB_ERR_DIVERGED;
    }
    state_.set_weights(after);
    return FB_OK;
  }

  // A step with what is in the buffer.
  fb_status step_now(TicketQueue::Lock& lock) {
    if (n_in_buffer() == 0) {
      return FB_ERR_EMPTY;
    }
    Hold next;
    if (holds()) {
      if (const fb_status status = step_held(lock, next); status != FB_OK) {
        return status;
      }
      held_.clear();
    } else {
      const WeightSums& sums = state_.weights();
      const double norm = norm_of(rule_, sums);
      if (norm == 0) {
        return FB_ERR_ZERO_NORM;
      }
      std::copy_n(state_.changes(), next_changes_.size(), next_changes_.begin());
      next = prepare_step();
      if (!step(lock, sums, norm, next)) {
        return FB_ERR_DIVERGED;
      }
    }
    advance(std::move(next));
    return FB_OK;
  }

  // Whether an arrival may be added, when `before` of the same version are to be added first, and s of its staleness.
  // One that is too stale is settled.
  fb_status admit(Arrival& next, std::int64_t before, double& s_out) {
    const std::int64_t version = next.version;
    next.outcome = FB_ADDED;
    Due* due = nullptr;
    if (const fb_status status = find(version, due); status != FB_OK) {
      return status;
    }
    if (due->tasks <= before) {
      return FB_ERR_NOTHING_DUE;
    }
    const std::int64_t staleness = version_ - version;
    if (staleness >= too_stale(rule_)) {
      next.outcome = FB_TOO_STALE;
      if (terms_.empty() || holds()) {
        ++dropped_;
        return_task(version);
      }
      return FB_OK;
    }
    const double* weight = staleness_weight(staleness);
    if (weight == nullptr) {
      return FB_ERR_SHORT_TABLE;
    }
    s_out = *weight;
    return FB_OK;
  }

  // Checks arrival[at], which follows those in terms_, and makes it a term if it can be added.
  fb_status consider(Arrival* const* arrival, std::size_t at, WeightSums& after, bool& full, double& norm) {
    Arrival& next = *arrival[at];
    const std::int64_t version = next.version;
    const auto same = std::count_if(arrival, arrival + at, [=](auto* a) { return a->version == version; });
    double s = 1;
    if (const fb_status status = admit(next, same, s); status != FB_OK || next.outcome == FB_TOO_STALE) {
      return status;
    }
    WeightSums with = after;
    const std::int64_t staleness = version_ - version;
    double se = 0;
    const T* before = nullptr;
    if (needs_start(rule_) && version != version_) {
      Due* due = nullptr;
      find(version, due);
      before = values(due->model);
    }
    const double q = state_.sum().fixed()
                         ? 1.0
                         : state_.weight_of_numbers(static_cast<const T*>(next.delta), values(model_), before);
    if (const fb_status status = state_.weigh(s, next.e, staleness, q, with, se); status != FB_OK) {
      return status;
    }
    const bool fills = state_.completes(next.client, with.arrivals);
    const double divisor = fills ? norm_of(rule_, with) : 1.0;
    if (divisor == 0) {
      return FB_ERR_ZERO_NORM;
    }
    const void* delta = next.delta;
    if (keeps_models(rule_)) {
      delta = state_.minus_model(static_cast<const T*>(delta), before == nullptr ? values(model_) : before);
    }
    terms_.emplace_back(delta, next.dtype, se, is_rebased(rule_, version, version_) ? before : nullptr);
    terms_.back().model = next.model;
    after = with;
    full = fills;
    norm = divisor;
    return FB_OK;
  }

  // s of a staleness; null where the table does not have it.
  const double* staleness_weight(std::int64_t staleness) const {
    static constexpr double one = 1.0;
    if (staleness_weight_.empty()) {
      return &one;
    }
    if (static_cast<std::size_t>(staleness) < staleness_weight_.size()) {
      return &staleness_weight_[static_cast<std::size_t>(staleness)];
    }
    const auto far = far_weight_.find(staleness);
    return far == far_weight_.end() ? nullptr : &far->second;
  }

  fb_status add(TicketQueue::Lock& lock) {
    const T* current = values(model_);
    std::atomic<fb_status> found{FB_OK};
    const fb_status ran = queue_.run(lock, state_.n_chunks(), false, [&](std::int64_t chunk) {
      if (const fb_status status = state_.add_chunk(chunk, terms_, current); status != FB_OK) {
        found.store(status, std::memory_order_relaxed);
      }
    });
    return ran != FB_OK ? ran : found.load(std::memory_order_relaxed);
  }

  // Memory for the next model: that of an old model which nobody holds, else new memory, whose first access costs more
  // than the step. The present model must stay, in case the next one is not finite.
  Hold next_model() { return spare_ && spare_.alone() ? std::move(spare_) : Hold(fb_model::create(model_bytes())); }

  // Memory for a step, and room for the next version's entry. Throws std::bad_alloc, and has then changed nothing.
  Hold prepare_step() {
    Hold next = next_model();
    make_room();
    return next;
  }

  // Makes the next model and moments from the full buffer, in memory that prepare_step gave; returns whether the
  // model is finite: else the memory is kept. Downloads wait for it.
  bool step(TicketQueue::Lock& lock, const WeightSums& sums, double norm, Hold& next) {
    const StepConfig config = step_config(rule_, sums, norm, version_);
    std::atomic<bool> finite{true};
    stepping_ = true;
    queue_.run(lock, state_.n_chunks(), true, [&](std::int64_t chunk) {
      if (!state_.step_chunk(chunk, config, values(model_), values(next))) {
        finite.store(false, std::memory_order_relaxed);
      }
    });
    bool good = finite.load(std::memory_order_relaxed);
    if (good && has_control()) {
      good = state_.step_control(next_changes_.data(), values(model_) + dim_, values(next) + dim_, values(next));
    }
    if (good && state_.is_hidden()) {
      good = state_.show(config, values(model_), values(next));
    }
    stepping_ = false;
    if (!good) {
      spare_ = std::move(next);
    }
    return good;
  }

  // Makes the next model the present one. There is room for its entry.
  void advance(Hold next) {
    state_.commit_step();
    state_.clear_changes();
    state_.note_step(values(model_), values(next));
    Due& present = due_.back();
    if (needs_start(rule_) && present.tasks > 0) {
      present.model = model_.again();
    }
    spare_ = std::move(model_);
    model_ = std::move(next);
    ++version_;
    due_.push_back({});
  }

  const fb_rule rule_;
  const std::int64_t dim_;
  mutable TicketQueue queue_;
  Hold model_, spare_;  // the present one, and the one before it, whose memory may be used again
  RuleState<T> state_;
  OwnRule<T> own_;
  HeldDeltas<T> held_;  // where the rule's weights are known at the step only
  std::int64_t version_ = 0, dropped_ = 0;
  bool stepping_ = false;                      // chunks of the next model are being written
  std::vector<Term> terms_;                    // of the batch that is being settled
  PlacedVector<T> next_changes_;               // of clients' states in the buffer, with that of the arrival
  std::vector<double> staleness_weight_;       // by staleness; empty: always 1
  std::map<std::int64_t, double> far_weight_;  // of a staleness above the table's
  IndexRing<Due> due_;                         // by version, the present one last
  std::map<std::int64_t, Due> far_due_;        // older versions that tasks are due on
};

}  // namespace

std::unique_ptr<fb_server> make_server(const fb_rule& rule, fb_dtype dtype, std::int64_t dim, const void* w0) {
  if (dtype == FB_F32) {
    return std::make_unique<Server<float>>(rule, dim, w0);
  }
  return std::make_unique<Server<double>>(rule, dim, w0);
}

}  // namespace fedbuff
