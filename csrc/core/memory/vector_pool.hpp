// Memory for vectors of some tens of kilobytes and more, cut from blocks of huge pages.
//
// Vectors of 64 KiB to 2 MiB are cut from blocks of 16 MiB, each at the beginning of a page; smaller and larger ones
// are allocated one by one. A block is freed together with its last vector. The memory is not initialised. Not
// thread-safe; a vector may outlive the pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>

#include "memory/huge_pages.hpp"

namespace fedbuff {

using SharedMemory = std::shared_ptr<void>;

class VectorPool {
 public:
  // Throws std::bad_alloc.
  SharedMemory take(std::size_t bytes) {
    if (bytes < kSmallest || bytes >= kHugePage) {
      return allocate(bytes);
    }
    if (left_ < bytes) {
      block_ = allocate(kBlock);
      left_ = kBlock;
    }
    SharedMemory vector(block_, static_cast<char*>(block_.get()) + (kBlock - left_));
    left_ -= std::min(left_, (bytes + kPage - 1) / kPage * kPage);
    return vector;
  }

 private:
  static constexpr std::size_t kPage = 4096, kSmallest = 16 * kPage, kBlock = 8 * kHugePage;

  static SharedMemory allocate(std::size_t bytes) {
    return SharedMemory(HugePages<char>().allocate(std::max<std::size_t>(1, bytes)),
                        [](void* memory) { std::free(memory); });
  }

  SharedMemory block_;
  std::size_t left_ = 0;
};

}  // namespace fedbuff
