// LargeVector: a std::vector for tables of tens of megabytes with random access.
//
// A processor's TLB holds some thousand pages, and such a table has more, so that most accesses miss it. From the size
// of a huge page on, the memory is aligned to huge pages and rounded up to whole ones, and Linux is asked to use huge
// pages for it. That also makes fewer page faults. On other systems, and for smaller tables, it is ordinary memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fedbuff {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class Other>
  HugePages(const HugePages<Other>&) {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / 2 / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    const std::size_t wanted = count * sizeof(T);
    const std::size_t unit = wanted < kHugePage ? 64 : kHugePage;
    const std::size_t bytes = (wanted + unit - 1) / unit * unit;
    void* memory = std::aligned_alloc(unit, bytes);
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
#if defined(__linux__)
    if (unit == kHugePage) {
      (void)madvise(memory, bytes, MADV_HUGEPAGE);  // where it is refused, the table is only slower
    }
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }

  bool operator==(const HugePages&) const { return true; }
  bool operator!=(const HugePages&) const { return false; }
};

template <class T>
using LargeVector = std::vector<T, HugePages<T>>;

}  // namespace fedbuff
