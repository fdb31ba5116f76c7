// Releasing and taking the GIL, on threads that may run longer than the interpreter.
//
// While the interpreter shuts down, Python ends a daemon thread that asks for the GIL by unwinding its stack. A stack
// of C++ must not be unwound so: a destructor or a handler on the way would end the whole process. Such a thread sleeps
// here instead, until the process is gone.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <thread>
#include <utility>

namespace fedbuff::bind {

namespace py = pybind11;

[[noreturn]] inline void sleep_until_the_end() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

inline bool is_shutting_down() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Without the GIL, for as long as this lives.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      sleep_until_the_end();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// With the GIL, for as long as this lives; on any thread.
class GilHeld {
 public:
  GilHeld() : state_(take()) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  static PyGILState_STATE take() {
    if (PyGILState_GetThisThreadState() == nullptr && is_shutting_down()) {
      sleep_until_the_end();  // there may be no interpreter left to make a thread known to
    }
    try {
      return PyGILState_Ensure();
    } catch (...) {
      sleep_until_the_end();
    }
  }

  PyGILState_STATE state_;
};

// Calls a Python function that is not ours. With the GIL; throws py::error_already_set.
template <class... Args>
py::object call(const py::object& function, Args&&... args) {
  const py::tuple given = py::make_tuple(std::forward<Args>(args)...);
  PyObject* result = nullptr;
  try {  // the interpreter's C code throws no C++ exception
    result = PyObject_Call(function.ptr(), given.ptr(), nullptr);
  } catch (...) {
    sleep_until_the_end();
  }
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

}  // namespace fedbuff::bind
