// Which kernels run: the best level that this CPU has, or the one that was forced.
#pragma once

#include "compiler/export.hpp"
#include "kernels/kernels.hpp"

namespace fedbuff {

// The table in force. Chosen on first use.
FB_CORE_API const KernelTable& kernels();

// Names of the levels that were compiled and that this CPU runs, best first, null-terminated.
FB_CORE_API const char* const* available_levels();

// Forces a level by name; false, and no change, where it is unknown or this CPU lacks it.
FB_CORE_API bool force_level(const char* name);

}  // namespace fedbuff
