// The alignment of the vectors of a server and a buffer.
#pragma once

#include <cstddef>

namespace fedbuff {

// A cache line for small vectors: a load of a SIMD vector then never crosses two lines. A page for others: a core
// compares only the low 12 bits of addresses, so a load may wait for a store to the same offset of another page (4 KiB
// aliasing). That happens to a pass that writes ahead of where it reads; with equal offsets in their pages, no vector
// is ahead.
inline std::size_t alignment_of(std::size_t bytes) { return bytes < 2048 ? 64 : 4096; }

}  // namespace fedbuff
