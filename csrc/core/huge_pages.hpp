// LargeVector: a std::vector for tables that are read and written here and there, tens of megabytes of them.
//
// A processor remembers where some thousand pages lie, and such a table has more; then most touches look for their page
// first. From the size of a huge page on, the memory begins at one and is rounded up to whole ones, and Linux is asked
// to back it so, where it can. It faults once for each of them too. Elsewhere, and for less, it is ordinary memory.
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
      (void)madvise(memory, bytes, MADV_HUGEPAGE);  // a refusal costs speed only
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
