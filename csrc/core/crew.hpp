// Threads that stay for a second after their last call. A thread that is started may wait for milliseconds where the
// system puts it on the core that is busy starting it; one that sleeps is awake within microseconds.
#pragma once

#include "export.hpp"

namespace fedbuff {

// Calls work(context, 0) here and work(context, 1) .. work(context, n - 1) on other threads at the same time; returns
// when all have. Where no more threads can be had the last numbers are not called, so any of them must be able to do
// what the others leave. work may not throw. Calls from several threads at once have threads of their own. A fork's
// child begins without any.
FB_CORE_API void run_together(int n, void* context, void (*work)(void* context, int number));

template <class Work>
void run_together(int n, Work work) {
  run_together(n, &work, [](void* context, int number) { (*static_cast<Work*>(context))(number); });
}

}  // namespace fedbuff
