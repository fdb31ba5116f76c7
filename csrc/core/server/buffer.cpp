#include "server/buffer.hpp"

#include <atomic>
#include <vector>

#include "server/rule_state.hpp"
#include "threads/ticket_queue.hpp"

namespace fedbuff {

namespace {

template <class T>
class Buffer final : public fb_buffer, private TicketQueue::Sink {
 public:
  Buffer(std::int64_t dim, double unit) : state_(rule_of(unit), dim, OnFailure::Restore) {
    terms_.reserve(TicketQueue::kMaxBatch);
  }

  fb_status add(fb_dtype dtype, std::int64_t dim, const void* delta, double weight, std::int64_t ticket) override {
    if (const fb_status status = state_.sum().accepts(dtype, dim); status != FB_OK) {
      return status;
    }
    Arrival arrival{delta, dtype, 0, weight, ticket};
    return queue_.submit(*this, arrival);
  }

  fb_status take_ticket(std::int64_t* ticket_out) override { return queue_.take_ticket(ticket_out); }
  fb_status cancel_ticket(std::int64_t ticket) override { return queue_.cancel_ticket(ticket); }
  void set_executor(const fb_executor* executor) override { queue_.set_executor(executor); }
  void close() override { queue_.close(); }
  bool is_lost() override { return queue_.is_lost(); }

  void clear() override {
    const auto lock = queue_.lock();
    state_.clear();
  }

  fb_status step(fb_dtype dtype, std::int64_t dim, const void* w, double lr, void* w_out) override {
    if (dtype != (sizeof(T) == 4 ? FB_F32 : FB_F64)) {
      return FB_ERR_DTYPE;
    }
    if (dim != this->dim()) {
      return FB_ERR_SIZE;
    }
    const auto lock = queue_.lock();
    StepConfig config = step_config(state_.rule(), {}, 1.0, 0);
    config.lr = lr;
    state_.step(config, static_cast<const T*>(w), static_cast<T*>(w_out));
    state_.clear();
    return FB_OK;
  }

  std::int64_t dim() const override { return state_.sum().dim(); }
  std::int64_t count() const override {
    const auto lock = queue_.lock();
    return state_.weights().arrivals;
  }
  const void* sum() override {
    const auto lock = queue_.lock();
    return state_.sum().raw();
  }

 private:
  // The buffer alone weighs nothing by staleness and divides by nothing: lr is given with each step.
  static fb_rule rule_of(double unit) {
    fb_rule rule = FB_RULE_INIT;
    rule.unit = unit;
    return rule;
  }

  // Adds all of them in one pass; where that fails, the first alone.
  std::size_t settle(TicketQueue::Lock& lock, Arrival* const* arrival, std::size_t n) override {
    terms_.clear();
    WeightSums after = state_.weights();
    for (std::size_t k = 0; k < n; ++k) {
      double weight = 0;
      state_.weigh(1.0, arrival[k]->e, 0, 1.0, after, weight);  // the sums of weights are not used, and may be inexact
      terms_.emplace_back(arrival[k]->delta, arrival[k]->dtype, weight, nullptr);
    }
    std::atomic<fb_status> found{FB_OK};
    const fb_status ran = queue_.run(lock, state_.n_chunks(), false, [&](std::int64_t chunk) {
      if (const fb_status status = state_.add_chunk(chunk, terms_, nullptr); status != FB_OK) {
        found.store(status, std::memory_order_relaxed);
      }
    });
    const fb_status status = ran != FB_OK ? ran : found.load(std::memory_order_relaxed);
    if (status != FB_OK) {
      if (n > 1 && status != FB_ERR_HOST) {
        return settle(lock, arrival, 1);
      }
      arrival[0]->status = status == FB_ERR_OVERFLOW ? state_.reason(terms_[0]) : status;
      return 1;
    }
    state_.commit_sum();
    state_.set_weights(after);
    return n;
  }

  mutable TicketQueue queue_;
  RuleState<T> state_;
  std::vector<typename RuleState<T>::Term> terms_;  // of the batch that is being settled
};

}  // namespace

std::unique_ptr<fb_buffer> make_buffer(fb_dtype dtype, std::int64_t dim, double unit) {
  if (dtype == FB_F32) {
    return std::make_unique<Buffer<float>>(dim, unit);
  }
  return std::make_unique<Buffer<double>>(dim, unit);
}

}  // namespace fedbuff
