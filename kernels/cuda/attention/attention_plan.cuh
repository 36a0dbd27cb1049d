// How paged_attention is cut into blocks; shared by its launcher and its kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "launch.cuh"
#include "paged_attention.h"
#include "vector.cuh"

namespace hocket::cuda {

// The threads that work on something together: all kThreads of a block.
template <int kThreads>
struct WholeBlock {
  static constexpr int kLeastWarps = kThreads / 32;
  __device__ static constexpr int num_threads() { return kThreads; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static void sync() { __syncthreads(); }
};

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

constexpr float kNoScore = -1e30f;  // finite, so that differences of it are no NaN
constexpr float kLog2E = 1.44269504f;

constexpr int kStreamBlocks = 4;  // of a processor, in flight
constexpr int64_t kMinSplitKeys = 256;
constexpr int64_t kMaxSplits = 64;

// Parts that the keys are cut into so that `blocks` fill all processors, which hold `resident` each at a time.
inline int num_splits(const PagedAttentionArgs& args, int64_t blocks, int resident) {
  int64_t splits = ceil_div(int64_t{resident} * num_processors(), blocks < 1 ? 1 : blocks);
  if (splits > args.max_seq_len / kMinSplitKeys) splits = args.max_seq_len / kMinSplitKeys;
  if (splits > kMaxSplits) splits = kMaxSplits;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

inline StreamPlan make_plan(const PagedAttentionArgs& args) {
  StreamPlan plan{1, args.dtype == DType::kFloat32 && args.max_query_len > 1, static_cast<float*>(args.workspace)};
  const int64_t blocks = num_units(args, plan.is_per_token) * args.pool.num_kv_heads;
  plan.num_splits = num_splits(args, blocks, kStreamBlocks);
  return plan;
}

// Of the stream kernel's partial results, where keys are split.
inline int64_t num_stream_bytes(const PagedAttentionArgs& args) {
  const StreamPlan plan = make_plan(args);
  if (plan.num_splits == 1) return 0;
  const int64_t rows = num_units(args, plan.is_per_token) * args.num_heads * plan.num_splits;
  return rows * (args.pool.head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

constexpr int kDecodeRows = 16;  // of a block of the decode kernel

// Whether a sequence with so many query tokens is the decode kernel's: its rows of a KV head are few, or it is a
// decode.
__host__ __device__ inline bool has_few_rows(const PagedAttentionArgs& args, int64_t num_queries) {
  return num_queries == 1 || num_queries * args.num_heads <= kDecodeRows * args.pool.num_kv_heads;
}

// Blocks of the decode kernel that a processor has at a time.
constexpr int decode_blocks(int64_t head_dim) { return head_dim > 128 ? 1 : head_dim > 64 ? 2 : 4; }

// What the decode kernel and its merge kernel need beyond the arguments.
struct DecodePlan {
  int num_splits;   // parts that the keys of the longest sequence are cut into
  int row_parts;    // that the query heads of a KV head are cut into
  float* partials;  // [sequences x KV heads x row parts][kDecodeRows][num_splits][head_dim + 2] where num_splits > 1
};

inline DecodePlan make_decode_plan(const PagedAttentionArgs& args) {
  const int64_t group = args.num_heads / args.pool.num_kv_heads;
  DecodePlan plan{1, ceil_div(group, kDecodeRows), static_cast<float*>(args.workspace)};
  const int64_t blocks = args.num_seqs * args.pool.num_kv_heads * plan.row_parts;
  plan.num_splits = num_splits(args, blocks, decode_blocks(args.pool.head_dim));
  return plan;
}

// Of the decode kernel's partial results, where keys are split.
inline int64_t num_decode_bytes(const PagedAttentionArgs& args) {
  const DecodePlan plan = make_decode_plan(args);
  if (plan.num_splits == 1) return 0;
  const int64_t rows = args.num_seqs * args.pool.num_kv_heads * plan.row_parts * kDecodeRows * plan.num_splits;
  return rows * (args.pool.head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

// fn(count) with an integral constant: how many of the `group` query heads of a KV head are streamed at once. Where
// there are more than four, others read the keys again, from the L2 cache: with eight at once too few keys would be in
// flight.
template <class Fn>
Status with_stream_heads(int64_t group, const Fn& fn) {
  if (group == 1) return fn(std::integral_constant<int, 1>{});
  if (group == 2) return fn(std::integral_constant<int, 2>{});
  return fn(std::integral_constant<int, 4>{});
}

// Whether the kernels have code for these sizes.
inline bool can_attend(const PagedAttentionArgs& args) {
  const bool is_all_aligned = is_aligned(args.q) && is_aligned(args.out) && is_aligned(args.pool.data);
  return is_all_aligned && args.pool.head_dim % 8 == 0 && args.pool.head_dim <= 256 && args.q_stride % 8 == 0;
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
  if (token >= end || (!is_per_token && end - begin != 1)) return {-1, 0, 0, 0};
  return {token, args.rows[seq], first_key(args, position), position + 1};
}

}  // namespace hocket::cuda
