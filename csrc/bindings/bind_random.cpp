#include "bindings.hpp"
#include "numbers/normal.hpp"
#include "numpy_views.hpp"
#include "numbers/philox.hpp"

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

py::array_t<std::int64_t> batch_rows(std::uint64_t seed, std::uint32_t client, std::uint32_t task, std::uint32_t step,
                                     std::uint32_t n_rows, std::uint32_t batch) {
  py::array_t<std::int64_t> rows(batch);
  std::int64_t* out = rows.mutable_data();
  for (std::uint32_t j = 0; j < batch; ++j) {
    const PhiloxBlock block = philox4x32(seed, client, task, step, stream_word(Stream::Batches, j / 4));
    out[j] = index_below(block.word[j % 4], n_rows);
  }
  return rows;
}

py::array_t<double> normals(std::uint64_t seed, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                            std::uint32_t stream, py::ssize_t n) {
  py::array_t<double> values(n);
  double* out = values.mutable_data();
  for (py::ssize_t i = 0; i < n; i += 2) {
    double pair[2];
    const auto block = static_cast<std::uint32_t>(i / 2);
    normal_pair(philox4x32(seed, c0, c1, c2, stream_word(static_cast<Stream>(stream), block)), pair);
    out[i] = pair[0];
    if (i + 1 < n) {
      out[i + 1] = pair[1];
    }
  }
  return values;
}

}  // namespace

void bind_random(py::module_& module) {
  module.def("philox", &philox, whole("seed"), py::arg("counter"), py::arg("words_out"));
  module.def("batch_rows", &batch_rows, whole("seed"), whole("client"), whole("task"), whole("step"), whole("n_rows"),
             whole("batch"));
  module.def("normals", &normals, whole("seed"), whole("c0"), whole("c1"), whole("c2"), whole("stream"), whole("n"));
}

}  // namespace fedbuff::bind
