// paged_attention: causal attention of the step's query tokens over their sequences' cache.
//
// One flattened batch of num_seqs sequences; sequence s has the query tokens [query_start[s], query_start[s + 1]),
// which are its last: the last one is at position seq_lens[s] - 1. A decode is a sequence with one query token, a
// prefill chunk one with several; both may be in one call. The query at position p sees keys
// (p - sliding_window, p], or [0, p] where sliding_window is 0. Block table entries that no query sees are not read.
// Grouped heads: query head h reads KV head h / (num_heads / num_kv_heads). Softmax is in float32.
//
// CPU: keys of decodes whose rows of the table begin with the same units are read once for all of them, in their order
// for each (cpu/attention/shared_keys.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

struct PagedAttentionArgs {
  void* out;                   // [num_tokens][num_heads][head_dim], contiguous
  const void* q;               // [num_tokens][num_heads][head_dim], rows strided, heads contiguous
  const int32_t* rows;         // [num_seqs], row of the block table
  const int32_t* query_start;  // [num_seqs + 1]
  const int32_t* seq_lens;     // [num_seqs] tokens with cache, the query tokens included
  PagedPool pool;
  int64_t layer;
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_heads;       // a multiple of pool.num_kv_heads
  int64_t q_stride;        // elements
  int64_t sliding_window;  // 0: none
  int64_t max_query_len;   // the largest of the sequences; sizes the CUDA launch
  int64_t max_seq_len;     // likewise
  float scale;
  DType dtype;                         // of q and out; float32 on CPU, the pool's dtype on CUDA
  void* workspace;                     // CUDA only: paged_attention_workspace_bytes() bytes, or null where that is 0
  int64_t* num_shared_keys = nullptr;  // CPU only: the keys that sequences read with others are added to it; or null
};

Status paged_attention_cpu(const PagedAttentionArgs& args);
Status paged_attention_cuda(const PagedAttentionArgs& args, void* stream);

// Device memory that paged_attention_cuda() needs for the partial results of split sequences.
int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& args);

}  // namespace hocket
