// What a client sends in the place of its delta.
//
//   TopK      the largest numbers, of equals the first; the others are zero
//   RandomK   numbers at places drawn without replacement, times dim / kept, so that the mean is the delta; the others
//             are zero. With error feedback they are not multiplied
//   Qsgd      whole multiples of |delta| / levels, rounded by chance so that the mean is the delta
//   Sign      the mean of all sizes with the sign of the number
//   Bfloat16  the nearest number of 16 bits
//
// With error feedback the client adds what it has not sent before, its state, to the delta first, and keeps what is
// left: state <- delta + state - sent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compiler/export.hpp"

namespace fedbuff {

// fb_compression.
enum class Compressor : std::int32_t { None = 0, TopK = 1, RandomK = 2, Qsgd = 3, Sign = 4, Bfloat16 = 5 };

struct Compression {
  Compressor kind = Compressor::None;
  std::int64_t kept = 0;  // numbers, of TopK and RandomK
  double levels = 0;      // of Qsgd
  bool error_feedback = false;
};

// How many numbers a share of them is: the nearest whole number, halves up, and at least one.
inline std::int64_t numbers_kept(double share, std::int64_t dim) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share * static_cast<double>(dim) + 0.5));
}

struct CompressionKey {
  std::uint64_t seed;
  std::uint32_t client, task;
};

// Bytes of memory that `compress` works in, of numbers of so many bytes.
FB_CORE_API std::size_t compression_scratch(const Compression& how, std::int64_t dim, std::size_t number_bytes);

// out (dim), which may be x, is what x is sent as.
template <class T>
FB_CORE_API void compress(const Compression& how, const CompressionKey& key, std::int64_t dim, const T* x,
                          void* scratch, T* out);

// The same of a delta with error feedback, in its place. `state` (dim) is the client's, null for zeros; state_out
// (dim), which may be state, what it is then.
template <class T>
FB_CORE_API void compress_with_feedback(const Compression& how, const CompressionKey& key, std::int64_t dim, T* delta,
                                        const T* state, T* state_out, void* scratch);

}  // namespace fedbuff
