// rope_kv_write: rotates q in place, rotates k, and writes k and v to the pool; before that, the norm of each head of q
// and of k (rms_norm.h's) where a model has one (Qwen3).
//
// The first `rotary_dim` elements of each head are rotated in the half-split convention: with half = rotary_dim / 2,
//   (x[i], x[i + half]) -> (x[i] cos - x[i + half] sin, x[i + half] cos + x[i] sin),  0 <= i < half,
// cos and sin from the row of cos_sin of the token's position. k and v themselves stay as they are.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

// Row strides are in elements; the heads of a row are contiguous.
struct RopeKvWriteArgs {
  void* q;                   // [num_tokens][num_heads][head_dim], in place
  const void* k;             // [num_tokens][num_kv_heads][head_dim]
  const void* v;             // [num_tokens][num_kv_heads][head_dim]
  const float* cos_sin;      // [max_position][rotary_dim]: rotary_dim / 2 cosines, then sines; or null: no rotation
  const int32_t* positions;  // [num_tokens]
  const int32_t* token_row;  // [num_tokens], row of the block table
  PagedPool pool;
  int64_t layer;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t rotary_dim;  // even, <= head_dim; 0 with cos_sin null
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  DType dtype;                   // of q, k, v and the norms; float32 on CPU, the pool's dtype on CUDA
  const void* q_norm = nullptr;  // [head_dim], or null: no norm
  const void* k_norm = nullptr;  // likewise; both or neither
  float norm_eps = 0;
};

// REQUIRES: no two tokens have the same row and position.
Status rope_kv_write_cpu(const RopeKvWriteArgs& args);
Status rope_kv_write_cuda(const RopeKvWriteArgs& args, void* stream);

}  // namespace hocket
