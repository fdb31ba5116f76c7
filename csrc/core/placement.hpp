// Where the vectors of a server and a buffer begin in memory.
#pragma once

#include <cstddef>

namespace fedbuff {

// At a cache line: loads of whole vectors then never straddle two. At a page where they are not small: a core may take
// a load for dependent on a store at the same place in another page, and a pass that writes a line ahead of where it
// reads waits. Vectors that begin at the same place in their pages are never ahead of each other.
inline std::size_t alignment_of(std::size_t bytes) { return bytes < 2048 ? 64 : 4096; }

}  // namespace fedbuff
