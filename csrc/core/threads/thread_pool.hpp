// The thread pool of the process. A worker thread waits for one second after its last call, then it ends. Starting a
// thread can take milliseconds, where the system puts the new thread on the core that starts it; waking one takes
// microseconds.
#pragma once

#include "compiler/export.hpp"

namespace fedbuff {

// Calls work(context, 0) on this thread and work(context, 1) .. work(context, n - 1) on workers at the same time;
// returns when all calls have returned. Where no more threads can be started the last numbers are not called, so each
// call must be able to do the work of the others. work may not throw. Concurrent and nested calls get different
// workers. The child of a fork starts with an empty pool.
FB_CORE_API void run_together(int n, void* context, void (*work)(void* context, int number));

template <class Work>
void run_together(int n, Work work) {
  run_together(n, &work, [](void* context, int number) { (*static_cast<Work*>(context))(number); });
}

}  // namespace fedbuff
