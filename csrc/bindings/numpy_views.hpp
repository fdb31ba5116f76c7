// NumPy arrays as views, never as copies, with errors that name the argument. No other header knows NumPy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace fedbuff::bind {

namespace py = pybind11;

inline constexpr py::ssize_t kAny = -1;

template <class T>
std::string dtype_name() {
  return py::str(py::dtype::of<T>());
}

// An array of exactly this dtype, C-contiguous, in native byte order; TypeError for the dtype, ValueError for the rest.
// `shape` holds kAny where every extent will do.
template <class T>
py::array checked_array(const py::handle& object, const char* name, std::initializer_list<py::ssize_t> shape,
                        bool writable) {
  if (!py::isinstance<py::array>(object)) {
    throw py::type_error(std::string(name) + ": expected a NumPy array of " + dtype_name<T>() + ", got " +
                         std::string(py::str(py::type::of(object).attr("__name__"))));
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  if (!array.dtype().is(py::dtype::of<T>()) && !array.dtype().equal(py::dtype::of<T>())) {
    throw py::type_error(std::string(name) + ": expected dtype " + dtype_name<T>() + ", got " +
                         std::string(py::str(array.dtype())) + "; convert it with .astype('" + dtype_name<T>() + "')");
  }
  bool fits = array.ndim() == static_cast<py::ssize_t>(shape.size());
  py::ssize_t axis = 0;
  std::string expected;
  for (const py::ssize_t extent : shape) {
    if (fits && extent != kAny && array.shape(axis) != extent) {
      fits = false;
    }
    expected += (axis == 0 ? "" : ", ") + (extent == kAny ? std::string("any") : std::to_string(extent));
    ++axis;
  }
  if (!fits) {
    throw py::value_error(std::string(name) + ": expected shape (" + expected + (shape.size() == 1 ? ",)" : ")") +
                          ", got " + std::string(py::str(array.attr("shape"))));
  }
  if ((array.flags() & py::array::c_style) == 0) {
    throw py::value_error(std::string(name) + ": expected a C-contiguous array; copy it with numpy.ascontiguousarray");
  }
  if (writable && !array.writeable()) {
    throw py::value_error(std::string(name) + ": the array is read-only, and it is an output");
  }
  return array;
}

// Whether `checked_array` would take it as an input of this shape.
template <class T>
bool is_array_of(const py::handle& object, std::initializer_list<py::ssize_t> shape) {
  if (!py::isinstance<py::array>(object)) {
    return false;
  }
  const auto array = py::reinterpret_borrow<py::array>(object);
  return (array.dtype().is(py::dtype::of<T>()) || array.dtype().equal(py::dtype::of<T>())) &&
         array.ndim() == static_cast<py::ssize_t>(shape.size()) &&
         std::equal(shape.begin(), shape.end(), array.shape()) && (array.flags() & py::array::c_style) != 0;
}

inline void make_read_only(py::array& array) {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
}

template <class T>
const T* input(const py::handle& object, const char* name, std::initializer_list<py::ssize_t> shape) {
  return static_cast<const T*>(checked_array<T>(object, name, shape, false).data());
}

template <class T>
T* output(const py::handle& object, const char* name, std::initializer_list<py::ssize_t> shape) {
  return static_cast<T*>(checked_array<T>(object, name, shape, true).mutable_data());
}

}  // namespace fedbuff::bind
