// Event: what happens when, in two integers that order it.
//
// The bits of its time (times are >= +0, and such doubles order as their bits) and kind, number of creation and slot in
// one word; so one 128-bit comparison decides, ties included, without a branch.
//
// Limits: kinds < 4, numbers < 2^36, slots < 2^26.
#pragma once

#include <cstdint>
#include <cstring>

namespace fedbuff {

struct Event {
  std::uint64_t time_bits;
  std::uint64_t order;  // kind << 62 | number << 26 | slot

  static constexpr int kSlotBits = 26;
  static constexpr int kNumberBits = 36;
  static constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << kSlotBits;
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << kNumberBits;

  static Event make(double time, std::uint64_t kind, std::uint64_t number, std::uint64_t slot) {
    return at(time, kind << 62 | number << kSlotBits | slot);
  }
  static Event at(double time, std::uint64_t order) {
    Event event;
    std::memcpy(&event.time_bits, &time, sizeof time);
    event.order = order;
    return event;
  }
  double time() const {
    double value;
    std::memcpy(&value, &time_bits, sizeof value);
    return value;
  }
  int kind() const { return static_cast<int>(order >> 62); }
  std::uint32_t slot() const { return static_cast<std::uint32_t>(order & (kMaxSlots - 1)); }
};

inline bool earlier(const Event& a, const Event& b) {
  __extension__ typedef unsigned __int128 Wide;
  return (Wide{a.time_bits} << 64 | a.order) < (Wide{b.time_bits} << 64 | b.order);
}

// Later than every event: what stands where there is none.
inline constexpr Event kNoEvent{~std::uint64_t{0}, ~std::uint64_t{0}};

}  // namespace fedbuff
