// The server: sequences of calls, states that were saved, changed and restored. A call that fails changes nothing but
// its ticket, a model that is held does not change, and a restored server is the same.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "host.hpp"
#include "input.hpp"

namespace {

using fuzz::Input;
using Bytes = std::vector<std::uint8_t>;

Bytes copy(const void* from, std::size_t n) {
  Bytes bytes(from == nullptr ? 0 : n);
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), from, n);
  }
  return bytes;
}

// A host's own step: it writes, or fails, or writes what is not finite, as its state and the deltas say.
std::int32_t own_step(void*, const fb_step_input* step) {
  MUST(step->n > 0 && step->dim > 0 && step->w != nullptr && step->w_out != nullptr);
  const auto write = [&](auto* out, const auto* w, auto number) {
    for (std::int64_t i = 0; i < step->dim; ++i) {
      out[i] = w[i] - number;
      for (std::int64_t k = 0; k < step->n; ++k) {
        out[i] -= static_cast<const decltype(number)*>(step->delta[k])[i];
      }
    }
  };
  const double number = step->n_state > 0 ? step->state[0]++ : 1.0;
  if (step->dtype == FB_F32) {
    write(static_cast<float*>(step->w_out), static_cast<const float*>(step->w), static_cast<float>(number));
  } else {
    write(static_cast<double*>(step->w_out), static_cast<const double*>(step->w), number);
  }
  return step->weight[0] == 0.5 ? 7 : 0;
}

// What servers of other algorithms do, each with what it needs.
void set_algorithm(Input& in, fb_rule& rule) {
  rule.base = FB_BASE_START;
  switch (in.below(6)) {
    case 0:
      rule.trigger = static_cast<std::int32_t>(in.below(3));
      rule.per_client = in.one_in(2) ? 1.0 : 1.5;
      break;
    case 1:  // Ringleader
      rule.trigger = FB_TRIGGER_RINGLEADER;
      rule.table = FB_TABLE_ROWS;
      rule.table_keeps = FB_KEEPS_MEANS;
      rule.norm = FB_NORM_CLIENTS;
      break;
    case 2:  // FedFa
      rule.table = FB_TABLE_ROWS;
      rule.table_keeps = FB_KEEPS_MODELS;
      rule.norm = FB_NORM_CLIENTS;
      rule.buffer_size = 1;
      rule.table_own = -1;
      break;
    case 3: rule.weight_shared = 1; break;
    case 4:
      rule.hidden_levels = static_cast<std::int32_t>(in.below(9));
      rule.hidden_seed = in.byte();
      break;
    default:
      rule.own_step = &own_step;
      rule.own_state = in.below(3);
      rule.optimizer = FB_SGD;
      rule.momentum = rule.weight_decay = 0;
      rule.norm = FB_NORM_ONE;
  }
}

fb_rule any_rule(Input& in) {
  fb_rule rule = FB_RULE_INIT;
  rule.base = static_cast<std::int32_t>(in.below(2));
  rule.norm = static_cast<std::int32_t>(in.below(5));
  rule.optimizer = static_cast<std::int32_t>(in.below(8));
  rule.buffer_size = 1 + in.below(4);
  rule.n_clients = 1 + in.below(8);
  rule.max_staleness = in.below(4) - 1;
  rule.lr = in.positive();
  rule.momentum = in.one_in(2) ? in.positive() : 0;
  rule.weight_decay = in.one_in(4) ? in.positive() : 0;
  rule.period = 1 + in.below(3);
  rule.activation = in.one_in(2) ? in.positive() : 0;
  rule.initial = in.one_in(4) ? in.positive() : 0;
  if (in.one_in(3)) {
    rule.decay = static_cast<std::int32_t>(in.below(4));
    rule.decay_steps = 1 + in.below(4);
    rule.decay_factor = in.positive();
    rule.decay_floor = in.positive();
    rule.warm_up = in.below(4);
    rule.delay_lr = static_cast<std::int32_t>(in.below(3));
    rule.tau_c = in.below(3);
  }
  rule.stop_stale = in.one_in(4) ? in.below(4) : 0;
  // Rules of whole numbers have neither a table nor weights made from numbers.
  switch (in.below(6)) {
    case 0: rule.unit = in.positive(); break;
    case 1:
      rule.table = static_cast<std::int32_t>(in.below(3));
      rule.table_seen = static_cast<std::int32_t>(in.below(2));
      rule.table_wait = static_cast<std::int32_t>(in.below(2));
      rule.table_own = in.real();
      rule.table_mean = in.real();
      break;
    case 2:
      rule.weight_by = static_cast<std::int32_t>(in.below(6));
      rule.weight_epsilon = in.one_in(4) ? in.positive() : 0.125;
      rule.weight_clip = in.one_in(2) ? in.positive() : 0;
      break;
    case 3:
    case 4: set_algorithm(in, rule); break;
    default: break;
  }
  switch (in.below(40)) {
    case 0: rule.base = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 1: rule.norm = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 2: rule.buffer_size = in.whole(); break;
    case 3: rule.n_clients = in.whole(); break;
    case 4: rule.max_staleness = in.whole(); break;
    case 5: rule.lr = in.real(); break;
    case 6: rule.beta1 = in.real(); break;
    case 7: rule.beta2 = in.real(); break;
    case 8: rule.epsilon = in.real(); break;
    case 9: rule.abi = in.byte(); break;
    case 10: rule.size = in.byte() % (sizeof rule + 1); break;
    case 11: rule.table = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 12: rule.weight_by = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 13: rule.decay = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 14: rule.period = in.whole(); break;
    case 15: rule.warm_up = in.whole(); break;
    case 16: rule.tau_c = in.whole(); break;
    case 17: rule.decay_steps = in.whole(); break;
    case 18: rule.unit = in.positive(); break;
    case 19: rule.trigger = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 20: rule.table_keeps = static_cast<std::int32_t>(in.whole() & 0xff); break;
    case 21: rule.hidden_levels = static_cast<std::int32_t>(in.whole() & 0xffff); break;
    case 22: rule.stop_stale = in.whole(); break;
    case 23: rule.own_state = in.whole(); break;
    default: break;
  }
  return rule;
}

std::size_t bytes_of(fb_dtype dtype) { return dtype == FB_BF16 ? 2 : dtype == FB_F32 || dtype == FB_I32 ? 4 : 8; }

// All that a state points to, kept for itself.
struct State {
  fb_server_state numbers = FB_SERVER_STATE_INIT;
  Bytes w, sum, first, second;
  std::vector<std::int64_t> due_version, due;
  std::vector<Bytes> kept;
  std::vector<const void*> kept_at;
  std::vector<fb_array> array;
  std::vector<Bytes> array_bytes;

  // What the rule keeps beside the moments. What a buffer changed in a table says nothing where the buffer is empty.
  bool same_arrays(const State& other) const {
    bool same = array.size() == other.array.size();
    for (std::size_t i = 0; same && i < array.size(); ++i) {
      const fb_array &a = array[i], &b = other.array[i];
      const bool counts = numbers.fill > 0 || std::strcmp(a.name, "table_change") != 0;
      same = std::strcmp(a.name, b.name) == 0 && a.key == b.key && a.size == b.size && a.dtype == b.dtype &&
             (!counts || array_bytes[i] == other.array_bytes[i]);
    }
    return same;
  }

  bool operator==(const State& other) const {
    const auto plain = [](const State& s) {
      const fb_server_state& n = s.numbers;
      return std::vector<double>{
          static_cast<double>(n.version),        static_cast<double>(n.fill),
          static_cast<double>(n.dropped),        n.fill > 0 ? n.sum_weights : 0,
          n.fill > 0 ? n.sum_scaled_weights : 0, n.fill > 0 ? static_cast<double>(n.staleness) : 0};
    };
    const auto bits = [](const std::vector<double>& all) { return copy(all.data(), 8 * all.size()); };
    return bits(plain(*this)) == bits(plain(other)) && w == other.w && first == other.first && second == other.second &&
           due_version == other.due_version && due == other.due && kept == other.kept &&
           (numbers.fill == 0 || sum == other.sum) && same_arrays(other);
  }

  // As the library takes it.
  const fb_server_state* view() {
    numbers.w = w.data();
    numbers.sum = sum.data();
    numbers.first = first.empty() ? nullptr : first.data();
    numbers.second = second.empty() ? nullptr : second.data();
    numbers.n_due = static_cast<std::int64_t>(due.size());
    numbers.due_version = due_version.data();
    numbers.due = due.data();
    kept_at.clear();
    for (const Bytes& model : kept) {
      kept_at.push_back(model.empty() ? nullptr : model.data());
    }
    numbers.kept = kept_at.data();
    for (std::size_t i = 0; i < array.size(); ++i) {
      array[i].data = array_bytes[i].data();
    }
    numbers.n_arrays = static_cast<std::int64_t>(array.size());
    numbers.arrays = array.data();
    return &numbers;
  }
};

class Session {
 public:
  Session(Input& in, const fb_rule& rule, fb_dtype dtype, std::int64_t dim, fb_server* server)
      : in_(in), rule_(rule), dtype_(dtype), dim_(dim), server_(server) {}
  ~Session() {
    for (const auto& [model, bytes] : held_) {
      MUST(copy(fb_model_data(model), model_bytes()) == bytes);
    }
    fb_server_destroy(&server_);
    MUST(server_ == nullptr);
    for (const auto& [model, bytes] : held_) {  // models outlive their server
      MUST(copy(fb_model_data(model), model_bytes()) == bytes);
      fb_model_release(model);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void call() {
    switch (in_.below(13)) {
      case 0:
      case 1: download(); break;
      case 2:
      case 3:
      case 4:
      case 5: upload(); break;
      case 6: fb_server_cancel(server_, in_.one_in(4) ? in_.whole() : some_version()); break;
      case 7: tickets(); break;
      case 8: set(); break;
      case 9: restore(); break;
      case 10: clone(); break;
      case 11:
        if (tickets_.empty()) {  // else it would wait for them
          in_.one_in(4) ? step() : dtype_ == FB_F32 ? upload_models<float>() : upload_models<double>();
        }
        break;
      default:
        if (in_.one_in(16)) {
          closed_ = true;
          tickets_.clear();
          MUST(fb_server_close(server_) == FB_OK);
        }
    }
    const State now = state_of(server_);
    MUST(now.numbers.version == fb_server_version(server_) && now.numbers.fill == fb_server_fill(server_));
    MUST(now.numbers.fill >= 0 && now.numbers.version >= 0);
    MUST(now.numbers.fill < rule_.buffer_size || rule_.trigger != FB_TRIGGER_BUFFER);
    MUST(fb_server_outstanding(server_) >= 0 && fb_server_live_models(server_) >= 1);
    MUST(fb_server_dim(server_) == dim_ && fb_server_dtype(server_) == dtype_);
  }

 private:
  std::size_t model_bytes() const {
    return static_cast<std::size_t>(dim_) * (dtype_ == FB_F32 ? sizeof(float) : sizeof(double));
  }
  std::int64_t some_version() { return fb_server_version(server_) - in_.below(4); }

  State state_of(fb_server* server) const {
    State state;
    MUST(fb_server_get_state(server, &state.numbers) == FB_OK);
    const auto n = static_cast<std::size_t>(state.numbers.n_due);
    state.due_version.resize(n + 1);
    state.due.resize(n + 1);
    state.kept_at.resize(n + 1);
    state.numbers.due_version = state.due_version.data();
    state.numbers.due = state.due.data();
    state.numbers.kept = state.kept_at.data();
    state.array.resize(static_cast<std::size_t>(state.numbers.n_arrays) + 1);
    state.numbers.arrays = state.array.data();
    MUST(fb_server_get_state(server, &state.numbers) == FB_OK);
    state.array.resize(static_cast<std::size_t>(state.numbers.n_arrays));
    for (const fb_array& array : state.array) {
      state.array_bytes.push_back(copy(array.data, static_cast<std::size_t>(array.size) * bytes_of(array.dtype)));
    }
    state.due_version.resize(n);
    state.due.resize(n);
    state.kept_at.resize(n);
    const std::size_t sum_bytes = rule_.unit > 0 ? static_cast<std::size_t>(dim_) * 8 : model_bytes();
    state.w = copy(state.numbers.w, model_bytes());
    state.sum = copy(state.numbers.sum, sum_bytes);
    state.first = copy(state.numbers.first, model_bytes());
    state.second = copy(state.numbers.second, model_bytes());
    for (std::size_t i = 0; i < n; ++i) {
      const bool others = state.due_version[i] != state.numbers.version;
      state.kept.push_back(others ? copy(state.kept_at[i], model_bytes()) : Bytes());
    }
    return state;
  }

  void download() {
    std::int64_t version = -5;
    if (in_.one_in(4)) {
      Bytes w(model_bytes());
      const bool wrong = in_.one_in(8);
      const fb_status status = fb_server_download_to(server_, dtype_, dim_ + wrong, w.data(), &version);
      MUST(status != FB_OK || (!wrong && version == fb_server_version(server_)));
      return;
    }
    fb_model* model = nullptr;
    const fb_status status = fb_server_download(server_, &version, &model);
    MUST((status == FB_OK) == (model != nullptr) && (!closed_ || status != FB_OK));
    if (model != nullptr) {
      MUST(version == fb_server_version(server_));
      if (held_.size() < 8) {
        held_.emplace_back(model, copy(fb_model_data(model), model_bytes()));
      } else {
        fb_model_release(model);
      }
    }
  }

  template <class T>
  fb_status upload(fb_dtype dtype, std::int64_t dim, std::int64_t version, std::int64_t ticket, std::int32_t& outcome) {
    const std::vector<T> delta = in_.numbers<T>(dim);
    std::int32_t* const outcome_out = in_.one_in(8) ? nullptr : &outcome;
    if (rule_.table == FB_TABLE_NONE && in_.one_in(2)) {
      return fb_server_upload(server_, dtype, dim, delta.data(), version, in_.positive(), ticket, outcome_out);
    }
    return fb_server_upload_from(server_, dtype, dim, delta.data(), version, in_.positive(), any_client(), ticket,
                                 outcome_out);
  }
  std::int64_t any_client() {
    return in_.one_in(16) ? in_.whole() : in_.below(8) % std::max<std::int64_t>(rule_.n_clients, 1);
  }

  // Up to 20 models at once; the same number of tasks ends as were added.
  template <class T>
  void upload_models() {
    const std::int64_t n = in_.below(in_.one_in(8) ? 20 : 4);
    const std::vector<T> start = in_.numbers<T>(dim_), model = in_.numbers<T>(dim_);
    const std::int64_t ends[] = {in_.one_in(32) ? in_.whole() : in_.below(dim_ < 256 ? dim_ : 256),
                                 in_.one_in(32) ? in_.whole() : dim_};
    const T* const second = ends[0] >= 0 && ends[0] <= dim_ ? model.data() + ends[0] : model.data();
    const void* const parts[] = {model.data(), in_.one_in(64) ? nullptr : second};
    std::vector<fb_model_upload> uploads;
    for (std::int64_t i = 0; i < n; ++i) {
      uploads.push_back({in_.one_in(64) ? nullptr : start.data(), parts, ends, 2, some_version(), any_client(),
                         in_.positive(), FB_OK, 0});
    }
    const State before = state_of(server_);
    const std::int64_t outstanding = fb_server_outstanding(server_);
    const fb_status status = fb_server_upload_models(server_, dtype_, dim_, n, uploads.data());
    const auto added = std::count_if(uploads.begin(), uploads.end(), [](const auto& u) { return u.status == FB_OK; });
    if (status == FB_OK) {
      MUST(fb_server_outstanding(server_) == outstanding - added);
      MUST(added > 0 || state_of(server_) == before);
    } else {
      MUST(state_of(server_) == before && fb_server_outstanding(server_) == outstanding);
    }
  }

  void upload() {
    const State before = state_of(server_);
    const std::int64_t live = fb_server_live_models(server_), outstanding = fb_server_outstanding(server_);
    const bool wrong = in_.one_in(32), unknown = in_.one_in(32);
    const auto dtype = static_cast<fb_dtype>(wrong ? in_.below(4) : rule_.unit > 0 ? FB_I32 + in_.below(2) : dtype_);
    const std::int64_t dim = in_.one_in(64) ? 1 + in_.below(50) : dim_;
    const std::int64_t version = in_.one_in(16) ? in_.whole() : some_version();
    const std::int64_t ticket = unknown            ? (std::int64_t{1} << 40) + in_.byte()
                                : tickets_.empty() ? FB_NO_TICKET
                                                   : tickets_.front();
    std::int32_t outcome = -1;
    fb_status status = FB_OK;
    switch (dtype) {
      case FB_F32: status = upload<float>(dtype, dim, version, ticket, outcome); break;
      case FB_F64: status = upload<double>(dtype, dim, version, ticket, outcome); break;
      case FB_I32: status = upload<std::int32_t>(dtype, dim, version, ticket, outcome); break;
      default: status = upload<std::int64_t>(dtype, dim, version, ticket, outcome);
    }
    if (status == FB_OK) {
      MUST(!closed_ && !unknown && fb_server_outstanding(server_) == outstanding - 1);
    } else {
      MUST(state_of(server_) == before && fb_server_live_models(server_) == live);
      MUST(fb_server_outstanding(server_) == outstanding && outcome == -1);
    }
    const bool unused = status == FB_ERR_ARGUMENT || status == FB_ERR_DTYPE || status == FB_ERR_SIZE ||
                        status == FB_ERR_SHORT_TABLE || status == FB_ERR_CLIENT || unknown;
    if (!tickets_.empty() && !unused) {
      tickets_.pop_front();
    }
  }

  void step() {
    const State before = state_of(server_);
    const fb_status status = fb_server_step(server_);
    MUST(status == FB_OK ? fb_server_version(server_) == before.numbers.version + 1 : state_of(server_) == before);
    std::int64_t version[3] = {-1, -1, -1}, due[3];
    const std::int64_t n = in_.below(4), found = fb_server_overdue(server_, n, version, due);
    MUST(found >= 0 && (found == 0 || rule_.stop_stale > 0));
    for (std::int64_t i = 0; i < std::min(n, found); ++i) {
      MUST(version[i] >= 0 && due[i] > 0 && (i == 0 || version[i] > version[i - 1]));
    }
  }

  void tickets() {
    std::int64_t ticket = 0;
    if (tickets_.size() < 4 && in_.one_in(2)) {
      if (fb_server_take_ticket(server_, &ticket) == FB_OK) {
        MUST(!closed_ && (tickets_.empty() || ticket > tickets_.back()));
        tickets_.push_back(ticket);
      }
      return;
    }
    ticket = tickets_.empty() || in_.one_in(4) ? in_.whole()
                                               : tickets_[static_cast<std::size_t>(in_.below(4)) % tickets_.size()];
    const auto at = std::find(tickets_.begin(), tickets_.end(), ticket);
    const fb_status status = fb_server_cancel_ticket(server_, ticket);
    MUST(closed_ || (status == FB_OK) == (at != tickets_.end()));
    if (status == FB_OK && at != tickets_.end()) {
      tickets_.erase(at);
    }
  }

  void set() {
    const std::int64_t kind = in_.below(4);
    if (kind == 3) {
      set_table();
    } else if (kind == 0) {
      std::vector<double> weight(static_cast<std::size_t>(1 + in_.below(6)), in_.real());
      weight.back() = in_.real();
      fb_server_set_staleness(server_, weight.data(), static_cast<std::int64_t>(weight.size()));
    } else if (kind == 1) {
      fb_server_set_staleness_at(server_, in_.whole(), in_.real());
    } else {
      host_.set(in_, [&](const fb_executor* executor) { fb_server_set_executor(server_, executor); });
    }
  }

  // Memory of ours for a table's rows, enough or not; it lives as long as the session.
  void set_table() {
    if (memories_.size() < 4 && rule_.n_clients > 0 && rule_.n_clients < 256) {
      memories_.emplace_back(static_cast<std::size_t>(rule_.n_clients * dim_) * bytes_of(dtype_));
      const auto bytes = static_cast<std::int64_t>(memories_.back().size());
      fb_server_set_table(server_, memories_.back().data(), in_.one_in(4) ? in_.below(256) % (bytes + 1) : bytes);
    }
  }

  // The state, whole or with a change, makes another server or none.
  void restore() {
    State state = state_of(server_), taken = state;
    const std::int64_t change = in_.below(14);
    switch (change) {
      case 0: state.numbers.version = in_.whole(); break;
      case 1: state.numbers.fill = in_.whole(); break;
      case 2: state.numbers.dropped = in_.whole(); break;
      case 3: state.numbers.sum_weights = in_.real(); break;
      case 4: state.numbers.sum_scaled_weights = in_.real(); break;
      case 5:
        if (!state.due.empty()) {
          state.due[static_cast<std::size_t>(in_.below(8)) % state.due.size()] = in_.whole();
        }
        break;
      case 6:
        if (!state.due.empty()) {
          state.due_version[static_cast<std::size_t>(in_.below(8)) % state.due.size()] = in_.whole();
        }
        break;
      case 7: state.numbers.size = in_.byte(); break;
      case 8:
      case 9:
        if (!state.array.empty()) {
          change_array(state, change == 8);
        }
        break;
      default: break;
    }
    fb_server* other = nullptr;
    const fb_status status = fb_server_restore(&rule_, dtype_, dim_, state.view(), &other);
    MUST((status == FB_OK) == (other != nullptr) && (change < 10 || status == FB_OK));
    if (other == nullptr) {
      return;
    }
    MUST(change < 10 || state_of(other) == taken);
    if (in_.one_in(2)) {
      std::swap(other, server_);
      tickets_.clear();
      closed_ = false;
    }
    fb_server_destroy(&other);
  }

  // Another key, type or name of an array, or one less; sizes stay, as their memory does.
  void change_array(State& state, bool removes) {
    const std::size_t at = static_cast<std::size_t>(in_.byte()) % state.array.size();
    if (removes) {
      state.array.erase(state.array.begin() + static_cast<std::ptrdiff_t>(at));
      state.array_bytes.erase(state.array_bytes.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
    fb_array& array = state.array[at];
    switch (in_.below(4)) {
      case 0: array.key = in_.whole(); break;
      case 1: array.name = "none"; break;
      case 2: array.size = in_.below(static_cast<std::int64_t>(std::min<std::int64_t>(array.size + 1, 256))); break;
      default: array.dtype = array.dtype == FB_F64 ? FB_F32 : array.dtype == FB_F32 ? FB_BF16 : FB_F64; break;
    }
  }

  void clone() {
    fb_server* other = nullptr;
    const fb_status status = fb_server_clone(server_, &other);
    MUST(status == FB_OK && state_of(other) == state_of(server_));
    MUST(fb_server_outstanding(other) == fb_server_outstanding(server_));
    if (in_.one_in(2)) {
      std::swap(other, server_);
      tickets_.clear();
      closed_ = false;
    }
    fb_server_destroy(&other);
  }

  Input& in_;
  fb_rule rule_;
  fb_dtype dtype_;
  std::int64_t dim_;
  fb_server* server_;
  fuzz::Host host_;
  std::deque<std::int64_t> tickets_;
  std::deque<Bytes> memories_;
  std::vector<std::pair<fb_model*, Bytes>> held_;
  bool closed_ = false;
};

template <class T>
fb_status create(Input& in, const fb_rule& rule, fb_dtype dtype, std::int64_t dim, fb_server** server_out) {
  const std::vector<T> w0 = in.numbers<T>(dim);
  return fb_server_create(&rule, dtype, dim, w0.data(), server_out);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const fb_rule rule = any_rule(in);
  const fb_dtype dtype = in.one_in(2) ? FB_F64 : FB_F32;
  const std::int64_t dim = in.one_in(256) ? 17000 : 1 + in.below(40);
  fb_server* server = nullptr;
  const fb_status status =
      dtype == FB_F32 ? create<float>(in, rule, dtype, dim, &server) : create<double>(in, rule, dtype, dim, &server);
  MUST((status == FB_OK) == (server != nullptr));
  if (server != nullptr) {
    Session session(in, rule, dtype, dim, server);
    for (int calls = 0; !in.empty() && calls < (dim > 40 ? 6 : 60); ++calls) {
      session.call();
    }
  }
  return 0;
}
