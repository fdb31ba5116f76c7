// The levels that the schedule's kernels are compiled for, by function rather than by file.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#define FB_WIDE __attribute__((target("avx2")))
#define FB_WIDER __attribute__((target("avx512f,avx512dq,avx512vl,popcnt,prefer-vector-width=512")))
#endif

#define FB_ALWAYS_INLINE inline __attribute__((always_inline))

namespace fedbuff {

// Who asks for a level has checked that the CPU has it; where the architecture does not know it, the baseline is given.
enum class SimdLevel { Baseline, Avx2, Avx512 };

}  // namespace fedbuff
