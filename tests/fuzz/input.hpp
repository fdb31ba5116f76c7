// What the targets are written with: an input of bytes read as choices and numbers, and MUST, which ends the process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#define MUST(...)                                                                    \
  do {                                                                               \
    if (!(__VA_ARGS__)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

namespace fuzz {

// Zeros come after the end, so that every input is one.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  bool empty() const { return at_ == end_; }
  std::uint8_t byte() { return empty() ? std::uint8_t{0} : *at_++; }
  template <class T>
  T raw() {
    T value{};
    const auto n =
        static_cast<std::size_t>(end_ - at_) < sizeof value ? static_cast<std::size_t>(end_ - at_) : sizeof value;
    std::memcpy(&value, at_, n);
    at_ += n;
    return value;
  }
  std::int64_t below(std::int64_t n) { return byte() % n; }  // n at most 256
  bool one_in(std::int64_t n) { return below(n) == 1 % n; }

  // Mostly 0 .. 7, else a number at an edge, else any.
  std::int64_t whole() {
    static constexpr std::int64_t kEdges[] = {-1,
                                              8,
                                              255,
                                              256,
                                              65535,
                                              65536,
                                              2147483647,
                                              2147483648,
                                              -2147483648,
                                              1 << 30,
                                              std::int64_t{1} << 53,
                                              std::int64_t{1} << 62,
                                              std::numeric_limits<std::int64_t>::max() - 1,
                                              std::numeric_limits<std::int64_t>::max(),
                                              std::numeric_limits<std::int64_t>::min()};
    const std::uint8_t choice = byte();
    if (choice < 224) {
      return choice % 8;
    }
    return choice < 250 ? kEdges[choice % (sizeof kEdges / sizeof *kEdges)] : raw<std::int64_t>();
  }

  // Mostly an eighth of a small whole number, else a number at an edge, else any bits.
  double real() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr double kEdges[] = {
        0.0,      -0.0,      1.0,       -1.0,       1e-310,
        1e-40,    1e38,      4e38,      1e154,      1e300,
        1.79e308, -1.79e308, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
    const std::uint8_t choice = byte();
    if (choice < 224) {
      return (choice % 64 - 16) / 8.0;
    }
    return choice < 250 ? kEdges[choice % (sizeof kEdges / sizeof *kEdges)] : raw<double>();
  }
  double positive() {
    const double x = real();
    return x < 0 ? -x : x;
  }

  // n numbers: one everywhere, and another one at one place. The memory ends where they do.
  template <class T>
  std::vector<T> numbers(std::int64_t n) {
    std::vector<T> values(static_cast<std::size_t>(n), cast<T>(real()));
    if (n > 0) {
      values[static_cast<std::size_t>(raw<std::uint16_t>() % n)] = cast<T>(real());
    }
    return values;
  }

 private:
  template <class T>
  static T cast(double x) {
    if constexpr (std::numeric_limits<T>::is_integer) {
      constexpr double kLimit = static_cast<double>(std::numeric_limits<T>::max() / 16);
      return x > kLimit    ? std::numeric_limits<T>::max()
             : x < -kLimit ? std::numeric_limits<T>::min()
             : x == x      ? static_cast<T>(8 * x)
                           : T{0};
    } else if constexpr (sizeof(T) == sizeof(float)) {
      constexpr double kLimit = static_cast<double>(std::numeric_limits<float>::max());
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      return x > kLimit ? kInfinity : x < -kLimit ? -kInfinity : static_cast<T>(x);
    } else {
      return x;
    }
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace fuzz
