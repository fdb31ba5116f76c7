#include "replay/replay.hpp"

#include <utility>

#include "replay/engine.hpp"

namespace fedbuff {

template <class T>
Replay<T>::Replay(const fb_rule& rule, std::int64_t dim, const T* w0, ClientWork<T>& work, std::int64_t window_bytes,
                  const SumConfig& sums, std::unique_ptr<SecureSum<T>> secure)
    : engine_(std::make_unique<ReplayEngine<T>>(rule, dim, w0, work, window_bytes, sums, std::move(secure))) {}
template <class T>
Replay<T>::~Replay() = default;
template <class T>
void Replay<T>::add(const ReplayRow* rows, std::int64_t n_rows, const std::int64_t* references, std::int64_t n_steps) {
  engine_->add(rows, n_rows, references, n_steps);
}
template <class T>
void Replay<T>::release(const std::int64_t* versions, std::int64_t n) {
  engine_->release(versions, n);
}
template <class T>
void Replay<T>::close() {
  engine_->close();
}
template <class T>
ReplayExit Replay<T>::run(std::int64_t max_steps, int threads) {
  return engine_->run(max_steps, threads);
}
template <class T>
void Replay<T>::record_gradients(const Problem<T>& problem, std::int64_t every, std::int64_t offset) {
  engine_->commit().record_gradients(problem, every, offset);
}
template <class T>
const std::vector<double>& Replay<T>::gradients() const {
  return engine_->commit().gradients();
}
template <class T>
void Replay<T>::set_table(void* memory, std::int64_t bytes) {
  if (engine_->commit().state().rows().use(memory, bytes) != FB_OK) {
    throw std::invalid_argument("table: the memory is too small, or comes too late");
  }
}
template <class T>
std::int64_t Replay<T>::version() const {
  return engine_->versions().current();
}
template <class T>
const T* Replay<T>::w() const {
  return engine_->versions().find(version());
}
template <class T>
std::int64_t Replay<T>::width() const {
  return engine_->width();
}
template <class T>
std::vector<fb_array> Replay<T>::rule_state() const {
  return engine_->arrays();
}
template <class T>
Divergence Replay<T>::divergence() const {
  return engine_->divergence();
}
template <class T>
ReplayStats Replay<T>::stats() const {
  return engine_->stats();
}
template <class T>
void Replay<T>::check() const {
  engine_->check();
}
template <class T>
std::vector<std::int64_t> Replay<T>::live_versions() const {
  return engine_->versions().live();
}
template <class T>
const T* Replay<T>::model(std::int64_t version) const {
  return engine_->versions().find(version);
}
template <class T>
std::vector<const T*> Replay<T>::waiting_deltas() const {
  return engine_->waiting_deltas();
}
template <class T>
void Replay<T>::pass_over(std::int64_t version) {
  engine_->pass_over(version);
}
template <class T>
std::int64_t Replay<T>::restore(const T* w, const std::vector<std::int64_t>& live, const T* models,
                                const std::vector<fb_array>& rule_state, const T* deltas, std::int64_t n_deltas) {
  return engine_->restore(w, live, models, rule_state, deltas, n_deltas);
}

template class Replay<float>;
template class Replay<double>;
}  // namespace fedbuff
