// A function that is always inlined, and so compiled for the CPU level of its caller.
#pragma once

#define FB_ALWAYS_INLINE inline __attribute__((always_inline))

// One that is inlined for its speed alone. Under a sanitizer the compiler is free: so much inlining takes it many
// minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FB_INLINE_FOR_SPEED inline
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FB_INLINE_FOR_SPEED inline
#endif
#endif
#ifndef FB_INLINE_FOR_SPEED
#define FB_INLINE_FOR_SPEED FB_ALWAYS_INLINE
#endif
