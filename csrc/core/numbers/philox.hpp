// Philox4x32-10 (Salmon et al. 2011): randomness as a function of a key and a counter.
//
// The key is the 64-bit seed. The counter is made of the application's own variables, so a draw never depends on
// threads, order or chunking:
//
//   word 0      word 1      word 2           word 3
//   client      task        local step       stream << 28 | block      Batches, GradientNoise
//   client      task        component        stream << 28 | block      Delays
//   start low   start high  attempt          stream << 28              ClientSelection
//   0           0           layer            stream << 28 | block      InitialModel
//   step low    step high   block >> 28      stream << 28 | block      PrivacyNoise
//   client      task        block >> 28      stream << 28 | block      Rounding
//   client      task        local step       stream << 28 | layer      Dropout: the key of a layer and step
//   row         block       0                stream << 28              Dropout, with that key
//   client      task        pass             stream << 28              Shuffles
//   client      task        block >> 28      stream << 28 | block      Compression
//   step low    step high   block >> 28      stream << 28 | block      HiddenModel
//   client      task        local step       stream << 28 | layer      Augmentation: the key of a layer and step
//   row         0           0                stream << 28              Augmentation, with that key
//
// A word becomes an index below n by multiply-high; two words become a double in [0, 1) by 53 bits.
#pragma once

#include <cstdint>

namespace fedbuff {

enum class Stream : std::uint32_t {
  Batches = 0,
  Delays = 1,
  ClientSelection = 2,
  GradientNoise = 3,
  PrivacyNoise = 4,
  InitialModel = 5,
  Rounding = 6,
  Dropout = 7,
  Shuffles = 8,
  Compression = 9,
  HiddenModel = 10,
  Augmentation = 11,
};

struct PhiloxBlock {
  std::uint32_t word[4];
};

constexpr std::uint32_t stream_word(Stream stream, std::uint32_t block) {
  return static_cast<std::uint32_t>(stream) << 28 | block;
}

// The ten rounds, in place, on N counters side by side: their multiplications overlap, or fill a vector.
template <int N>
inline __attribute__((always_inline)) constexpr void philox_rounds(std::uint64_t seed, std::uint32_t* c0,
                                                                   std::uint32_t* c1, std::uint32_t* c2,
                                                                   std::uint32_t* c3) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < N; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

constexpr PhiloxBlock philox4x32(std::uint64_t seed, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                 std::uint32_t c3) {
  philox_rounds<1>(seed, &c0, &c1, &c2, &c3);
  return {{c0, c1, c2, c3}};
}

constexpr std::uint32_t index_below(std::uint32_t word, std::uint32_t n) {
  return static_cast<std::uint32_t>(std::uint64_t{word} * n >> 32);
}

// The same of 64 bits: the high half of x * n.
inline std::uint64_t multiply_high(std::uint64_t x, std::uint64_t n) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<std::uint64_t>(Wide{x} * n >> 64);
}

// 53 bits: 27 of the first word, 26 of the second.
constexpr double unit_double(std::uint32_t high, std::uint32_t low) {
  return ((high >> 5) * 67108864.0 + (low >> 6)) * (1.0 / 9007199254740992.0);
}

// The same by signed conversions, which vectorise; both operands fit.
inline __attribute__((always_inline)) constexpr double unit_double_signed(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::int32_t>(high >> 5) * 67108864.0 + static_cast<std::int32_t>(low >> 6)) *
         (1.0 / 9007199254740992.0);
}

}  // namespace fedbuff
