// hidden_gather: one layer's X of stored tokens, of any rows and positions, side by side (paged_pool.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

struct HiddenGatherArgs {
  void* out;                 // [num_tokens][hidden_size], contiguous
  const int32_t* positions;  // [num_tokens]
  const int32_t* token_row;  // [num_tokens], row of the block table
  PagedPool pool;
  int64_t layer;
  int64_t num_tokens;
  int64_t hidden_size;  // <= d_kv
  DType dtype;          // of out; float32 on CPU, the pool's dtype on CUDA
};

// REQUIRES: what it reads has been stored by hidden_write.
Status hidden_gather_cpu(const HiddenGatherArgs& args);
Status hidden_gather_cuda(const HiddenGatherArgs& args, void* stream);

}  // namespace hocket
