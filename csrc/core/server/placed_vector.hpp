// A vector whose memory has the alignment of alignment_of.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "memory/placement.hpp"

namespace fedbuff {

template <class T>
struct PlacedAllocator {
  using value_type = T;
  PlacedAllocator() = default;
  template <class U>
  PlacedAllocator(const PlacedAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment(n))); }
  void deallocate(T* memory, std::size_t n) { ::operator delete(memory, alignment(n)); }
  friend bool operator==(const PlacedAllocator&, const PlacedAllocator&) { return true; }
  friend bool operator!=(const PlacedAllocator&, const PlacedAllocator&) { return false; }

 private:
  static std::align_val_t alignment(std::size_t n) { return std::align_val_t{alignment_of(n * sizeof(T))}; }
};
template <class T>
using PlacedVector = std::vector<T, PlacedAllocator<T>>;

}  // namespace fedbuff
