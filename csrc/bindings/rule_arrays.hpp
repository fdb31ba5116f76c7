// What a rule keeps between two steps, as NumPy arrays: those of fedbuff/_rule/state.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
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

// Rows of one name come together in two arrays: (m, dim) and (m), their keys. They are there where `total` is; where
// that is null, where there are any.
struct RowNames {
  const char *row, *rows, *keys, *total;
};
inline constexpr RowNames kRowNames[] = {{"row", "table_rows", "table_client", "table_total"},
                                         {"step_row", "step_rows", "step_client", "step_total"},
                                         {"state", "state_rows", "state_client", nullptr}};

// Copies.
inline py::dict read_rule_state(const std::vector<fb_array>& arrays, py::ssize_t dim) {
  py::dict state;
  std::vector<const fb_array*> rows[std::size(kRowNames)];
  for (const fb_array& array : arrays) {
    bool is_row = false;
    for (std::size_t i = 0; i < std::size(kRowNames); ++i) {
      if (std::strcmp(array.name, kRowNames[i].row) == 0) {
        rows[i].push_back(&array);
        is_row = true;
      }
    }
    if (!is_row) {
      state[array.name] = py::array(dtype_of(array.dtype), {static_cast<py::ssize_t>(array.size)}, array.data);
    }
  }
  for (std::size_t at = 0; at < std::size(kRowNames); ++at) {
    const RowNames& names = kRowNames[at];
    if (names.total == nullptr ? rows[at].empty() : !state.contains(names.total)) {
      continue;
    }
    const auto n = static_cast<py::ssize_t>(rows[at].size());
    py::array_t<std::int64_t> keys(n);
    const py::dtype kind = n == 0 ? state[names.total].attr("dtype") : py::object(dtype_of(rows[at][0]->dtype));
    py::array values(kind, std::vector<py::ssize_t>{n, dim});
    const auto bytes = static_cast<std::size_t>(dim * kind.itemsize());
    for (py::ssize_t i = 0; i < n; ++i) {
      const fb_array& row = *rows[at][static_cast<std::size_t>(i)];
      keys.mutable_at(i) = row.key;
      std::memcpy(static_cast<char*>(values.mutable_data()) + static_cast<std::size_t>(i) * bytes, row.data, bytes);
    }
    state[names.keys] = keys;
    state[names.rows] = values;
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
      const auto named = [&](const char* RowNames::* name) {
        return std::find_if(std::begin(kRowNames), std::end(kRowNames),
                            [&](const RowNames& names) { return names_.back() == names.*name; });
      };
      if (const auto* names = named(&RowNames::rows); names != std::end(kRowNames)) {
        const py::array clients = py::array::ensure(state[names->keys], py::array::c_style);
        const auto bytes = static_cast<std::size_t>(array.shape(1) * array.itemsize());
        for (py::ssize_t i = 0; i < array.shape(0); ++i) {
          list_.push_back({names->row, static_cast<const std::int64_t*>(clients.data())[i], array.shape(1),
                           kind_of(array),
                           static_cast<const char*>(array.data()) + static_cast<std::size_t>(i) * bytes});
        }
      } else if (named(&RowNames::keys) == std::end(kRowNames)) {
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
