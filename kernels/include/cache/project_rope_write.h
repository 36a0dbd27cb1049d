// project_rope_write: what follows the product of stored X with a layer's K and V weights: norm of each head of K
// (Qwen3's), rotation at the stored position, and both to where the block table says, which is the workspace for tokens
// without K and V of their own. K and V themselves stay as they are.
//
// The norm is rms_norm.h's over each head, the rotation rope_kv_write.h's. The product is linear.h's on CPU and the
// library's on CUDA.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

// Row strides are in elements; the heads of a row are contiguous.
struct ProjectRopeWriteArgs {
  const void* k;             // [num_tokens][num_kv_heads][head_dim]
  const void* v;             // [num_tokens][num_kv_heads][head_dim]
  const void* k_norm;        // [head_dim], or null: no norm
  const float* cos_sin;      // [max_position][rotary_dim], see rope_kv_write.h; or null: no rotation
  const int32_t* positions;  // [num_tokens]
  const int32_t* token_row;  // [num_tokens], row of the block table
  PagedPool pool;
  int64_t layer;
  int64_t num_tokens;
  int64_t rotary_dim;  // even, <= head_dim; 0 with cos_sin null
  int64_t k_stride;
  int64_t v_stride;
  float norm_eps;
  DType dtype;  // of k, v and k_norm; float32 on CPU, the pool's dtype on CUDA
};

// REQUIRES: no two tokens have the same row and position.
Status project_rope_write_cpu(const ProjectRopeWriteArgs& args);
Status project_rope_write_cuda(const ProjectRopeWriteArgs& args, void* stream);

}  // namespace hocket
