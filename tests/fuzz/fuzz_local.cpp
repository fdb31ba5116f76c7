// Local SGD: problems and configurations, sound or not, at every CPU level. Arrays are as long as their owner says;
// what is in them is anything. The same call gives the same bits.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "input.hpp"
#include "kernels/dispatch.hpp"

namespace {

using fuzz::Input;

template <class T>
struct Arrays {
  std::vector<std::int32_t> layer_size, label, column;
  std::vector<std::int64_t> offsets, row_start, batch_sizes;
  std::vector<T> x, target, center, curvature;
  bool lies = false;  // about the size of x: what is made of them is not used
};

// 0 = n_0 <= n_1 <= ... <= at most `most`, or not quite.
std::vector<std::int64_t> ascending(Input& in, std::int64_t n, std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(n) + 1, 0);
  for (std::size_t i = 1; i < at.size(); ++i) {
    at[i] = std::min(at[i - 1] + least + in.below(3), most);
  }
  if (in.one_in(32)) {
    at[static_cast<std::size_t>(in.below(n + 1))] = in.whole();
    if (at.back() > most) {
      at.back() = -1;  // more than there is would be a lie that nobody can see through
    }
  }
  return at;
}

void spoil(Input& in, std::vector<std::int32_t>& numbers) {
  if (!numbers.empty() && in.one_in(16)) {
    numbers[static_cast<std::size_t>(in.byte()) % numbers.size()] = static_cast<std::int32_t>(in.whole());
  }
}

// A number that stands for nothing, where 0 to `last` do.
std::int32_t none_of(Input& in, std::int32_t last) {
  const std::int32_t number = static_cast<std::int32_t>(in.byte()) - 8;
  return number >= 0 && number <= last ? -1 : number;
}

// Of a struct in some version: it ends between two fields.
std::uint32_t any_size(Input& in, std::size_t whole) {
  return static_cast<std::uint32_t>(8 * (static_cast<std::size_t>(in.byte()) % (whole / 8 + 1)));
}

template <class T>
fb_problem any_problem(Input& in, Arrays<T>& arrays) {
  fb_problem p = FB_PROBLEM_INIT;
  p.family = static_cast<std::int32_t>(in.below(3));
  p.head = static_cast<std::int32_t>(in.below(3));
  p.activation = static_cast<std::int32_t>(in.below(2));
  p.intercept = static_cast<std::int32_t>(in.below(2));
  p.n_layers = p.family == FB_NET ? static_cast<std::int32_t>(1 + in.below(in.one_in(32) ? 16 : 3)) : 1;
  p.curvature_form = static_cast<std::int32_t>(in.below(3));
  p.curvature_shared = static_cast<std::int32_t>(in.below(2));
  p.n_clients = 1 + in.below(4);
  p.l2 = in.one_in(4) ? in.real() : 0;
  p.nonconvex = in.one_in(8) ? in.real() : 0;
  p.noise_variance = in.one_in(4) ? in.real() : 0;
  for (std::int32_t l = 0; l <= p.n_layers; ++l) {
    arrays.layer_size.push_back(static_cast<std::int32_t>(1 + in.below(l == 0 ? 40 : 20)));
  }
  if (p.family == FB_SPARSE && p.head == FB_SOFTMAX) {
    p.head = FB_LOGISTIC;
  }
  if (p.head != FB_SOFTMAX) {
    arrays.layer_size.back() = 1;
  }
  const std::int64_t features = arrays.layer_size[0], outputs = arrays.layer_size.back();
  const std::int64_t rows = 3 * p.n_clients;
  arrays.offsets = ascending(in, p.n_clients, 1, rows);
  if (p.family == FB_QUADRATIC) {
    const std::int64_t one = p.curvature_form == FB_SCALAR     ? 1
                             : p.curvature_form == FB_DIAGONAL ? features
                                                               : features * features;
    arrays.center = in.numbers<T>(p.n_clients * features);
    arrays.curvature = in.numbers<T>(one * (p.curvature_shared != 0 ? 1 : p.n_clients));
  } else if (p.family == FB_SPARSE) {
    arrays.row_start = ascending(in, rows, 0, 2 * rows);
    arrays.x = in.numbers<T>(2 * rows);
    for (std::int64_t i = 0; i < 2 * rows; ++i) {
      arrays.column.push_back(static_cast<std::int32_t>(i % features));
    }
    spoil(in, arrays.column);
  } else {
    arrays.x = in.numbers<T>(rows * features);
  }
  arrays.target = in.numbers<T>(rows);
  for (std::int64_t i = 0; i < rows; ++i) {
    arrays.label.push_back(static_cast<std::int32_t>(i % outputs));
  }
  spoil(in, arrays.label);
  if (p.family != FB_QUADRATIC && in.below(32) == 0) {
    arrays.lies = true;
    std::fill(arrays.layer_size.begin(), arrays.layer_size.end() - 1, in.raw<std::int32_t>());
    arrays.layer_size.back() = p.head == FB_SOFTMAX ? in.raw<std::int32_t>() : 1;
  }
  switch (in.below(48)) {
    case 0: p.family = none_of(in, FB_LAYERS); break;  // another one would lie about the arrays
    case 1: p.head = static_cast<std::int32_t>(in.byte()) - 8; break;
    case 2: p.activation = in.byte(); break;
    case 3: p.n_layers = static_cast<std::int32_t>(in.below(2) == 0 ? 17 : -in.byte()); break;
    case 4: p.curvature_form = none_of(in, FB_DENSE); break;
    case 5: p.n_clients = in.one_in(2) ? 0 : -in.byte(); break;
    case 6: p.size = any_size(in, sizeof p); break;
    case 7: p.abi = in.byte(); break;
    case 8: p.intercept = in.byte(); break;
    default: break;
  }
  const auto give = [&](auto& values) { return in.one_in(64) ? nullptr : values.data(); };
  p.layer_size = give(arrays.layer_size);
  p.offsets = give(arrays.offsets);
  p.x = give(arrays.x);
  p.target = give(arrays.target);
  p.label = give(arrays.label);
  p.column = give(arrays.column);
  p.row_start = give(arrays.row_start);
  p.center = give(arrays.center);
  p.curvature = give(arrays.curvature);
  return p;
}

template <class T>
fb_local_config any_config(Input& in, const fb_problem& p, Arrays<T>& arrays) {
  fb_local_config c = FB_LOCAL_CONFIG_INIT;
  c.steps = 1 + in.below(3);
  c.batch_size = in.below(8);
  c.seed = in.raw<std::uint16_t>();
  c.lr = in.positive();
  c.momentum = in.one_in(4) ? in.real() : 0;
  c.weight_decay = in.one_in(4) ? in.real() : 0;
  c.prox = in.one_in(4) ? in.real() : 0;
  if (in.one_in(4) && p.n_clients > 0 && p.n_clients < 100) {
    for (std::int64_t i = 0; i < p.n_clients; ++i) {
      arrays.batch_sizes.push_back(in.one_in(32) ? -1 : in.below(6));
    }
    c.batch_sizes = arrays.batch_sizes.data();
  }
  static const fb_learning_rate rates[] = {{1.0, FB_DECAY_COSINE, 3, 1.0, 0.5, 2}, {0.5, FB_DECAY_STEP, 2, 0.5, 0, 0}};
  c.lr_by_version = in.one_in(4) ? &rates[in.below(2)] : nullptr;
  c.lr_by_step = in.one_in(4) ? &rates[in.below(2)] : nullptr;
  c.epochs = in.one_in(4) ? in.below(3) : 0;
  c.drop_last = in.one_in(4) ? 1 : 0;
  const std::int64_t bad = in.below(32);
  c.steps = bad == 0 ? -in.byte() : bad == 1 ? (std::int64_t{1} << 33) : c.steps;
  c.batch_size = bad == 2 ? -1 - in.byte() : bad == 3 ? (std::int64_t{1} << 31) : c.batch_size;
  c.size = bad == 4 ? any_size(in, sizeof c) : c.size;
  if (bad == 1) {
    c.lr_by_step = nullptr;  // its factors are laid out for every step
  }
  return c;
}

std::int32_t gradient(std::int64_t client, std::int64_t n_rows, const std::int64_t* rows, const void* w,
                      void* gradient_out, void* context) {
  (void)w, (void)client;
  const std::int64_t bytes = *static_cast<const std::int64_t*>(context);
  for (std::int64_t i = 0; i < n_rows; ++i) {
    MUST(rows[i] >= 0 && rows[i] < 3);
  }
  std::memset(gradient_out, static_cast<int>(n_rows % 64), static_cast<std::size_t>(bytes));
  return n_rows == 5 ? 7 : 0;
}

template <class T>
void use(Input& in, fb_local* local, fb_dtype dtype) {
  const std::int64_t dim = fb_local_dim(local), n_clients = fb_local_n_clients(local);
  MUST(dim >= 1 && dim < 20000 && n_clients >= 1);
  const std::vector<T> w = in.numbers<T>(dim);
  for (int calls = 0; calls < 4; ++calls) {
    std::vector<T> delta(w.size()), again(w.size());
    const std::int64_t client = in.one_in(16) ? in.whole() : in.below(n_clients);
    const auto task = in.raw<std::uint16_t>();
    const fb_status status = fb_local_delta(local, dtype, dim, client, task, w.data(), delta.data());
    MUST(fb_local_delta(local, dtype, dim, client, task, w.data(), again.data()) == status);
    MUST(status != FB_OK || std::memcmp(delta.data(), again.data(), sizeof(T) * delta.size()) == 0);
    MUST(client >= 0 && client < n_clients ? status != FB_ERR_ARGUMENT : status == FB_ERR_ARGUMENT);
  }
  MUST(fb_local_delta(local, dtype, dim + 1, 0, 0, w.data(), nullptr) == FB_ERR_ARGUMENT);
}

template <class T>
void fuzz_one(Input& in, fb_dtype dtype) {
  Arrays<T> arrays;
  const fb_problem problem = any_problem<T>(in, arrays);
  const fb_local_config config = any_config(in, problem, arrays);
  fb_local* local = nullptr;
  fb_status status = fb_local_create(&problem, &config, dtype, &local);
  MUST((status == FB_OK) == (local != nullptr));
  if (local != nullptr && !arrays.lies) {
    use<T>(in, local, dtype);
  }
  fb_local_destroy(&local);
  const std::vector<std::int64_t> samples(static_cast<std::size_t>(1 + in.below(4)), in.one_in(16) ? in.whole() : 3);
  std::int64_t bytes = (1 + in.below(30)) * static_cast<std::int64_t>(sizeof(T));
  fb_local_config own = config;
  if (own.batch_sizes != nullptr && arrays.batch_sizes.size() < samples.size()) {
    own.batch_sizes = nullptr;
  }
  status = fb_local_create_custom(&gradient, &bytes, static_cast<std::int64_t>(samples.size()), samples.data(), &own,
                                  dtype, bytes / static_cast<std::int64_t>(sizeof(T)), &local);
  MUST((status == FB_OK) == (local != nullptr));
  if (local != nullptr && samples[0] == 3) {
    use<T>(in, local, dtype);
  }
  fb_local_destroy(&local);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  int n_levels = 0;
  const char* const* levels = fedbuff::available_levels();
  while (levels[n_levels] != nullptr) {
    ++n_levels;
  }
  MUST(fedbuff::force_level(levels[in.byte() % n_levels]));
  in.one_in(2) ? fuzz_one<double>(in, FB_F64) : fuzz_one<float>(in, FB_F32);
  return 0;
}
