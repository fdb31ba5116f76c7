// A function that is always inlined, and so compiled for the CPU level of its caller.
#pragma once

#define FB_ALWAYS_INLINE inline __attribute__((always_inline))
