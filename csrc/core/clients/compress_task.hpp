// The end of a task whose upload is compressed.
#pragma once

#include <cstdint>

#include "clients/client_work.hpp"
#include "clients/compression.hpp"
#include "clients/local_options.hpp"

namespace fedbuff {

// The task's delta becomes what is sent; scratch has compression_scratch bytes. Nothing is done without compression.
template <class T>
void compress_task(const LocalOptions& options, std::int64_t dim, const ClientTask<T>& task, void* scratch) {
  const CompressionKey key = options.compression_key(task.row->client, task.row->task);
  if (options.compress.error_feedback) {
    compress_with_feedback(options.compress, key, dim, task.delta_out, task.state, task.state_out, scratch);
  } else if (options.compress.kind != Compressor::None) {
    compress(options.compress, key, dim, static_cast<const T*>(task.delta_out), scratch, task.delta_out);
  }
}

}  // namespace fedbuff
