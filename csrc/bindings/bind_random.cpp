#include "bindings.hpp"
#include "numpy_views.hpp"
#include "philox.hpp"

namespace fedbuff::bind {

namespace {

void philox(std::uint64_t seed, const py::object& counter, const py::object& words_out) {
  const auto counters = checked_array<std::uint32_t>(counter, "counter", {kAny, 4}, false);
  const py::ssize_t n = counters.shape(0);
  const auto* in = static_cast<const std::uint32_t*>(counters.data());
  auto* out = output<std::uint32_t>(words_out, "words_out", {n, 4});
  for (py::ssize_t i = 0; i < n; ++i) {
    const PhiloxBlock block = philox4x32(seed, in[4 * i], in[4 * i + 1], in[4 * i + 2], in[4 * i + 3]);
    for (int j = 0; j < 4; ++j) {
      out[4 * i + j] = block.word[j];
    }
  }
}

}  // namespace

void bind_random(py::module_& module) {
  module.def("philox", &philox, py::arg("seed"), py::arg("counter"), py::arg("words_out"));
}

}  // namespace fedbuff::bind
