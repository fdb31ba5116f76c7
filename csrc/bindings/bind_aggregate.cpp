// The server's side of the kernels: the buffer and the step.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "server/aggregate.hpp"
#include "server/rule.hpp"
#include "bindings.hpp"
#include "clients/compression.hpp"
#include "kernels/dispatch.hpp"
#include "gil.hpp"
#include "numpy_views.hpp"

namespace fedbuff::bind {

namespace {

// Calls body with a null pointer of the array's dtype, float32 or float64.
template <class Body>
auto with_dtype_of(const py::object& array, const char* name, Body body) {
  if (py::isinstance<py::array>(array)) {
    const py::dtype dtype = py::reinterpret_borrow<py::array>(array).dtype();
    if (dtype.equal(py::dtype::of<float>())) {
      return body(static_cast<float*>(nullptr));
    }
    if (dtype.equal(py::dtype::of<double>())) {
      return body(static_cast<double*>(nullptr));
    }
  }
  throw py::type_error(std::string(name) + ": expected a NumPy array of float32 or float64");
}

py::ssize_t length(const py::object& array) { return py::reinterpret_borrow<py::array>(array).size(); }

bool accumulate(const py::object& total, const py::object& delta, double weight, const py::object& current,
                const py::object& start, const py::object& out) {
  return with_dtype_of(delta, "delta", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(delta);
    const T* sum = input<T>(total, "total", {dim});
    const T* add = input<T>(delta, "delta", {dim});
    const T* from = start.is_none() ? nullptr : input<T>(start, "start", {dim});
    const T* now = start.is_none() ? nullptr : input<T>(current, "current", {dim});
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    return kernels().of<T>().accumulate(dim, sum, add, static_cast<T>(weight), now, from, to);
  });
}

void aggregate(const py::object& w, const std::vector<py::object>& deltas, const py::object& weights, double scale,
               const py::object& out, std::int64_t threads) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    const T* from = input<T>(w, "w", {dim});
    std::vector<const T*> delta;
    for (const py::object& one : deltas) {
      delta.push_back(input<T>(one, "deltas", {dim}));
    }
    const auto n = static_cast<py::ssize_t>(delta.size());
    const T* weight = input<T>(weights, "weights", {n});
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    aggregate_in_threads(dim, from, n, delta.data(), weight, static_cast<T>(scale), to, threads);
  });
}

void sgd_step(const py::object& w, const py::object& total, double lr, double norm, double momentum,
              const py::object& velocity, const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    StepConfig config{};
    config.lr = lr;
    config.norm = norm;
    config.momentum = momentum;
    const T* from = input<T>(w, "w", {dim});
    const T* sum = input<T>(total, "total", {dim});
    T* moving = momentum == 0 ? nullptr : output<T>(velocity, "velocity", {dim});
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    kernels().of<T>().sgd_step(dim, from, sum, config, moving, to);
  });
}

// Those of fedbuff.backends.spec.StepNumbers.
using StepNumbers =
    std::tuple<double, double, double, double, double, double, double, std::int64_t, std::int64_t, double>;

StepConfig read_step(const StepNumbers& numbers) {
  StepConfig c{};
  std::tie(c.lr, c.norm, c.momentum, c.beta1, c.beta2, c.epsilon, c.weight_decay, c.step, c.period, c.activation) =
      numbers;
  return c;
}

// The moment at this place; null where there are fewer.
template <class T>
T* moment(const py::tuple& moments, std::size_t at, py::ssize_t dim) {
  return at < moments.size() ? output<T>(moments[at], "moments", {dim}) : nullptr;
}

void adam_step(const py::object& w, const py::object& total, const StepNumbers& numbers, const py::tuple& moments,
               const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    const StepConfig config = read_step(numbers);
    const T* from = input<T>(w, "w", {dim});
    const T* sum = input<T>(total, "total", {dim});
    T* m = moment<T>(moments, 0, dim);
    T* v = moment<T>(moments, 1, dim);
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    kernels().of<T>().adam_step(dim, from, sum, config, m, v, to);
  });
}

void optimizer_step(std::int32_t code, const py::object& w, const py::object& total, const StepNumbers& numbers,
                    const py::tuple& moments, const py::object& out) {
  with_dtype_of(w, "w", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(w);
    StepConfig config = read_step(numbers);
    config.optimizer = optimizer_of(code);
    const T* from = input<T>(w, "w", {dim});
    const T* sum = input<T>(total, "total", {dim});
    T* m = moment<T>(moments, 0, dim);
    T* v = moment<T>(moments, 1, dim);
    T* largest = moment<T>(moments, 2, dim);
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    kernels().of<T>().optimizer_step(dim, from, sum, config, m, v, largest, to);
  });
}

double dot(const py::object& x, const py::object& y) {
  return with_dtype_of(x, "x", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(x);
    const T* a = input<T>(x, "x", {dim});
    const T* b = input<T>(y, "y", {dim});
    const GilReleased released;
    return kernels().of<T>().dot(dim, a, b);
  });
}

// Calls body with a null pointer of the array's dtype, uint32 or uint64.
template <class Body>
auto with_word_of(const py::object& array, const char* name, Body body) {
  if (py::isinstance<py::array>(array)) {
    const py::dtype dtype = py::reinterpret_borrow<py::array>(array).dtype();
    if (dtype.equal(py::dtype::of<std::uint32_t>())) {
      return body(static_cast<std::uint32_t*>(nullptr));
    }
    if (dtype.equal(py::dtype::of<std::uint64_t>())) {
      return body(static_cast<std::uint64_t*>(nullptr));
    }
  }
  throw py::type_error(std::string(name) + ": expected a NumPy array of uint32 or uint64");
}

// Those of fedbuff.backends.spec.EncodeNumbers.
using EncodeNumbers = std::tuple<std::uint64_t, double, double, double,
                                 std::optional<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>>>;

std::int64_t encode_add(const py::object& total, const py::object& delta, const EncodeNumbers& numbers,
                        const py::object& out) {
  const auto& [weight_given, clip, step, factor, rounding] = numbers;
  const std::uint64_t weight = weight_given;  // a structured binding cannot be captured
  FixedPointConfig config{clip, step, factor, rounding.has_value(), 0, 0, 0};
  if (rounding.has_value()) {
    std::tie(config.seed, config.client, config.task) = *rounding;
  }
  return with_dtype_of(delta, "delta", [&](auto* number) {
    return with_word_of(out, "out", [&](auto* word) {
      using T = std::remove_pointer_t<decltype(number)>;
      using W = std::remove_pointer_t<decltype(word)>;
      const py::ssize_t dim = length(delta);
      const T* from = input<T>(delta, "delta", {dim});
      const W* sum = total.is_none() ? nullptr : input<W>(total, "total", {dim});
      W* to = output<W>(out, "out", {dim});
      const GilReleased released;
      const Kernels<T>& k = kernels().of<T>();
      if constexpr (sizeof(W) == 4) {
        return k.encode_add_32(dim, sum, from, static_cast<W>(weight), config, to);
      } else {
        return k.encode_add_64(dim, sum, from, weight, config, to);
      }
    });
  });
}

void add_words(const py::object& total, const py::object& words, std::uint64_t weight, const py::object& out) {
  with_word_of(words, "words", [&](auto* word) {
    using W = std::remove_pointer_t<decltype(word)>;
    using T = std::conditional_t<sizeof(W) == 4, float, double>;
    const py::ssize_t dim = length(words);
    const W* sum = input<W>(total, "total", {dim});
    const W* add = input<W>(words, "words", {dim});
    W* to = output<W>(out, "out", {dim});
    const GilReleased released;
    kernels().of<T>().add_words(dim, sum, add, static_cast<W>(weight), to);
  });
}

void decode(const py::object& words, double scale, const py::object& out) {
  with_dtype_of(out, "out", [&](auto* number) {
    with_word_of(words, "words", [&](auto* word) {
      using T = std::remove_pointer_t<decltype(number)>;
      using W = std::remove_pointer_t<decltype(word)>;
      const py::ssize_t dim = length(words);
      const W* from = input<W>(words, "words", {dim});
      T* to = output<T>(out, "out", {dim});
      const GilReleased released;
      const Kernels<T>& k = kernels().of<T>();
      if constexpr (sizeof(W) == 4) {
        k.decode_32(dim, from, scale, to);
      } else {
        k.decode_64(dim, from, scale, to);
      }
    });
  });
}

// Those of fedbuff.backends.spec.QuantizeNumbers.
using QuantizeNumbers = std::tuple<double, double, std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t>;

void quantize(const py::object& x, const QuantizeNumbers& numbers, const py::object& out) {
  const auto [norm, levels, seed, first, second, stream] = numbers;
  const QuantizeConfig config{norm, levels, seed, {first, second}, static_cast<Stream>(stream)};
  with_dtype_of(x, "x", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(x);
    const T* from = input<T>(x, "x", {dim});
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    kernels().of<T>().quantize(0, dim, from, config, to);
  });
}

// Those of fedbuff.backends.spec.CompressNumbers.
using CompressNumbers = std::tuple<std::int32_t, std::int64_t, double, bool>;

void compress_vector(const py::object& x, const CompressNumbers& numbers, std::uint64_t seed, std::uint32_t client,
                     std::uint32_t task, const py::object& out) {
  const auto [kind, kept, n_levels, feedback] = numbers;
  const Compression how{static_cast<Compressor>(kind), kept, n_levels, feedback};
  with_dtype_of(x, "x", [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const py::ssize_t dim = length(x);
    const T* from = input<T>(x, "x", {dim});
    T* to = output<T>(out, "out", {dim});
    const GilReleased released;
    const auto scratch = std::make_unique<unsigned char[]>(compression_scratch(how, dim, sizeof(T)));
    compress(how, {seed, client, task}, dim, from, scratch.get(), to);
  });
}

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const char* const* name = available_levels(); *name != nullptr; ++name) {
    names.emplace_back(*name);
  }
  return names;
}

}  // namespace

void bind_aggregate(py::module_& module) {
  module.def("accumulate", &accumulate, py::arg("total"), py::arg("delta"), py::arg("weight"),
             py::arg("current").none(true), py::arg("start").none(true), py::arg("out"));
  module.def("aggregate", &aggregate, py::arg("w"), py::arg("deltas"), py::arg("weights"), py::arg("scale"),
             py::arg("out"), whole("threads"));
  module.def("sgd_step", &sgd_step, py::arg("w"), py::arg("total"), py::arg("lr"), py::arg("norm"), py::arg("momentum"),
             py::arg("velocity").none(true), py::arg("out"));
  module.def("adam_step", &adam_step, py::arg("w"), py::arg("total"), py::arg("numbers"), py::arg("moments"),
             py::arg("out"));
  module.def("optimizer_step", &optimizer_step, whole("code"), py::arg("w"), py::arg("total"), py::arg("numbers"),
             py::arg("moments"), py::arg("out"));
  module.def("dot", &dot, py::arg("x"), py::arg("y"));
  module.def("encode_add", &encode_add, py::arg("total").none(true), py::arg("delta"), py::arg("numbers"),
             py::arg("out"));
  module.def("add_words", &add_words, py::arg("total"), py::arg("words"), whole("weight"), py::arg("out"));
  module.def("decode", &decode, py::arg("words"), py::arg("scale"), py::arg("out"));
  module.def("compress", &compress_vector, py::arg("x"), py::arg("numbers"), whole("seed"), whole("client"),
             whole("task"), py::arg("out"));
  module.def("quantize", &quantize, py::arg("x"), py::arg("numbers"), py::arg("out"));
  module.def("level", [] { return kernels().name; });
  module.def("available_levels", &levels);
  module.def("force_level", [](const std::string& name) { return force_level(name.c_str()); }, py::arg("name"));
}

}  // namespace fedbuff::bind
