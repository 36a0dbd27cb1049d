// Attention of prefill chunks on tensor cores, for 16-bit elements.
//
// A group of warps takes query rows that share a KV head, 16 for each warp; a row is one query head at one query token,
// numbered query * group + head. The warps walk together over tiles of keys in shared memory: S = Q K^T and out += P V
// by mma, softmax in registers, the scores' accumulators becoming the next product's operand in place. Copies of V run
// under S, copies of the next K under softmax and P V.
//
// Operations: 4 x rows x keys x head_dim, half of it masked away on the diagonal only. Bytes: K and V once per block.
#pragma once

#include "attention/attention_plan.cuh"
#include "launch.cuh"
#include "mma.cuh"
#include "paged.cuh"
#include "vector.cuh"

namespace hocket::cuda {

constexpr int kTileWarps = 4;
constexpr int kTileRows = 16 * kTileWarps;
constexpr int kTileThreads = 32 * kTileWarps;

template <class T, int kHeadDim>
struct Tile {
  static constexpr int kKeys = kHeadDim > 128 ? 32 : 64;
  static constexpr int kRow = kHeadDim + 8;  // elements; 16 bytes more, so that 8 rows lie in different banks
  // Shared memory for this many query rows.
  __host__ __device__ static constexpr size_t num_bytes(int rows) {
    return static_cast<size_t>(rows + 2 * kKeys) * kRow * sizeof(T);
  }

  T* queries;  // [rows][kRow]
  T* keys;     // [kKeys][kRow]
  T* values;   // [kKeys][kRow]
};

// The query rows of one block, and the keys that any of them sees.
struct TileWork {
  int table_row;
  int first_token;  // of the sequence, in the flattened batch
  int first_position;
  int first_row;
  int num_rows;
  int key_begin;
  int key_end;
  int kv_head;
  int group;

  __device__ int position(int row) const { return first_position + (first_row + row) / group; }
};

// Rows [index * rows, (index + 1) * rows) of a sequence, as far as it has them.
__device__ inline TileWork find_tile(const PagedAttentionArgs& args, int seq, int kv_head, int index, int rows) {
  const int first_token = args.query_start[seq], num_queries = args.query_start[seq + 1] - first_token;
  TileWork work;
  work.group = static_cast<int>(args.num_heads / args.pool.num_kv_heads);
  work.kv_head = kv_head;
  work.table_row = args.rows[seq];
  work.first_token = first_token;
  work.first_position = args.seq_lens[seq] - num_queries;
  work.first_row = index * rows;
  const int rows_left = num_queries * work.group - work.first_row;
  work.num_rows = rows_left < rows ? rows_left : rows;
  if (work.num_rows > 0) {
    work.key_begin = first_key(args, work.position(0));
    work.key_end = work.position(work.num_rows - 1) + 1;
  }
  return work;
}

// Starts copying the tile of keys or values that begins at position `first`.
template <class T, int kHeadDim, class Group>
__device__ void copy_tile(const PagedAttentionArgs& args, const TileWork& work, Kind kind, int first, T* to,
                          const Group& warps) {
  using Shape = Tile<T, kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, per key
  const int head_dim = static_cast<int>(args.pool.head_dim);
  for (int i = warps.thread(); i < Shape::kKeys * kChunks; i += warps.num_threads()) {
    const int key = i / kChunks, at = i % kChunks * 8;
    const bool is_valid = first + key < work.key_end && at < head_dim;
    const T* from = static_cast<const T*>(args.pool.data);
    if (is_valid) {
      from = paged_vector<T>(args.pool, args.layer, work.table_row, kind, first + key) + work.kv_head * head_dim + at;
    }
    copy_async(to + key * Shape::kRow + at, from, is_valid);
  }
}

template <class T, int kHeadDim, class Group>
__device__ void copy_queries(const PagedAttentionArgs& args, const TileWork& work, T* to, const Group& warps) {
  constexpr int kChunks = kHeadDim / 8;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  for (int i = warps.thread(); i < warps.num_threads() / 2 * kChunks; i += warps.num_threads()) {
    const int row = i / kChunks, at = i % kChunks * 8;
    const bool is_valid = row < work.num_rows && at < head_dim;
    const T* from = static_cast<const T*>(args.q);
    if (is_valid) {
      const int query = (work.first_row + row) / work.group, head = (work.first_row + row) % work.group;
      from += (work.first_token + query) * args.q_stride + (work.kv_head * work.group + head) * int64_t{head_dim} + at;
    }
    copy_async(to + row * Tile<T, kHeadDim>::kRow + at, from, is_valid);
  }
}

// The state of one thread: of its warp's rows g (index 0) and g + 8 (index 1).
template <class T, int kHeadDim>
struct TileState {
  static constexpr int kKeyTiles = Tile<T, kHeadDim>::kKeys / 8;
  static constexpr int kOutTiles = kHeadDim / 8;
  float scores[kKeyTiles][4];
  float out[kOutTiles][4];
  float top[2];
  float total[2];  // of this thread's columns only, until the end
};

template <class T, int kHeadDim>
__device__ void multiply_keys(const Tile<T, kHeadDim>& tile, int warp, TileState<T, kHeadDim>& state) {
  constexpr int kRow = Tile<T, kHeadDim>::kRow;
  const int lane = threadIdx.x % 32;
  for (auto& scores : state.scores) {
    for (float& score : scores) score = 0;
  }
  for (int k = 0; k < kHeadDim; k += 16) {
    uint32_t a[4];
    load_matrices(a, tile.queries + (warp * 16 + lane % 16) * kRow + k + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < state.kKeyTiles; n += 2) {
      uint32_t b[4];  // keys n * 8.. at k and k + 8, then keys (n + 1) * 8..
      load_matrices(b, tile.keys + (n * 8 + lane / 16 * 8 + lane % 8) * kRow + k + lane / 8 % 2 * 8);
      mma(state.scores[n], a, b[0], b[1], T{});
      mma(state.scores[n + 1], a, b[2], b[3], T{});
    }
  }
}

template <class T, int kHeadDim>
__device__ void multiply_values(const Tile<T, kHeadDim>& tile, TileState<T, kHeadDim>& state) {
  constexpr int kRow = Tile<T, kHeadDim>::kRow;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < state.kKeyTiles; k += 2) {  // 16 keys
    const auto& left = state.scores[k];
    const auto& right = state.scores[k + 1];
    const uint32_t a[4] = {pack(left[0], left[1], T{}), pack(left[2], left[3], T{}), pack(right[0], right[1], T{}),
                           pack(right[2], right[3], T{})};
#pragma unroll
    for (int n = 0; n < state.kOutTiles; n += 2) {
      uint32_t b[4];  // keys k * 8.. and k * 8 + 8.. at columns n * 8.., then at columns (n + 1) * 8..
      load_matrices_transposed(b, tile.values + (k * 8 + lane % 16) * kRow + n * 8 + lane / 16 * 8);
      mma(state.out[n], a, b[0], b[1], T{});
      mma(state.out[n + 1], a, b[2], b[3], T{});
    }
  }
}

// Scales the scores to units of log2(e) and hides what a row may not see.
template <class T, int kHeadDim>
__device__ void mask(const PagedAttentionArgs& args, const TileWork& work, int first, int warp,
                     TileState<T, kHeadDim>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * 16 + lane / 4 + i * 8;
    const int position = work.position(row < work.num_rows ? row : work.num_rows - 1);
    const int begin = first_key(args, position);
#pragma unroll
    for (int n = 0; n < state.kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int key = first + n * 8 + lane % 4 * 2 + j;
        float& score = state.scores[n][2 * i + j];
        score = key >= begin && key <= position ? score * (args.scale * 1.44269504f) : -INFINITY;
      }
    }
  }
}

// scores -> exp2(scores - top); out and total brought up to date with the new top.
template <class T, int kHeadDim>
__device__ void softmax(TileState<T, kHeadDim>& state) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = state.top[i];
#pragma unroll
    for (int n = 0; n < state.kKeyTiles; ++n)
      top = fmaxf(top, fmaxf(state.scores[n][2 * i], state.scores[n][2 * i + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float decay = exp2f(state.top[i] - top);
    state.top[i] = top;
    state.total[i] *= decay;
#pragma unroll
    for (int n = 0; n < state.kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = state.scores[n][2 * i + j];
        score = exp2f(score - top);
        state.total[i] += score;
      }
    }
#pragma unroll
    for (int n = 0; n < state.kOutTiles; ++n) {
      state.out[n][2 * i] *= decay;
      state.out[n][2 * i + 1] *= decay;
    }
  }
}

template <class T, int kHeadDim>
__device__ void write_out(const PagedAttentionArgs& args, const TileWork& work, int warp,
                          TileState<T, kHeadDim>& state) {
  const int lane = threadIdx.x % 32;
  const int head_dim = static_cast<int>(args.pool.head_dim);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float total = state.total[i];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row = warp * 16 + lane / 4 + i * 8;
    if (row >= work.num_rows) continue;
    const int query = (work.first_row + row) / work.group, head = (work.first_row + row) % work.group;
    T* out = static_cast<T*>(args.out) +
             ((work.first_token + query) * args.num_heads + work.kv_head * work.group + head) * head_dim;
#pragma unroll
    for (int n = 0; n < state.kOutTiles; ++n) {
      const int at = n * 8 + lane % 4 * 2;
      if (at >= head_dim) break;
      Vector<T, 2> pair;
      pair.set(0, state.out[n][2 * i] / total);
      pair.set(1, state.out[n][2 * i + 1] / total);
      store_vector(out + at, pair);
    }
  }
}

// memory: Tile::num_bytes(16 x warps), aligned to 16.
template <class T, int kHeadDim, class Group>
__device__ void run_tile(const PagedAttentionArgs& args, const TileWork& work, unsigned char* memory,
                         const Group& warps) {
  using Shape = Tile<T, kHeadDim>;
  const int warp = warps.thread() / 32;
  Shape tile;
  tile.queries = reinterpret_cast<T*>(memory);
  tile.keys = tile.queries + warps.num_threads() / 2 * Shape::kRow;
  tile.values = tile.keys + Shape::kKeys * Shape::kRow;

  TileState<T, kHeadDim> state;
  for (auto& out : state.out) {
    for (float& element : out) element = 0;
  }
  for (int i = 0; i < 2; ++i) {
    state.top[i] = -1e30f;  // finite, so that differences of it are no NaN
    state.total[i] = 0;
  }

  copy_queries<T, kHeadDim>(args, work, tile.queries, warps);
  copy_tile<T, kHeadDim>(args, work, kKeys, work.key_begin, tile.keys, warps);
  commit_copies();
  for (int first = work.key_begin; first < work.key_end; first += Shape::kKeys) {
    copy_tile<T, kHeadDim>(args, work, kValues, first, tile.values, warps);
    commit_copies();
    wait_for_copies<1>();  // the keys are here
    warps.sync();
    multiply_keys(tile, warp, state);
    warps.sync();  // the keys may go
    copy_tile<T, kHeadDim>(args, work, kKeys, first + Shape::kKeys, tile.keys, warps);
    commit_copies();
    mask(args, work, first, warp, state);
    softmax(state);
    wait_for_copies<1>();  // the values are here
    warps.sync();
    multiply_values(tile, state);
    warps.sync();  // the values may go
  }
  wait_for_copies<0>();
  write_out(args, work, warp, state);
}

// Grid: (ceil(max_query_len x group / kTileRows), KV heads, sequences).
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(PagedAttentionArgs args) {
  const int seq = static_cast<int>(blockIdx.z);
  if (args.query_start[seq + 1] - args.query_start[seq] == 1) return;  // the stream kernel's
  const TileWork work = find_tile(args, seq, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), kTileRows);
  if (work.num_rows > 0) run_tile<T, kHeadDim>(args, work, block_memory(), WholeBlock<kTileThreads>{});
}

}  // namespace hocket::cuda
