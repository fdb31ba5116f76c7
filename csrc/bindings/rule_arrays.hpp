// What a rule keeps between two steps, as NumPy arrays: those of fedbuff/_rule/state.py.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "numpy_views.hpp"

namespace fedbuff::bind {

inline py::dtype dtype_of(fb_dtype dtype) {
  switch (dtype) {
    case FB_F32: return py::dtype::of<float>();
    case FB_F64: return py::dtype::of<double>();
    case FB_BF16: return py::dtype::of<std::uint16_t>();
    default: return py::dtype::of<std::int64_t>();
  }
}

// Copies. Rows come together in table_rows (m, dim), their clients in table_client (m).
inline py::dict read_rule_state(const std::vector<fb_array>& arrays, py::ssize_t dim) {
  py::dict state;
  std::vector<const fb_array*> rows;
  for (const fb_array& array : arrays) {
    if (std::strcmp(array.name, "row") == 0) {
      rows.push_back(&array);
    } else {
      state[array.name] = py::array(dtype_of(array.dtype), {static_cast<py::ssize_t>(array.size)}, array.data);
    }
  }
  if (state.contains("table_total")) {
    const auto n = static_cast<py::ssize_t>(rows.size());
    py::array_t<std::int64_t> clients(n);
    const py::dtype kind = rows.empty() ? state["table_total"].attr("dtype") : py::object(dtype_of(rows[0]->dtype));
    py::array values(kind, std::vector<py::ssize_t>{n, dim});
    const auto bytes = static_cast<std::size_t>(dim * kind.itemsize());
    for (py::ssize_t i = 0; i < n; ++i) {
      clients.mutable_at(i) = rows[static_cast<std::size_t>(i)]->key;
      std::memcpy(static_cast<char*>(values.mutable_data()) + static_cast<std::size_t>(i) * bytes,
                  rows[static_cast<std::size_t>(i)]->data, bytes);
    }
    state["table_client"] = clients;
    state["table_rows"] = values;
  }
  return state;
}

// The other way: a list that points into the arrays, which it holds.
class RuleArrays {
 public:
  explicit RuleArrays(const py::dict& state) {
    names_.reserve(state.size());
    for (const auto& [name, value] : state) {
      names_.push_back(py::cast<std::string>(name));
      held_.push_back(py::array::ensure(value, py::array::c_style));
      const py::array& array = held_.back();
      if (names_.back() == "table_rows") {
        const py::array clients = py::array::ensure(state["table_client"], py::array::c_style);
        const auto bytes = static_cast<std::size_t>(array.shape(1) * array.itemsize());
        for (py::ssize_t i = 0; i < array.shape(0); ++i) {
          list_.push_back({"row", static_cast<const std::int64_t*>(clients.data())[i], array.shape(1), kind_of(array),
                           static_cast<const char*>(array.data()) + static_cast<std::size_t>(i) * bytes});
        }
      } else if (names_.back() != "table_client") {
        list_.push_back({names_.back().c_str(), -1, array.size(), kind_of(array), array.data()});
      }
    }
  }
  const std::vector<fb_array>& list() const { return list_; }

 private:
  static fb_dtype kind_of(const py::array& array) {
    const char kind = array.dtype().kind();
    return kind == 'u' ? FB_BF16 : kind == 'i' ? FB_I64 : array.itemsize() == 4 ? FB_F32 : FB_F64;
  }

  std::vector<std::string> names_;
  std::vector<py::array> held_;
  std::vector<fb_array> list_;
};

}  // namespace fedbuff::bind
