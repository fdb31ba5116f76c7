#include "server.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "dispatch.hpp"
#include "rule.hpp"

fb_model* fb_model::create(std::size_t bytes) {
  auto* model = new fb_model;
  model->data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
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

// A held model.
class Hold {
 public:
  Hold() = default;
  explicit Hold(fb_model* model) : model_(model) {}  // takes over a count
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

// One version that somebody may still owe an update on.
struct Due {
  std::int64_t tasks = 0;
  Hold model;  // kept only where an update is taken against the current model
};

template <class T>
class Server final : public fb_server {
 public:
  Server(const fb_rule& rule, std::int64_t dim, const void* w0)
      : rule_(rule), dim_(dim), model_(fb_model::create(bytes())), sum_(size()), next_sum_(size()) {
    std::memcpy(model_.get()->data, w0, bytes());
    first_.resize(has_first_moment(rule) ? size() : 0);
    second_.resize(has_second_moment(rule) ? size() : 0);
    due_.emplace_back();
  }

  void set_staleness(const double* weight, std::int64_t n_weights) override {
    std::vector<double> copy(weight, weight + n_weights);
    const std::lock_guard<std::mutex> lock(mutex_);
    staleness_weight_.swap(copy);
  }

  fb_status upload(const void* delta, std::int64_t version, double e, std::int32_t* outcome_out) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Due* due = nullptr;
    if (const fb_status status = find(version, due); status != FB_OK) {
      return status;
    }
    std::int32_t outcome = FB_TOO_STALE;
    const auto staleness = static_cast<std::size_t>(version_ - version);
    if (rule_.max_staleness >= 0 && version_ - version > rule_.max_staleness) {
      ++dropped_;
    } else {
      if (!staleness_weight_.empty() && staleness >= staleness_weight_.size()) {
        return FB_ERR_SHORT_TABLE;
      }
      const double s = staleness_weight_.empty() ? 1.0 : staleness_weight_[staleness];
      const Kernels<T>& k = kernels().of<T>();
      const double sum_weights = sum_weights_ + e;
      const double sum_scaled_weights = sum_scaled_weights_ + s * e;
      const bool full = fill_ + 1 == rule_.buffer_size;
      const double norm = full ? norm_of(rule_, fill_ + 1, sum_weights, sum_scaled_weights) : 1.0;
      if (norm == 0) {
        return FB_ERR_ZERO_NORM;
      }
      const bool against_current = rule_.base == FB_BASE_CURRENT && version != version_;
      const T* start = against_current ? values(due->model) : nullptr;
      if (!k.accumulate(dim_, fill_ == 0 ? nullptr : sum_.data(), static_cast<const T*>(delta), static_cast<T>(s * e),
                        values(model_), start, next_sum_.data())) {
        return FB_ERR_NOT_FINITE;
      }
      Hold next;
      if (full) {  // all that may throw comes before anything changes
        next = next_model();
        due_.emplace_back();
      }
      sum_.swap(next_sum_);
      sum_weights_ = sum_weights;
      sum_scaled_weights_ = sum_scaled_weights;
      ++fill_;
      outcome = full ? FB_STEPPED : FB_ADDED;
      if (full) {
        step(k, norm, std::move(next));
      }
    }
    settle(version);
    if (outcome_out != nullptr) {
      *outcome_out = outcome;
    }
    return FB_OK;
  }

  fb_status cancel(std::int64_t version) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Due* due = nullptr;
    const fb_status status = find(version, due);
    if (status == FB_OK) {
      settle(version);
    }
    return status;
  }

  fb_model* download(std::int64_t* version_out) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    model_.get()->hold();
    if (version_out != nullptr) {
      *version_out = version_;
      ++due_.back().tasks;
    }
    return model_.get();
  }

  std::unique_ptr<fb_server> clone() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::unique_ptr<fb_server>(new Server(*this));
  }

  void get_state(fb_server_state& state) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    state.version = version_;
    state.fill = fill_;
    state.dropped = dropped_;
    state.sum_weights = sum_weights_;
    state.sum_scaled_weights = sum_scaled_weights_;
    state.w = model_.get()->data;
    state.sum = sum_.data();
    state.first = first_.empty() ? nullptr : first_.data();
    state.second = second_.empty() ? nullptr : second_.data();
    std::int64_t n = 0;
    for (std::size_t i = 0; i < due_.size(); ++i) {
      if (due_[i].tasks == 0) {
        continue;
      }
      if (state.due != nullptr) {
        state.due_version[n] = first_version() + static_cast<std::int64_t>(i);
        state.due[n] = due_[i].tasks;
        state.kept[n] = due_[i].model ? due_[i].model.get()->data : nullptr;
      }
      ++n;
    }
    state.n_due = n;
  }

  void restore(const fb_server_state& state) override {
    version_ = state.version;
    fill_ = state.fill;
    dropped_ = state.dropped;
    sum_weights_ = state.sum_weights;
    sum_scaled_weights_ = state.sum_scaled_weights;
    std::memcpy(sum_.data(), state.sum, bytes());
    if (!first_.empty()) {
      std::memcpy(first_.data(), state.first, bytes());
    }
    if (!second_.empty()) {
      std::memcpy(second_.data(), state.second, bytes());
    }
    due_.clear();
    const std::int64_t oldest = state.n_due > 0 ? state.due_version[0] : state.version;
    due_.resize(static_cast<std::size_t>(state.version - oldest + 1));
    for (std::int64_t i = 0; i < state.n_due; ++i) {
      Due& due = due_[static_cast<std::size_t>(state.due_version[i] - oldest)];
      due.tasks = state.due[i];
      if (rule_.base == FB_BASE_CURRENT && state.due_version[i] != state.version) {
        due.model = Hold(fb_model::create(bytes()));
        std::memcpy(due.model.get()->data, state.kept[i], bytes());
      }
    }
  }

  std::int64_t dim() const override { return dim_; }
  std::int64_t version() const override { return read(version_); }
  std::int64_t fill() const override { return read(fill_); }
  std::int64_t dropped() const override { return read(dropped_); }
  std::int64_t outstanding() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t n = 0;
    for (const Due& due : due_) {
      n += due.tasks;
    }
    return n;
  }
  std::int64_t live_models() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t n = 1;
    for (const Due& due : due_) {
      n += due.model ? 1 : 0;
    }
    return n;
  }

 private:
  // The caller holds the other's lock.
  Server(const Server& other)
      : rule_(other.rule_),
        dim_(other.dim_),
        model_(other.model_.again()),
        sum_(other.sum_),
        next_sum_(size()),
        first_(other.first_),
        second_(other.second_),
        version_(other.version_),
        fill_(other.fill_),
        dropped_(other.dropped_),
        sum_weights_(other.sum_weights_),
        sum_scaled_weights_(other.sum_scaled_weights_),
        staleness_weight_(other.staleness_weight_) {
    for (const Due& due : other.due_) {
      due_.push_back({due.tasks, due.model ? due.model.again() : Hold()});
    }
  }

  std::size_t size() const { return static_cast<std::size_t>(dim_); }
  std::size_t bytes() const { return size() * sizeof(T); }
  static T* values(const Hold& hold) { return static_cast<T*>(hold.get()->data); }
  std::int64_t first_version() const { return version_ - static_cast<std::int64_t>(due_.size()) + 1; }
  std::int64_t read(const std::int64_t& value) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return value;
  }

  fb_status find(std::int64_t version, Due*& due_out) {
    if (version < 0 || version > version_) {
      return FB_ERR_NEVER_GIVEN;
    }
    if (version < first_version()) {
      return FB_ERR_NOTHING_DUE;
    }
    due_out = &due_[static_cast<std::size_t>(version - first_version())];
    return due_out->tasks > 0 ? FB_OK : FB_ERR_NOTHING_DUE;
  }

  // One task on `version` is over; forget what nobody needs any more. A step may have happened since it was found.
  void settle(std::int64_t version) {
    Due& due = due_[static_cast<std::size_t>(version - first_version())];
    if (--due.tasks == 0) {
      due.model.reset();
    }
    while (due_.size() > 1 && due_.front().tasks == 0) {
      due_.pop_front();
    }
  }

  // Where the next model goes: over the present one where nobody holds it, else into a fresh one.
  Hold next_model() {
    const bool keep = rule_.base == FB_BASE_CURRENT && due_.back().tasks > 0;
    return !keep && model_.alone() ? model_.again() : Hold(fb_model::create(bytes()));
  }

  // Moves the model by the full buffer. The next version's entry stands at the end of due_ already.
  void step(const Kernels<T>& k, double norm, Hold next) {
    step_model(k, rule_, step_config(rule_, norm, version_), dim_, values(model_), sum_.data(), first_.data(),
               second_.data(), values(next));
    Due& present = due_[due_.size() - 2];
    if (rule_.base == FB_BASE_CURRENT && present.tasks > 0) {
      present.model = model_.again();
    }
    model_ = std::move(next);
    ++version_;
    fill_ = 0;
    sum_weights_ = 0;
    sum_scaled_weights_ = 0;
  }

  const fb_rule rule_;
  const std::int64_t dim_;
  mutable std::mutex mutex_;
  Hold model_;
  std::vector<T> sum_, next_sum_;  // a refused delta leaves sum_ as it was
  std::vector<T> first_, second_;
  std::int64_t version_ = 0, fill_ = 0, dropped_ = 0;
  double sum_weights_ = 0, sum_scaled_weights_ = 0;
  std::vector<double> staleness_weight_;  // by staleness; empty: always 1
  std::deque<Due> due_;                   // versions first_version() .. version_
};

}  // namespace

std::unique_ptr<fb_server> make_server(const fb_rule& rule, fb_dtype dtype, std::int64_t dim, const void* w0) {
  if (dtype == FB_F32) {
    return std::make_unique<Server<float>>(rule, dim, w0);
  }
  return std::make_unique<Server<double>>(rule, dim, w0);
}

}  // namespace fedbuff
