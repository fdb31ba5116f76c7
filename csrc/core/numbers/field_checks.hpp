// Checks of numbers that a caller gave in a struct's fields, and a sentence about the first that is wrong:
// `buffer_size: expected at least 1, got 0`. Later checks of the same object change nothing. Allocates nothing.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

namespace fedbuff {

class FieldChecks {
 public:
  bool ok() const { return text_[0] == '\0'; }
  const char* text() const { return text_; }  // empty where all is well

  // `expected` follows the word.
  bool require(bool good, const char* field, const char* expected) {
    if (!good) {
      note("%s: expected %s", field, expected);
    }
    return ok();
  }
  bool require(bool good, const char* field, const char* expected, double got) {
    if (!good) {
      note("%s: expected %s, got %.17g", field, expected, got);
    }
    return ok();
  }

  bool at_least(const char* field, std::int64_t got, std::int64_t low) {
    if (got < low) {
      note("%s: expected at least %lld, got %lld", field, wide(low), wide(got));
    }
    return ok();
  }
  bool between(const char* field, std::int64_t got, std::int64_t low, std::int64_t high) {
    if (got < low || got > high) {
      note("%s: expected %lld to %lld, got %lld", field, wide(low), wide(high), wide(got));
    }
    return ok();
  }
  bool flag(const char* field, std::int64_t got) { return between(field, got, 0, 1); }

  bool finite(const char* field, double got) { return require(std::isfinite(got), field, "a finite number", got); }
  bool not_negative(const char* field, double got) {
    return require(std::isfinite(got) && got >= 0, field, "a finite number of at least 0", got);
  }
  bool positive(const char* field, double got) {
    return require(std::isfinite(got) && got > 0, field, "a finite number above 0", got);
  }

  // The numbers of an array, (n): `good` of each. Null only where it `may_be_null`.
  template <class Number, class Good>
  bool each(const char* field, const Number* values, std::int64_t n, const char* expected, Good good) {
    if (!ok() || !require(values != nullptr, field, "an array, not null")) {
      return false;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      if (!good(values[i])) {
        note("%s[%lld]: expected %s, got %.17g", field, wide(i), expected, static_cast<double>(values[i]));
        return false;
      }
    }
    return true;
  }
  // start (n + 1): from 0 up, by at least `step`.
  bool ascends(const char* field, const std::int64_t* start, std::int64_t n, std::int64_t step) {
    if (!ok() || !require(start != nullptr, field, "an array, not null")) {
      return false;
    }
    if (start[0] != 0) {
      note("%s[0]: expected 0, got %lld", field, wide(start[0]));
    }
    for (std::int64_t i = 0; i < n && ok(); ++i) {
      if (start[i + 1] < start[i] || start[i + 1] - start[i] < step) {
        note("%s[%lld]: expected at least %lld more than the one before it, %lld, got %lld", field, wide(i + 1),
             wide(step), wide(start[i]), wide(start[i + 1]));
      }
    }
    return ok();
  }

 private:
  static long long wide(std::int64_t number) { return number; }

  __attribute__((format(printf, 2, 3))) void note(const char* format, ...) {
    if (ok()) {
      std::va_list values;
      va_start(values, format);
      std::vsnprintf(text_, sizeof text_, format, values);
      va_end(values);
    }
  }

  char text_[240] = "";
};

}  // namespace fedbuff
