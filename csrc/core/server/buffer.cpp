#include "server/buffer.hpp"

#include <atomic>
#include <vector>

#include "server/delta_sum.hpp"
#include "threads/ticket_queue.hpp"

namespace fedbuff {

namespace {

template <class T>
class Buffer final : public fb_buffer, private TicketQueue::Sink {
 public:
  Buffer(std::int64_t dim, double unit) : sum_(dim, unit) { terms_.reserve(TicketQueue::kMaxBatch); }

  fb_status add(fb_dtype dtype, std::int64_t dim, const void* delta, double weight, std::int64_t ticket) override {
    if (const fb_status status = sum_.accepts(dtype, dim); status != FB_OK) {
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
    empty();
  }

  fb_status step(fb_dtype dtype, std::int64_t dim, const void* w, double lr, void* w_out) override {
    if (dtype != (sizeof(T) == 4 ? FB_F32 : FB_F64)) {
      return FB_ERR_DTYPE;
    }
    if (dim != sum_.dim()) {
      return FB_ERR_SIZE;
    }
    const auto lock = queue_.lock();
    for (std::int64_t chunk = 0; chunk < sum_.n_chunks(); ++chunk) {
      sum_.make_values(chunk);
    }
    StepConfig config{};
    config.lr = lr;
    config.norm = 1;
    kernels().of<T>().sgd_step(dim, static_cast<const T*>(w), sum_.values(), config, nullptr, static_cast<T*>(w_out));
    empty();
    return FB_OK;
  }

  std::int64_t dim() const override { return sum_.dim(); }
  std::int64_t count() const override {
    const auto lock = queue_.lock();
    return count_;
  }
  const void* sum() override {
    const auto lock = queue_.lock();
    return sum_.raw();
  }

 private:
  void empty() {
    sum_.clear();
    count_ = 0;
  }

  // All of them in one pass; where that fails, the first alone.
  std::size_t settle(TicketQueue::Lock& lock, Arrival* const* arrival, std::size_t n) override {
    terms_.clear();
    for (std::size_t k = 0; k < n; ++k) {
      const double weight = sum_.fixed() ? fixed_weight(arrival[k]->e) : arrival[k]->e;
      terms_.push_back({arrival[k]->delta, arrival[k]->dtype, weight, nullptr});
    }
    const bool first = count_ == 0;
    std::atomic<fb_status> found{FB_OK};
    const fb_status ran = queue_.run(lock, sum_.n_chunks(), false, [&](std::int64_t chunk) {
      if (const fb_status status = sum_.add_chunk(chunk, first, terms_, nullptr); status != FB_OK) {
        found.store(status, std::memory_order_relaxed);
      }
    });
    const fb_status status = ran != FB_OK ? ran : found.load(std::memory_order_relaxed);
    if (status != FB_OK) {
      if (n > 1 && status != FB_ERR_HOST) {
        return settle(lock, arrival, 1);
      }
      arrival[0]->status = status == FB_ERR_OVERFLOW ? sum_.reason(terms_[0]) : status;
      return 1;
    }
    sum_.commit();
    count_ += static_cast<std::int64_t>(n);
    return n;
  }

  mutable TicketQueue queue_;
  DeltaSum<T> sum_;
  std::vector<typename DeltaSum<T>::Term> terms_;  // of the batch that is being settled
  std::int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<fb_buffer> make_buffer(fb_dtype dtype, std::int64_t dim, double unit) {
  if (dtype == FB_F32) {
    return std::make_unique<Buffer<float>>(dim, unit);
  }
  return std::make_unique<Buffer<double>>(dim, unit);
}

}  // namespace fedbuff
