// What the tests are written with: TEST makes one, CHECK ends it with a line that says what failed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& tests();
std::string known_answers_path();

struct Registered {
  Registered(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

template <class... Parts>
[[noreturn]] void fail(const char* file, int line, const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  text << file << ":" << line << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// |got - want| <= n * eps * size: the error of n roundings of terms that sum to `size` in magnitude.
template <class T>
void near(const char* file, int line, T got, double want, double n, double size, std::int64_t index) {
  const double allowed = n * static_cast<double>(std::numeric_limits<T>::epsilon()) * (size + std::abs(want));
  if (!(std::abs(static_cast<double>(got) - want) <= allowed)) {
    fail(file, line, "index ", index, ": got ", got, ", expected ", want, " +- ", allowed);
  }
}

// Numbers in [-1, 1) that are the same everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 2654435769u + 1) {}
  double next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 11) * (2.0 / 9007199254740992.0) - 1.0;
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>((next() + 1) / 2 * static_cast<double>(n)); }
  template <class T>
  std::vector<T> vector(std::int64_t n) {
    std::vector<T> values(static_cast<std::size_t>(n));
    for (T& value : values) {
      value = static_cast<T>(next());
    }
    return values;
  }

 private:
  std::uint64_t state_;
};

// Calls body on every CPU level of this machine, and says in which one it failed.
void on_every_level(void (*body)());

}  // namespace check

#define TEST(name)                                                \
  static void name();                                             \
  static const check::Registered registered_##name(#name, &name); \
  static void name()
#define CHECK(...) ((__VA_ARGS__) ? void() : check::fail(__FILE__, __LINE__, #__VA_ARGS__))
#define CHECK_EQ(got, want)                                                                          \
  do {                                                                                               \
    const auto got_ = (got);                                                                         \
    const auto want_ = (want);                                                                       \
    if (!(got_ == want_)) check::fail(__FILE__, __LINE__, #got, " is ", got_, ", expected ", want_); \
  } while (false)
#define CHECK_NEAR(got, want, n, size, index) check::near(__FILE__, __LINE__, got, want, n, size, index)
