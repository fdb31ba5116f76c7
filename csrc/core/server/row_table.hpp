// A row per client: its last delta, from its first arrival on, in the model's dtype or in halves of floats.
//
// Rows are allocated when their clients come first, or lie in one block of the host's. Copies of a table share rows of
// its own until one of them replaces a row. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "fedbuff/fedbuff.h"
#include "kernels/dispatch.hpp"
#include "memory/placement.hpp"

namespace fedbuff {

template <class T>
class RowTable {
 public:
  // Throws std::bad_alloc. Without a table in the rule there are no rows.
  RowTable(const fb_rule& rule, std::int64_t dim)
      : half_(rule.table == FB_TABLE_BF16),
        bytes_(static_cast<std::size_t>(dim) * (half_ ? sizeof(std::uint16_t) : sizeof(T))),
        dim_(dim),
        row_(rule.table == FB_TABLE_NONE || rule.table_keeps == FB_KEEPS_MEANS
                 ? 0
                 : static_cast<std::size_t>(rule.n_clients)) {}

  RowTable(const RowTable& other)
      : half_(other.half_), bytes_(other.bytes_), dim_(other.dim_), n_rows_(other.n_rows_), row_(other.row_) {
    for (std::size_t i = 0; other.host_ != nullptr && i < row_.size(); ++i) {
      if (row_[i] != nullptr) {
        row_[i] = allocate();
        std::memcpy(row_[i].get(), other.row_[i].get(), bytes_);
      }
    }
  }
  RowTable& operator=(const RowTable&) = delete;

  bool half() const { return half_; }
  fb_dtype dtype() const { return half_ ? FB_BF16 : sizeof(T) == 4 ? FB_F32 : FB_F64; }
  std::int64_t n_clients() const { return static_cast<std::int64_t>(row_.size()); }
  std::int64_t n_rows() const { return n_rows_; }
  const void* row(std::int64_t client) const { return row_[static_cast<std::size_t>(client)].get(); }

  // The host's memory for all rows, while there is none yet. FB_ERR_SIZE where it is too small.
  fb_status use(void* memory, std::int64_t bytes) {
    if (row_.empty() || n_rows_ > 0 || memory == nullptr || bytes < 0) {
      return FB_ERR_ARGUMENT;
    }
    if (static_cast<std::size_t>(bytes) / bytes_ < row_.size()) {
      return FB_ERR_SIZE;
    }
    host_ = static_cast<char*>(memory);
    return FB_OK;
  }

  // Memory for a client's row, which nobody else has: what it held is lost where it is shared. Throws std::bad_alloc.
  std::shared_ptr<void> place(std::int64_t client) const {
    const std::shared_ptr<void>& row = row_[static_cast<std::size_t>(client)];
    if (host_ != nullptr) {
      void* at = host_ + static_cast<std::size_t>(client) * bytes_;
      return std::shared_ptr<void>(at, [](void*) {});
    }
    return row != nullptr && row.use_count() == 1 ? row : allocate();
  }
  // Makes the memory of place() the row.
  void set(std::int64_t client, std::shared_ptr<void> memory) {
    std::shared_ptr<void>& row = row_[static_cast<std::size_t>(client)];
    n_rows_ += row == nullptr ? 1 : 0;
    row = std::move(memory);
  }
  // Minus the values (dim) as every row, in memory that they share. Throws std::bad_alloc.
  void fill_with_minus(const T* values) {
    std::shared_ptr<void> memory = allocate();
    kernels().of<T>().accumulate(dim_, nullptr, values, T(-1), nullptr, nullptr, static_cast<T*>(memory.get()));
    for (std::int64_t i = 0; i < n_clients(); ++i) {
      set(i, memory);
    }
  }
  // A delta as the row, in memory that place() gave.
  void store(std::int64_t client, const T* delta, std::shared_ptr<void> memory) {
    kernels().of<T>().store_row(dim_, delta, half_, memory.get());
    set(client, std::move(memory));
  }
  // A saved row, of dtype().
  void restore(std::int64_t client, const void* saved) {
    std::shared_ptr<void> memory = place(client);
    std::memcpy(memory.get(), saved, bytes_);
    set(client, std::move(memory));
  }

 private:
  std::shared_ptr<void> allocate() const {
    const std::align_val_t alignment{alignment_of(bytes_)};
    std::shared_ptr<void> memory(::operator new(bytes_, alignment),
                                 [alignment](void* at) { ::operator delete(at, alignment); });
    std::memset(memory.get(), 0, bytes_);
    return memory;
  }

  bool half_;
  std::size_t bytes_;  // of a row
  std::int64_t dim_;
  char* host_ = nullptr;
  std::int64_t n_rows_ = 0;
  std::vector<std::shared_ptr<void>> row_;
};

}  // namespace fedbuff
