// hidden_write: stores X, the input of a layer's attention projections, in the hidden cache (paged_pool.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

struct HiddenWriteArgs {
  const void* x;             // [...][hidden_size], rows strided
  const int32_t* tokens;     // [num_tokens], which rows of x; or null: row i is token i
  const int32_t* positions;  // [num_tokens]
  const int32_t* token_row;  // [num_tokens], row of the block table
  PagedPool pool;
  int64_t layer;
  int64_t num_tokens;
  int64_t hidden_size;  // <= d_kv
  int64_t x_stride;     // elements
  DType dtype;          // of x; float32 on CPU, the pool's dtype on CUDA
};

// REQUIRES: no two tokens have the same row and position; their blocks are hidden ones.
Status hidden_write_cpu(const HiddenWriteArgs& args);
Status hidden_write_cuda(const HiddenWriteArgs& args, void* stream);

}  // namespace hocket
