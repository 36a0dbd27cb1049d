// How paged_attention is cut into blocks; shared by its launcher and its kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "paged_attention.h"

namespace hocket::cuda {

// What the stream kernel and the merge kernel need beyond the arguments.
struct StreamPlan {
  int num_splits;     // parts that the keys of each query are cut into
  bool is_per_token;  // every query token is streamed, else only those of sequences with one
  float* partials;    // [units][num_heads][num_splits][head_dim + 2] where num_splits > 1: top, total, out
};

// Query tokens (is_per_token) or sequences that the stream kernel is launched for.
inline int64_t num_units(const PagedAttentionArgs& args, bool is_per_token) {
  return is_per_token ? args.num_tokens : args.num_seqs;
}

// One query token of the batch, and the keys that it sees.
struct Query {
  int token;  // in the flattened batch; -1: nothing to do
  int table_row;
  int key_begin;
  int key_end;
};

// First visible key of a query at `position`.
__device__ inline int first_key(const PagedAttentionArgs& args, int position) {
  const int first = position - static_cast<int>(args.sliding_window) + 1;
  return args.sliding_window > 0 && first > 0 ? first : 0;
}

__device__ inline Query find_query(const PagedAttentionArgs& args, bool is_per_token, int unit) {
  int seq = unit;
  if (is_per_token) {  // query_start[seq] <= unit < query_start[seq + 1]
    int low = 0, high = static_cast<int>(args.num_seqs);
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (args.query_start[middle] <= unit ? low : high) = middle;
    }
    seq = low;
  }
  const int begin = args.query_start[seq], end = args.query_start[seq + 1];
  const int token = is_per_token ? unit : begin;
  const int position = args.seq_lens[seq] - (end - token);
  if (!is_per_token && end - begin != 1) return {-1, 0, 0, 0};
  return {token, args.rows[seq], first_key(args, position), position + 1};
}

}  // namespace hocket::cuda
