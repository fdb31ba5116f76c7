#include "clients/compression.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/dispatch.hpp"
#include "numbers/philox.hpp"
#include "numbers/shuffle.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kSampled = 16, kSampleEvery = 4096;  // numbers side by side that are looked at for a guess
constexpr std::int64_t kFewSamples = 64;                    // fewer say nothing

// A size, and how many of n are larger.
template <class Key>
struct Ranked {
  Key size;
  std::int64_t n_larger;
};

// The k-th largest of n sizes, which are put into another order. Where there are many they are counted in parts of
// equal width from the smallest to the largest, and only those of the part that it is in are looked at again.
template <class Key>
Ranked<Key> kth_largest(Key* sizes, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMany = 512;
  constexpr Key kParts = 1024;
  std::int64_t n_larger = 0;
  while (n > kMany) {
    Key least = sizes[0];
    Key most = sizes[0];
    for (std::int64_t i = 1; i < n; ++i) {
      least = std::min(least, sizes[i]);
      most = std::max(most, sizes[i]);
    }
    int shift = 0;
    while ((most - least) >> shift >= kParts) {
      ++shift;
    }
    std::int64_t count[kParts] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      ++count[(sizes[i] - least) >> shift];
    }
    Key part = kParts - 1;
    for (; count[part] < k; --part) {
      k -= count[part];
      n_larger += count[part];
    }
    if (shift == 0) {
      return {least + part, n_larger};
    }
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < n; ++i) {  // without a branch, which could not be foreseen
      const Key size = sizes[i];
      sizes[kept] = size;
      kept += (size - least) >> shift == part ? 1 : 0;
    }
    n = kept;
  }
  std::nth_element(sizes, sizes + (k - 1), sizes + n, std::greater<Key>());
  const Key size = sizes[k - 1];
  n_larger += std::count_if(sizes, sizes + k, [=](Key other) { return other > size; });
  return {size, n_larger};
}

// A size that about as many numbers reach as are kept, and some more; 0 where that tells nothing.
template <class T>
SizeKey<T> guess_least(std::int64_t dim, const T* x, std::int64_t kept, SizeKey<T>* sizes) {
  const std::int64_t n = dim / kSampleEvery * kSampled;
  const double expected = static_cast<double>(kept) * static_cast<double>(kSampled) / static_cast<double>(kSampleEvery);
  const auto rank = static_cast<std::int64_t>(expected + 4 * std::sqrt(expected) + 2);
  if (n < kFewSamples || rank > n) {
    return 0;
  }
  for (std::int64_t i = 0; i < n / kSampled; ++i) {
    kernels().of<T>().gather_sizes(kSampled, x + i * kSampleEvery, 0, sizes + i * kSampled);
  }
  return kth_largest(sizes, n, rank).size;
}

// The largest numbers of x. The guess decides how long it takes, not what comes out.
template <class T>
void keep_largest(std::int64_t kept, std::int64_t dim, const T* x, SizeKey<T>* sizes, T* out) {
  const Kernels<T>& k = kernels().of<T>();
  SizeKey<T> guess = guess_least(dim, x, kept, sizes);
  std::int64_t n = k.gather_sizes(dim, x, guess, sizes);
  // Too few: lower by a factor of 2, then 4, 16 and so on.
  SizeKey<T> less = SizeKey<T>{1} << (std::numeric_limits<T>::digits - 1);
  while (n < kept) {
    guess = guess > less ? guess - less : 0;
    less += less <= std::numeric_limits<SizeKey<T>>::max() / 2 ? less : 0;
    n = k.gather_sizes(dim, x, guess, sizes);
  }
  const Ranked<SizeKey<T>> least = kth_largest(sizes, n, kept);
  k.keep_sizes(dim, x, least.size, kept - least.n_larger, out);
}

template <class T>
void keep_random(const Compression& how, const CompressionKey& key, std::int64_t dim, const T* x, T* values, T* out) {
  const Shuffle places(key.seed, key.client, key.task, 0, static_cast<std::uint32_t>(dim), Stream::Compression);
  const double share = static_cast<double>(dim) / static_cast<double>(how.kept);
  const T factor = how.error_feedback ? T(1) : static_cast<T>(share);
  for (std::int64_t i = 0; i < how.kept; ++i) {
    values[i] = factor * x[places.at(static_cast<std::uint32_t>(i))];
  }
  const bool finite = kernels().of<T>().all_finite(dim, x);
  std::fill_n(out, dim, finite ? T(0) : std::numeric_limits<T>::quiet_NaN());
  for (std::int64_t i = 0; i < how.kept; ++i) {
    out[places.at(static_cast<std::uint32_t>(i))] = values[i];
  }
}

}  // namespace

std::size_t compression_scratch(const Compression& how, std::int64_t dim, std::size_t number_bytes) {
  const std::int64_t numbers = how.kind == Compressor::TopK ? dim : how.kind == Compressor::RandomK ? how.kept : 0;
  return static_cast<std::size_t>(numbers) * number_bytes;
}

template <class T>
void compress(const Compression& how, const CompressionKey& key, std::int64_t dim, const T* x, void* scratch, T* out) {
  const Kernels<T>& k = kernels().of<T>();
  switch (how.kind) {
    case Compressor::None: std::copy(x, x == out ? x : x + dim, out); break;
    case Compressor::TopK: keep_largest(how.kept, dim, x, static_cast<SizeKey<T>*>(scratch), out); break;
    case Compressor::RandomK: keep_random(how, key, dim, x, static_cast<T*>(scratch), out); break;
    case Compressor::Qsgd: {
      const double norm = std::sqrt(k.dot(dim, x, x));
      k.quantize(0, dim, x, {norm, how.levels, key.seed, {key.client, key.task}, Stream::Compression}, out);
      break;
    }
    case Compressor::Sign:
      k.take_signs(dim, x, static_cast<T>(k.sum_of_sizes(dim, x) / static_cast<double>(dim)), out);
      break;
    case Compressor::Bfloat16: k.round_to_half(dim, x, out); break;
  }
}

template <class T>
void compress_with_feedback(const Compression& how, const CompressionKey& key, std::int64_t dim, T* delta,
                            const T* state, T* state_out, void* scratch) {
  const Kernels<T>& k = kernels().of<T>();
  k.accumulate(dim, state, delta, T(1), nullptr, nullptr, state_out);
  compress(how, key, dim, state_out, scratch, delta);
  k.accumulate(dim, state_out, delta, T(-1), nullptr, nullptr, state_out);
}

template void compress(const Compression&, const CompressionKey&, std::int64_t, const float*, void*, float*);
template void compress(const Compression&, const CompressionKey&, std::int64_t, const double*, void*, double*);
template void compress_with_feedback(const Compression&, const CompressionKey&, std::int64_t, float*, const float*,
                                     float*, void*);
template void compress_with_feedback(const Compression&, const CompressionKey&, std::int64_t, double*, const double*,
                                     double*, void*);

}  // namespace fedbuff
