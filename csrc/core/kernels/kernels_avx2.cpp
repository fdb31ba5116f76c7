// The kernels for x86-64 CPUs with AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/level_includes.hpp"

// Everything above is compiled for any CPU; everything below for this level only.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

namespace fedbuff::avx2 {

#include "kernels/level/arithmetic.inl"
#include "kernels/level/simd_avx2.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_avx2.hpp"
#include "kernels/level/philox_batch.inl"
#include "kernels/level/lists.inl"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"avx2", make_kernels<float>(), make_kernels<double>(), make_schedule_kernels()};

}  // namespace fedbuff::avx2

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
