// Every kernel, on every CPU level, against plain loops in double. Arrays are allocated to the byte: a sanitizer sees
// every step beyond them.
#include <algorithm>
#include <cstring>
#include <functional>

#include "server/aggregate.hpp"
#include "check.hpp"
#include "kernels/dispatch.hpp"
#include "numbers/philox.hpp"
#include "clients/workspace.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

constexpr std::int64_t kDims[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 127, 130, 1000};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
void accumulate_adds() {
  Numbers numbers(1);
  for (const std::int64_t dim : kDims) {
    const auto sum = numbers.vector<T>(dim), delta = numbers.vector<T>(dim);
    const auto now = numbers.vector<T>(dim), start = numbers.vector<T>(dim);
    std::vector<T> out(at(dim));
    const T weight = T(0.75);
    CHECK(kernels().of<T>().accumulate(dim, sum.data(), delta.data(), weight, nullptr, nullptr, out.data()));
    for (std::int64_t j = 0; j < dim; ++j) {
      CHECK_NEAR(out[at(j)], sum[at(j)] + 0.75 * delta[at(j)], 2, 2.0, j);
    }
    CHECK(kernels().of<T>().accumulate(dim, nullptr, delta.data(), weight, now.data(), start.data(), out.data()));
    for (std::int64_t j = 0; j < dim; ++j) {
      const double moved = static_cast<double>(now[at(j)]) - static_cast<double>(start[at(j)]);
      CHECK_NEAR(out[at(j)], 0.75 * (static_cast<double>(delta[at(j)]) + moved), 3, 3.0, j);
    }
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      for (const std::int64_t where : {std::int64_t{0}, dim / 2, dim - 1}) {
        auto broken = delta;
        broken[at(where)] = bad;
        CHECK(!kernels().of<T>().accumulate(dim, sum.data(), broken.data(), weight, nullptr, nullptr, out.data()));
      }
    }
  }
}

template <class T>
void aggregate_subtracts() {
  Numbers numbers(2);
  for (const std::int64_t dim : kDims) {
    for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 8, 10, 17}) {
      const auto w = numbers.vector<T>(dim), weight = numbers.vector<T>(n);
      std::vector<std::vector<T>> delta;
      std::vector<const T*> pointer;
      for (std::int64_t k = 0; k < n; ++k) {
        delta.push_back(numbers.vector<T>(dim));
      }
      for (const auto& one : delta) {
        pointer.push_back(one.data());
      }
      std::vector<T> out(at(dim)), in_place = w;
      kernels().of<T>().aggregate(0, dim, w.data(), n, pointer.data(), weight.data(), T(0.5), out.data());
      kernels().of<T>().aggregate(0, dim, in_place.data(), n, pointer.data(), weight.data(), T(0.5), in_place.data());
      CHECK(std::memcmp(out.data(), in_place.data(), at(dim) * sizeof(T)) == 0);
      std::vector<T> sum(at(dim)), stepped(at(dim));
      for (std::int64_t k = 0; k < n; ++k) {
        kernels().of<T>().accumulate(dim, k == 0 ? nullptr : sum.data(), pointer[at(k)], weight[at(k)], nullptr,
                                     nullptr, sum.data());
      }
      StepConfig config{};
      config.lr = 0.5;
      config.norm = 1;
      kernels().of<T>().sgd_step(dim, w.data(), sum.data(), config, nullptr, stepped.data());
      for (std::int64_t j = 0; j < dim; ++j) {
        double want = 0;
        for (std::int64_t k = 0; k < n; ++k) {
          want += static_cast<double>(weight[at(k)]) * static_cast<double>(delta[at(k)][at(j)]);
        }
        const double terms = static_cast<double>(n) + 2;
        CHECK_NEAR(out[at(j)], static_cast<double>(w[at(j)]) - 0.5 * want, terms, terms, j);
        CHECK_EQ(out[at(j)], stepped[at(j)]);  // the fused pass gives the bits of the separate ones
      }
    }
  }
}

// However the elements are cut, wherever the deltas begin, and with more deltas than go side by side.
template <class T>
void aggregate_is_elementwise() {
  Numbers numbers(9);
  constexpr std::int64_t kDim = 10'007;
  for (const std::int64_t n : {1, 7, 10, 11, 23}) {
    const auto w = numbers.vector<T>(kDim), weight = numbers.vector<T>(n);
    std::vector<std::vector<T>> delta;
    std::vector<const T*> aligned, shifted;
    for (std::int64_t k = 0; k < n; ++k) {
      delta.push_back(numbers.vector<T>(kDim));
    }
    std::vector<std::vector<T>> moved(at(n), std::vector<T>(at(kDim + 16)));
    for (std::int64_t k = 0; k < n; ++k) {
      std::copy(delta[at(k)].begin(), delta[at(k)].end(), moved[at(k)].begin() + k % 16);
      aligned.push_back(delta[at(k)].data());
      shifted.push_back(moved[at(k)].data() + k % 16);
    }
    std::vector<T> want(at(kDim)), sum(at(kDim));
    for (std::int64_t k = 0; k < n; ++k) {
      kernels().of<T>().accumulate(kDim, k == 0 ? nullptr : sum.data(), aligned[at(k)], weight[at(k)], nullptr, nullptr,
                                   sum.data());
    }
    StepConfig config{};
    config.lr = 0.5;
    config.norm = 1;
    kernels().of<T>().sgd_step(kDim, w.data(), sum.data(), config, nullptr, want.data());
    for (const auto& pointer : {aligned, shifted}) {
      for (const std::int64_t cut : {0, 1, 13, 4096, 5000, 10'006}) {
        std::vector<T> out(at(kDim));
        kernels().of<T>().aggregate(cut, kDim, w.data(), n, pointer.data(), weight.data(), T(0.5), out.data());
        CHECK(std::all_of(out.begin(), out.begin() + cut, [](T x) { return x == T(0); }));  // left alone
        kernels().of<T>().aggregate(0, cut, w.data(), n, pointer.data(), weight.data(), T(0.5), out.data());
        CHECK(out == want);
      }
    }
    std::vector<T> out(at(20 * kDim));  // the same vectors twenty times over, by many hands
    std::vector<T> long_w;
    std::vector<std::vector<T>> long_delta(at(n));
    std::vector<const T*> pointer;
    for (int times = 0; times < 20; ++times) {
      long_w.insert(long_w.end(), w.begin(), w.end());
      for (std::int64_t k = 0; k < n; ++k) {
        long_delta[at(k)].insert(long_delta[at(k)].end(), delta[at(k)].begin(), delta[at(k)].end());
      }
    }
    for (const auto& one : long_delta) {
      pointer.push_back(one.data());
    }
    aggregate_in_threads(20 * kDim, long_w.data(), n, pointer.data(), weight.data(), T(0.5), out.data(), 3);
    for (int times = 0; times < 20; ++times) {
      CHECK(std::equal(want.begin(), want.end(), out.begin() + times * kDim));
    }
  }
}

template <class T>
void steps_move() {
  Numbers numbers(3);
  for (const std::int64_t dim : kDims) {
    const auto w = numbers.vector<T>(dim), sum = numbers.vector<T>(dim);
    const auto first = numbers.vector<T>(dim), second = numbers.vector<T>(dim);
    StepConfig config{0.1, 4.0, 0.9, 0.9, 0.99, 1e-3, 0.01, 3};
    std::vector<T> velocity = first, out(at(dim));
    kernels().of<T>().sgd_step(dim, w.data(), sum.data(), config, velocity.data(), out.data());
    std::vector<T> m = first, s = second, moved(at(dim));
    for (T& x : s) {
      x = std::abs(x);
    }
    const std::vector<T> s0 = s;
    kernels().of<T>().adam_step(dim, w.data(), sum.data(), config, m.data(), s.data(), moved.data());
    for (std::int64_t j = 0; j < dim; ++j) {
      const double x = static_cast<double>(w[at(j)]), direction = static_cast<double>(sum[at(j)]) / 4.0;
      const double v = 0.9 * static_cast<double>(first[at(j)]) + direction;
      CHECK_NEAR(velocity[at(j)], v, 4, 2.0, j);
      CHECK_NEAR(out[at(j)], x - 0.1 * v, 6, 2.0, j);
      const double g = direction + 0.01 * x;
      const double m1 = 0.9 * static_cast<double>(first[at(j)]) + 0.1 * g;
      const double s1 = 0.99 * static_cast<double>(s0[at(j)]) + 0.01 * g * g;
      const double step = m1 / (1 - std::pow(0.9, 3)) / (std::sqrt(s1 / (1 - std::pow(0.99, 3))) + 1e-3);
      CHECK_NEAR(m[at(j)], m1, 6, 1.0, j);
      CHECK_NEAR(s[at(j)], s1, 6, 1.0, j);
      CHECK_NEAR(moved[at(j)], x - 0.1 * step, 40, 1.0 + std::abs(step), j);
    }
    double want = 0, size = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      want += static_cast<double>(w[at(j)]) * static_cast<double>(sum[at(j)]);
      size += std::abs(static_cast<double>(w[at(j)]) * static_cast<double>(sum[at(j)]));
    }
    CHECK_NEAR(kernels().of<T>().dot(dim, w.data(), sum.data()), want, static_cast<double>(dim), size, 0);
  }
}

// A problem and all that it looks at.
template <class T>
struct Owned {
  Problem<T> p{};
  std::vector<T> x, target, center, curvature;
  std::vector<std::int32_t> label, column;
  std::vector<std::int64_t> row_start;
  std::vector<std::int64_t> offsets{0, 3, 140, 141};  // a small client, one of more than a block, one of a row
  std::vector<double> weight{0.25, 0.5, 0.25};

  void rows(Numbers& numbers, std::vector<std::int32_t> sizes, Head head, bool intercept, bool sparse) {
    const std::int64_t n_rows = offsets.back(), n_features = sizes[0];
    p.family = sparse ? Family::Sparse : Family::Net;
    p.n_clients = 3;
    p.max_rows = 137;
    p.n_features = n_features;
    p.n_layers = static_cast<std::int32_t>(sizes.size()) - 1;
    p.intercept = intercept;
    p.head = head;
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      p.size[l] = sizes[l];
      p.dim += l == 0 ? 0 : std::int64_t{sizes[l]} * (sizes[l - 1] + (intercept ? 1 : 0));
    }
    if (sparse) {
      row_start.push_back(0);
      for (std::int64_t r = 0; r < n_rows; ++r) {
        for (std::int32_t c = static_cast<std::int32_t>(r % 3); c < sizes[0] && r % 5 != 4; c += 3) {
          column.push_back(c);
        }
        row_start.push_back(static_cast<std::int64_t>(column.size()));
      }
      x = numbers.vector<T>(row_start.back());
    } else {
      x = numbers.vector<T>(n_rows * n_features);
    }
    for (std::int64_t r = 0; r < n_rows; ++r) {
      label.push_back(static_cast<std::int32_t>(numbers.below(sizes.back())));
      target.push_back(head == Head::Logistic ? static_cast<T>(numbers.below(2)) : static_cast<T>(numbers.next()));
    }
    view();
  }

  void quadratic(Numbers& numbers, std::int64_t dim, Curvature form, bool shared) {
    p.family = Family::Quadratic;
    p.n_clients = 3;
    p.dim = dim;
    p.curvature_form = form;
    p.curvature_shared = shared;
    center = numbers.vector<T>(3 * dim);
    const std::int64_t n = form == Curvature::Scalar ? 1 : form == Curvature::Diagonal ? dim : dim * dim;
    for (int i = 0; i < (shared ? 1 : 3); ++i) {
      auto a = numbers.vector<T>(n);
      for (std::int64_t r = 0; form == Curvature::Dense && r < dim; ++r) {
        for (std::int64_t c = 0; c < r; ++c) {
          a[at(r * dim + c)] = a[at(c * dim + r)];
        }
      }
      curvature.insert(curvature.end(), a.begin(), a.end());
    }
    view();
  }

  void view() {
    p.offsets = offsets.data();
    p.client_weight = weight.data();
    p.x = x.data();
    p.target = target.data();
    p.label = label.data();
    p.column = column.data();
    p.row_start = row_start.data();
    p.center = center.data();
    p.curvature = curvature.data();
  }
};

// Loss of the mean over `rows` of the client (all where empty), its gradient, and how many rows are right; in double.
template <class T>
double plain(const Problem<T>& p, std::int64_t client, const std::vector<std::int64_t>& rows,
             const std::vector<double>& w, std::vector<double>& gradient, std::int64_t* right = nullptr) {
  gradient.assign(at(p.dim), 0.0);
  double loss = 0;
  if (p.family == Family::Quadratic) {
    const std::int64_t which = p.curvature_shared ? 0 : client;
    for (std::int64_t r = 0; r < p.dim; ++r) {
      for (std::int64_t c = 0; c < p.dim; ++c) {
        const double away = w[at(c)] - static_cast<double>(p.center[client * p.dim + c]);
        const double a = p.curvature_form == Curvature::Dense
                             ? static_cast<double>(p.curvature[(which * p.dim + r) * p.dim + c])
                         : r != c                                  ? 0.0
                         : p.curvature_form == Curvature::Diagonal ? static_cast<double>(p.curvature[which * p.dim + r])
                                                                   : static_cast<double>(p.curvature[which]);
        gradient[at(r)] += a * away;
      }
      loss += gradient[at(r)] * (w[at(r)] - static_cast<double>(p.center[client * p.dim + r])) / 2;
    }
    return loss;
  }
  std::vector<std::int64_t> all = rows;
  for (std::int64_t r = 0; rows.empty() && r < p.rows(client); ++r) {
    all.push_back(r);
  }
  const double share = 1.0 / static_cast<double>(all.size());
  for (const std::int64_t within : all) {
    const std::int64_t row = p.offsets[client] + within;
    std::vector<std::vector<double>> value(at(p.n_layers + 1));
    value[0].assign(at(p.n_features), 0.0);
    if (p.family == Family::Sparse) {
      for (std::int64_t k = p.row_start[row]; k < p.row_start[row + 1]; ++k) {
        value[0][at(p.column[k])] = static_cast<double>(p.x[k]);
      }
    } else {
      for (std::int64_t j = 0; j < p.n_features; ++j) {
        value[0][at(j)] = static_cast<double>(p.x[row * p.n_features + j]);
      }
    }
    std::vector<std::int64_t> begin;
    std::int64_t offset = 0;
    for (int l = 0; l < p.n_layers; ++l) {
      const std::int64_t n_in = p.size[l], n_out = p.size[l + 1];
      begin.push_back(offset);
      for (std::int64_t o = 0; o < n_out; ++o) {
        double z = p.intercept ? w[at(offset + n_in * n_out + o)] : 0.0;
        for (std::int64_t i = 0; i < n_in; ++i) {
          z += w[at(offset + o * n_in + i)] * value[at(l)][at(i)];
        }
        const bool hidden = l + 1 < p.n_layers;
        value[at(l + 1)].push_back(!hidden ? z : p.activation == Activation::Relu ? std::max(z, 0.0) : std::tanh(z));
      }
      offset += n_out * (n_in + (p.intercept ? 1 : 0));
    }
    std::vector<double> back = value.back();
    const double y = static_cast<double>(p.target[row]);
    if (p.head == Head::Squared) {
      back[0] -= y;
      loss += share * back[0] * back[0] / 2;
    } else if (p.head == Head::Logistic) {
      loss += share * (std::log1p(std::exp(-std::abs(back[0]))) + std::max(back[0], 0.0) - y * back[0]);
      if (right != nullptr) {
        *right += (back[0] > 0) == (y > 0.5) ? 1 : 0;
      }
      back[0] = 1 / (1 + std::exp(-back[0])) - y;
    } else {
      std::size_t best = 0;
      double total = 0;
      for (std::size_t o = 0; o < back.size(); ++o) {
        best = back[o] > back[best] ? o : best;
        total += std::exp(back[o]);
      }
      if (right != nullptr) {
        *right += best == static_cast<std::size_t>(p.label[row]) ? 1 : 0;
      }
      loss += share * (std::log(total) - back[at(p.label[row])]);
      for (std::size_t o = 0; o < back.size(); ++o) {
        back[o] = std::exp(back[o]) / total - (o == static_cast<std::size_t>(p.label[row]) ? 1.0 : 0.0);
      }
    }
    for (int l = p.n_layers - 1; l >= 0; --l) {
      const std::int64_t n_in = p.size[l], n_out = p.size[l + 1];
      std::vector<double> before(at(n_in));
      for (std::int64_t o = 0; o < n_out; ++o) {
        for (std::int64_t i = 0; i < n_in; ++i) {
          gradient[at(begin[at(l)] + o * n_in + i)] += share * back[at(o)] * value[at(l)][at(i)];
          before[at(i)] += back[at(o)] * w[at(begin[at(l)] + o * n_in + i)];
        }
        if (p.intercept) {
          gradient[at(begin[at(l)] + n_in * n_out + o)] += share * back[at(o)];
        }
      }
      for (std::int64_t i = 0; l > 0 && i < n_in; ++i) {
        const double a = value[at(l)][at(i)];
        before[at(i)] *= p.activation == Activation::Relu ? (a > 0 ? 1.0 : 0.0) : 1 - a * a;
      }
      back = before;
    }
  }
  for (std::int64_t j = 0; j < p.dim; ++j) {
    const double x = w[at(j)], q = 1 + x * x;
    loss += p.l2 * x * x / 2 + p.nonconvex * x * x / q;
    gradient[at(j)] += p.l2 * x + p.nonconvex * 2 * x / (q * q);
  }
  return loss;
}

template <class T>
struct Scratch {
  explicit Scratch(const Problem<T>& p) {
    const std::size_t bytes = kernels().of<T>().scratch_bytes(p);
    memory.reset(std::aligned_alloc(64, bytes));
    std::memset(memory.get(), 0, bytes);
  }
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  std::unique_ptr<void, Free> memory;
};

template <class T>
void objective_agrees(const Owned<T>& owned, std::uint64_t seed) {
  const Problem<T>& p = owned.p;
  Numbers numbers(seed);
  const auto w = numbers.vector<T>(p.dim);
  const std::vector<double> exact(w.begin(), w.end());
  const Scratch<T> scratch(p);
  const double n_terms = 20 * std::sqrt(static_cast<double>(p.dim)) + 200;
  std::vector<double> want;
  for (std::int64_t client = 0; client < 3; ++client) {
    std::int64_t right = 0;
    const double value = plain(p, client, {}, exact, want, &right);
    std::vector<double> got(at(p.dim), 1.0);
    const auto gradient = [&](double* sum) {
      return static_cast<T>(
          kernels().of<T>().clients_gradient(p, client, client + 1, nullptr, w.data(), scratch.memory.get(), sum));
    };
    CHECK_NEAR(gradient(got.data()), value, n_terms, 1.0, client);
    for (std::int64_t j = 0; j < p.dim; ++j) {
      CHECK_NEAR(static_cast<T>(got[at(j)]), 1.0 + want[at(j)], n_terms, 1.0, j);
    }
    CHECK_NEAR(gradient(nullptr), value, n_terms, 1.0, client);
    if (p.family != Family::Quadratic && p.head != Head::Squared) {
      CHECK_EQ(
          kernels().of<T>().count_correct(p, p.offsets[client], p.offsets[client + 1], w.data(), scratch.memory.get()),
          right);
    }
  }
}

// Q local steps, with the batches drawn, given, and the whole client; plain and with every extra.
template <class T>
void local_steps_agree(const Owned<T>& owned, std::uint64_t seed) {
  const Problem<T>& p = owned.p;
  Numbers numbers(seed);
  const auto w = numbers.vector<T>(p.dim);
  const Scratch<T> scratch(p);
  const bool rows = p.family != Family::Quadratic;
  for (const LocalConfig& config : {LocalConfig{3, 0.05, 0, 0, 0}, LocalConfig{3, 0.05, 0.9, 0.01, 0.1}}) {
    for (const std::int64_t client : {0, 1, 2}) {
      for (const std::int64_t batch : {0, 1, 5, 300}) {
        for (const bool given : {false, true}) {
          if (given && (!rows || batch == 0)) {
            continue;
          }
          std::vector<std::int64_t> batches;
          for (std::int64_t i = 0; rows && i < config.steps * batch; ++i) {
            const auto q = static_cast<std::uint32_t>(i / batch), k = static_cast<std::uint32_t>(i % batch);
            const PhiloxBlock block =
                philox4x32(99, static_cast<std::uint32_t>(client), 7, q, stream_word(Stream::Batches, k / 4));
            batches.push_back(given ? numbers.below(p.rows(client))
                                    : index_below(block.word[k % 4], static_cast<std::uint32_t>(p.rows(client))));
          }
          std::vector<T> delta(at(p.dim));
          const Task task{99, client, 7, batch, given ? batches.data() : nullptr};
          const LocalTask<T> alone{task, w.data(), delta.data()};
          kernels().of<T>().local_sgd(p, config, &alone, 1, scratch.memory.get());
          std::vector<double> x(w.begin(), w.end()), v(at(p.dim)), g;
          for (std::int64_t q = 0; q < config.steps; ++q) {
            std::vector<std::int64_t> now;
            for (std::int64_t k = 0; rows && k < batch; ++k) {
              now.push_back(batches[at(q * batch + k)]);
            }
            plain(p, client, now, x, g);
            for (std::size_t j = 0; j < x.size(); ++j) {
              const double start = static_cast<double>(w[j]);
              v[j] = config.momentum * v[j] + g[j] + config.weight_decay * x[j] + config.prox * (x[j] - start);
            }
            for (std::size_t j = 0; j < x.size(); ++j) {
              x[j] -= config.lr * v[j];
            }
          }
          for (std::int64_t j = 0; j < p.dim; ++j) {
            CHECK_NEAR(delta[at(j)], static_cast<double>(w[at(j)]) - x[at(j)], 200, 1.0, j);
          }
        }
      }
    }
  }
}

// Many tasks in one call give the bits that each gives alone: seeds, clients and batches that fit together or not.
template <class T>
void tasks_are_independent(const Owned<T>& owned, std::uint64_t seed) {
  const Problem<T>& p = owned.p;
  Numbers numbers(seed);
  const Scratch<T> scratch(p);
  const LocalConfig config{2, 0.05, 0, 0, 0};
  constexpr std::int64_t kTasks = 90;
  std::vector<std::vector<T>> start, together(at(kTasks)), alone(at(kTasks));
  std::vector<LocalTask<T>> tasks;
  for (std::int64_t i = 0; i < kTasks; ++i) {
    start.push_back(numbers.vector<T>(p.dim));
    together[at(i)].resize(at(p.dim));
    alone[at(i)].resize(at(p.dim));
    const std::int64_t batch = i % 17 == 3 ? 0 : i % 17 == 9 ? 130 : 1 + numbers.below(9);
    const Task task{std::uint64_t{i > 70}, numbers.below(3), static_cast<std::uint32_t>(i), batch, nullptr};
    tasks.push_back({task, start.back().data(), together[at(i)].data()});
  }
  kernels().of<T>().local_sgd(p, config, tasks.data(), kTasks, scratch.memory.get());
  for (std::int64_t i = 0; i < kTasks; ++i) {
    const LocalTask<T> one{tasks[at(i)].task, start[at(i)].data(), alone[at(i)].data()};
    kernels().of<T>().local_sgd(p, config, &one, 1, scratch.memory.get());
    CHECK(std::memcmp(alone[at(i)].data(), together[at(i)].data(), at(p.dim) * sizeof(T)) == 0);
  }
}

template <class T>
void for_each_problem(const std::function<void(const Owned<T>&)>& body) {
  std::uint64_t seed = 10;
  const auto rows = [&](std::vector<std::int32_t> sizes, Head head, bool intercept, bool sparse, Activation activation,
                        double l2, double nonconvex) {
    Numbers numbers(++seed);
    Owned<T> owned;
    owned.rows(numbers, std::move(sizes), head, intercept, sparse);
    owned.p.activation = activation;
    owned.p.l2 = l2;
    owned.p.nonconvex = nonconvex;
    body(owned);
  };
  for (const std::int32_t n : {1, 5, 16, 37}) {
    rows({n, 1}, Head::Squared, n % 2 == 0, false, Activation::Relu, 0, 0);
    rows({n, 1}, Head::Logistic, n % 2 == 1, false, Activation::Relu, 0.1, 0.2);
    rows({n, 1}, Head::Logistic, n % 2 == 0, true, Activation::Relu, 0, n == 5 ? 0.3 : 0);
    rows({n, 4}, Head::Softmax, true, false, Activation::Relu, 0, 0);
    rows({n, 11}, Head::Softmax, false, false, Activation::Relu, 0.05, 0);
  }
  rows({6, 9, 3}, Head::Softmax, true, false, Activation::Relu, 0, 0);
  rows({17, 20, 5, 4}, Head::Softmax, true, false, Activation::Tanh, 0.01, 0);
  rows({3, 2, 2, 2, 2}, Head::Softmax, false, false, Activation::Tanh, 0, 0);
  for (const Curvature form : {Curvature::Scalar, Curvature::Diagonal, Curvature::Dense}) {
    for (const std::int64_t dim : {1, 9, 16}) {
      for (const bool shared : {false, true}) {
        Numbers numbers(++seed);
        Owned<T> owned;
        owned.quadratic(numbers, dim, form, shared);
        body(owned);
      }
    }
  }
}

// The gradient of a hidden unit that alone has a way out has the bits that it has where there is no other: however
// outputs, rows and features are cut into blocks.
template <class T>
void unit_is_alone(std::int32_t n_features, std::int32_t n_units, std::int64_t client) {
  Numbers numbers(8), same(8);
  Owned<T> many, one;
  many.rows(numbers, {n_features, n_units, 1}, Head::Squared, true, false);
  one.rows(same, {n_features, 1, 1}, Head::Squared, true, false);
  const std::int64_t n_weights = std::int64_t{n_features} * n_units;
  const Scratch<T> scratch(many.p), small(one.p);
  auto w = numbers.vector<T>(many.p.dim);
  w.back() = T(0);
  for (const std::int64_t unit : {std::int64_t{0}, std::int64_t{n_units / 2}, std::int64_t{n_units - 1}}) {
    for (std::int64_t i = 0; i < n_units; ++i) {
      w[at(n_weights + n_units + i)] = i == unit ? T(1) : T(0);
    }
    std::vector<T> alone(w.begin() + unit * n_features, w.begin() + (unit + 1) * n_features);
    alone.insert(alone.end(), {w[at(n_weights + unit)], T(1), T(0)});
    std::vector<double> got(at(many.p.dim)), want(at(one.p.dim));
    const auto gradient = kernels().of<T>().clients_gradient;
    gradient(many.p, client, client + 1, nullptr, w.data(), scratch.memory.get(), got.data());
    gradient(one.p, client, client + 1, nullptr, alone.data(), small.memory.get(), want.data());
    CHECK(want[0] != 0);
    CHECK(std::equal(want.begin(), want.begin() + n_features, got.begin() + unit * n_features));
  }
}

template <class T>
void full_gradient_agrees(const Owned<T>& owned) {
  Numbers numbers(5);
  const auto w = numbers.vector<T>(owned.p.dim);
  std::vector<double> one, want(at(owned.p.dim));
  double value = 0;
  for (std::int64_t client = 0; client < 3; ++client) {
    value += owned.weight[at(client)] * plain(owned.p, client, {}, {w.begin(), w.end()}, one);
    for (std::size_t j = 0; j < want.size(); ++j) {
      want[j] += owned.weight[at(client)] * one[j];
    }
  }
  Workspace<T> workspace(owned.p);
  std::vector<T> alone(at(owned.p.dim)), together(at(owned.p.dim));
  CHECK_NEAR(static_cast<T>(workspace.gradient(w.data(), alone.data(), 1)), value, 400, 1.0, 0);
  CHECK_EQ(workspace.gradient(w.data(), together.data(), 3), workspace.gradient(w.data(), nullptr, 2));
  CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(T)) == 0);
  for (std::int64_t j = 0; j < owned.p.dim; ++j) {
    CHECK_NEAR(alone[at(j)], want[at(j)], 400, 1.0, j);
  }
  bool stopped = false;
  try {
    workspace.gradient(w.data(), together.data(), 1, [] { throw std::runtime_error("stop"); });
  } catch (const std::runtime_error&) {
    stopped = true;
  }
  CHECK(stopped);
  CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(T)) == 0);
}

}  // namespace

TEST(kernels_accumulate) {
  check::on_every_level([] { accumulate_adds<float>(), accumulate_adds<double>(); });
}

TEST(kernels_aggregate_elementwise) {
  check::on_every_level([] { aggregate_is_elementwise<float>(), aggregate_is_elementwise<double>(); });
}

TEST(kernels_aggregate) {
  check::on_every_level([] { aggregate_subtracts<float>(), aggregate_subtracts<double>(); });
}

TEST(kernels_steps_and_dot) {
  check::on_every_level([] { steps_move<float>(), steps_move<double>(); });
}

TEST(kernels_objectives) {
  check::on_every_level([] {
    for_each_problem<float>([](const auto& owned) { objective_agrees(owned, 3); });
    for_each_problem<double>([](const auto& owned) { objective_agrees(owned, 3); });
  });
}

TEST(kernels_tasks_together) {
  check::on_every_level([] {
    for_each_problem<float>([](const auto& owned) { tasks_are_independent(owned, 6); });
    for_each_problem<double>([](const auto& owned) { tasks_are_independent(owned, 6); });
  });
}

TEST(kernels_local_sgd) {
  check::on_every_level([] {
    for_each_problem<float>([](const auto& owned) { local_steps_agree(owned, 4); });
    for_each_problem<double>([](const auto& owned) { local_steps_agree(owned, 4); });
  });
}

TEST(kernels_blocks) {
  check::on_every_level([] {
    for (const std::int32_t n_units : {1, 5, 6, 7, 11, 12, 13, 23, 26}) {
      for (const std::int32_t n_features : {15, 783, 4095, 4096, 4097, 5001}) {
        unit_is_alone<float>(n_features, n_units, 1);
        unit_is_alone<double>(n_features / 2, n_units, 1);
      }
    }
    unit_is_alone<float>(4097, 1050, 0);  // more than caches hold
  });
}

TEST(kernels_gradient_on_threads) {
  check::on_every_level([] {
    for_each_problem<float>([](const auto& owned) { full_gradient_agrees(owned); });
    for_each_problem<double>([](const auto& owned) { full_gradient_agrees(owned); });
  });
}

TEST(kernels_fixed_point) {
  check::on_every_level([] {
    const Kernels<float>& k = kernels().of<float>();
    Numbers numbers(3);
    for (const std::int64_t dim : kDims) {
      for (const bool stochastic : {false, true}) {
        const auto a = numbers.vector<float>(dim), b = numbers.vector<float>(dim);
        const FixedPointConfig config{1.0, 1.0 / (1 << 19), 1.0, stochastic, 5, 6, 7};
        std::vector<std::uint32_t> pad(at(dim), 0xDEADBEEFu), sum(at(dim)), other(at(dim));
        // A pad under the first and off again at the end, and the two in either order.
        CHECK_EQ(k.encode_add_32(dim, pad.data(), a.data(), 3, config, sum.data()), 0);
        k.encode_add_32(dim, sum.data(), b.data(), 1, config, sum.data());
        k.add_words(dim, sum.data(), pad.data(), 0xFFFFFFFFu, sum.data());
        k.encode_add_32(dim, nullptr, b.data(), 1, config, other.data());
        k.encode_add_32(dim, other.data(), a.data(), 3, config, other.data());
        CHECK(sum == other);
        std::vector<float> decoded(at(dim));
        k.decode_32(dim, sum.data(), config.step, decoded.data());
        for (std::int64_t j = 0; j < dim; ++j) {
          const double want = 3 * static_cast<double>(a[at(j)]) + static_cast<double>(b[at(j)]);
          CHECK(std::abs(static_cast<double>(decoded[at(j)]) - want) <= 4 * config.step + 1e-6);
        }
      }
    }
  });
}

template <class T>
void quantizes_in_parts() {
  const Kernels<T>& k = kernels().of<T>();
  Numbers numbers(4);
  for (const std::int64_t dim : kDims) {
    const std::vector<T> x = numbers.vector<T>(dim);
    const double norm = std::sqrt(k.dot(dim, x.data(), x.data()));
    const QuantizeConfig config{norm, 7, 5, {6, 7}, Stream::Compression};
    std::vector<T> whole(at(dim)), parts = x;
    k.quantize(0, dim, x.data(), config, whole.data());
    const std::int64_t middle = dim / 8 * 4;
    k.quantize(middle, dim, parts.data(), config, parts.data());
    k.quantize(0, middle, parts.data(), config, parts.data());
    CHECK(whole == parts);
    for (std::int64_t j = 0; j < dim; ++j) {
      CHECK(std::abs(static_cast<double>(whole[at(j)] - x[at(j)])) <= norm / 7 * (1 + 1e-6));
    }
  }
}

TEST(kernels_quantize) {
  check::on_every_level([] {
    quantizes_in_parts<float>();
    quantizes_in_parts<double>();
  });
}

template <class T>
void distances_are_dots_of_differences() {
  const Kernels<T>& k = kernels().of<T>();
  Numbers numbers(5);
  for (const std::int64_t dim : kDims) {
    const std::vector<T> x = numbers.vector<T>(dim), y = numbers.vector<T>(dim);
    std::vector<T> way(at(dim));
    k.accumulate(dim, x.data(), y.data(), T(-1), nullptr, nullptr, way.data());
    CHECK(k.squared_distance(dim, x.data(), y.data()) == k.dot(dim, way.data(), way.data()));
  }
}

TEST(kernels_squared_distance) {
  check::on_every_level([] {
    distances_are_dots_of_differences<float>();
    distances_are_dots_of_differences<double>();
  });
}

TEST(kernels_unknown_level_is_refused) {
  const std::string before = kernels().name;
  CHECK(!force_level("sse9"));
  CHECK(!force_level(""));
  CHECK_EQ(std::string(kernels().name), before);
}
