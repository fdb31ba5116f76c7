// The kernels for x86-64 CPUs with AVX-512 F, DQ, VL and BW.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/level_includes.hpp"

// Everything above is compiled for any CPU; everything below for this level only.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics: its bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif

namespace fedbuff::avx512 {

#include "kernels/level/arithmetic.inl"
#include "kernels/level/simd_avx512.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_avx512.hpp"
#include "kernels/level/philox_batch.inl"
#include "kernels/level/lists.inl"
#include "kernels/level/lists_avx512.hpp"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"avx512", make_kernels<float>(), make_kernels<double>(), make_schedule_kernels()};

}  // namespace fedbuff::avx512

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
