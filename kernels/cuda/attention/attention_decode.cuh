// Attention of few query rows over many keys, for 16-bit elements: decodes, and short chunks such as guessed tokens.
//
// A block takes up to 16 query rows that share a KV head, and one part of the keys. Each of its warps walks over tiles
// of 16 keys of its own, which wait for nobody: it copies them to a ring of shared memory some tiles ahead, multiplies
// on tensor cores and keeps an online softmax. Warps are merged through shared memory, parts of the keys by a kernel of
// their own.
//
// Bytes: keys x head_dim x 2 per KV head, plus nothing that counts.
#pragma once

#include "attention/attention_products.cuh"

namespace hocket::cuda {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeThreads = 32 * kDecodeWarps;
constexpr int kDecodeKeys = kCopiedKeys;  // of a tile

template <class T, int kHeadDim>
struct DecodeShape {
  static constexpr int kStages = kHeadDim > 128 ? 2 : 3;               // tiles of a warp's ring
  static constexpr int kStage = 2 * kDecodeKeys * kTileRow<kHeadDim>;  // elements: keys, then values
  static constexpr int kQueries = kDecodeRows * kTileRow<kHeadDim>;    // elements
  static constexpr int kResult = kDecodeRows * (kHeadDim + 2);         // floats of a warp: out, top, total
  static constexpr size_t kBytes = (kQueries + kDecodeWarps * kStages * kStage) * sizeof(T);
  static_assert(kDecodeWarps * kResult * sizeof(float) <= kDecodeWarps * kStages * kStage * sizeof(T));
};

// Parts that the keys of a sequence are cut into. A recorded launch is made for longer ones than most are.
__device__ inline int num_parts(const DecodePlan& plan, const TileWork& work) {
  const int parts = (work.key_end - work.key_begin + kMinSplitKeys - 1) / kMinSplitKeys;
  return min(max(parts, 1), plan.num_splits);
}

// Where a part's result of a row goes: out, unscaled, then top (in units of log2) and total.
__device__ inline float* partial_of(const DecodePlan& plan, int unit, int row, int split, int head_dim) {
  return plan.partials + ((int64_t{unit} * kDecodeRows + row) * plan.num_splits + split) * (head_dim + 2);
}

// The warps' results, [warps][kDecodeRows][kHeadDim + 2] in shared memory, to the output or to the partials.
template <class T, int kHeadDim>
__device__ void merge_results(const PagedAttentionArgs& args, const DecodePlan& plan, const TileWork& work,
                              const float* results, int unit, int split, int parts) {
  constexpr int kSize = DecodeShape<T, kHeadDim>::kResult;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < work.num_rows * kHeadDim; i += kDecodeThreads) {
    const int row = i / kHeadDim, d = i % kHeadDim;
    if (d >= head_dim) continue;
    const float* of_row = results + row * (kHeadDim + 2);
    float top = kNoScore, total = 0, out = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, of_row[w * kSize + kHeadDim]);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float weight = exp2_approximate(of_row[w * kSize + kHeadDim] - top);
      total += weight * of_row[w * kSize + kHeadDim + 1];
      out += weight * of_row[w * kSize + d];
    }
    if (parts == 1) {
      T* to = static_cast<T*>(args.out) + work.place(row, args.num_heads * head_dim, head_dim);
      to[d] = from_float<T>(out / total);
    } else {
      float* partial = partial_of(plan, unit, row, split, head_dim);
      partial[d] = out;
      if (d == 0) {
        partial[head_dim] = top;
        partial[head_dim + 1] = total;
      }
    }
  }
}

// unit: over sequences, KV heads and row parts. No rows where the sequence is not the decode kernel's.
__device__ inline TileWork find_decode(const PagedAttentionArgs& args, const DecodePlan& plan, int unit) {
  const int parts = static_cast<int>(args.pool.num_kv_heads) * plan.row_parts;
  const int seq = unit / parts, kv_head = unit % parts / plan.row_parts;
  TileWork work = find_tile(args, seq, kv_head, unit % plan.row_parts, kDecodeRows);
  if (!has_few_rows(args, args.query_start[seq + 1] - args.query_start[seq])) work.num_rows = 0;  // tile_kernel's
  return work;
}

template <class T, int kHeadDim>
__device__ void run_decode(const PagedAttentionArgs& args, const DecodePlan& plan, const TileWork& work, int unit,
                           int split, int parts, unsigned char* memory) {
  using Shape = DecodeShape<T, kHeadDim>;
  constexpr int kRow = kTileRow<kHeadDim>, kStages = Shape::kStages;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const float scale = args.scale * kLog2E;
  T* queries = reinterpret_cast<T*>(memory);
  T* ring = queries + Shape::kQueries + warp * kStages * Shape::kStage;
  const KeyPlaces<T, false> places(args, work);

  const int num_tiles = (work.key_end - work.key_begin + kDecodeKeys - 1) / kDecodeKeys;
  const auto tiles_before = [&](int part) {  // fewer than 2^26 tiles and at most 64 parts
    return static_cast<int>(static_cast<unsigned>(num_tiles) * static_cast<unsigned>(part) /
                            static_cast<unsigned>(parts));
  };
  const int first_tile = tiles_before(split), end_tile = tiles_before(split + 1);
  const int end = min(work.key_begin + end_tile * kDecodeKeys, work.key_end);
  int next = 0;  // of this warp's tiles, the first whose copies have not begun
  uint32_t found[2];
  const auto first_key_of = [&](int index) {
    return work.key_begin + (first_tile + warp + index * kDecodeWarps) * kDecodeKeys;
  };
  const auto find_next = [&] {
    found[0] = find_key(places, kKeys, first_key_of(next), end);
    found[1] = find_key(places, kValues, first_key_of(next), end);
  };
  const auto start_next = [&] {
    if (first_key_of(next) < end) {
      T* to = ring + next % kStages * Shape::kStage;
      copy_keys<kHeadDim>(places, found[0], first_key_of(next), end, to);
      copy_keys<kHeadDim>(places, found[1], first_key_of(next), end, to + kDecodeKeys * kRow);
    }
    commit_copies();  // an empty group, too: they are counted
    ++next;
    find_next();
  };

  find_next();
  copy_queries<T, kHeadDim>(args, work, kDecodeRows, queries, WholeBlock<kDecodeThreads>{});
  commit_copies();
  for (int i = 0; i < kStages - 1; ++i) start_next();
  wait_for_copies<kStages - 1>();  // the queries are here
  __syncthreads();

  using Rows = WarpRows<T, kHeadDim, kDecodeKeys, 1>;
  Rows rows;
  const RowBounds<1> bounds(args, work, 0);
  for (int i = 0; first_key_of(i) < end; ++i) {
    wait_for_copies<kStages - 2>();  // tile i is here
    __syncwarp();                    // for all lanes, and tile i - 1 may go
    start_next();
    const T* keys = ring + i % kStages * Shape::kStage;
    const int first = first_key_of(i);
    rows.multiply_keys(queries, keys);
    rows.mask(bounds, first, end);
    rows.softmax(scale);
    rows.multiply_values(keys + kDecodeKeys * kRow);
  }
  wait_for_copies<0>();
  rows.sum_totals();
  __syncthreads();  // the ring may go

  float* results = reinterpret_cast<float*>(queries + Shape::kQueries);
  float* mine = results + warp * Shape::kResult;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* row = mine + row_of_pair(0, i) * (kHeadDim + 2);
#pragma unroll
    for (int n = 0; n < Rows::kOutTiles; ++n) {
      row[n * 8 + column_of_pair()] = rows.out[0][n][2 * i];
      row[n * 8 + column_of_pair() + 1] = rows.out[0][n][2 * i + 1];
    }
    if (column_of_pair() == 0) {
      row[kHeadDim] = rows.top[0][i] * scale;
      row[kHeadDim + 1] = rows.total[0][i];
    }
  }
  __syncthreads();
  merge_results<T, kHeadDim>(args, plan, work, results, unit, split, parts);
}

// Grid: (sequences x KV heads x row parts, splits).
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads, decode_blocks(kHeadDim))
    decode_kernel(PagedAttentionArgs args, DecodePlan plan) {
  begin_early();
  const int unit = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y);
  const TileWork work = find_decode(args, plan, unit);
  if (work.num_rows <= 0) return;
  const int parts = num_parts(plan, work);
  if (split < parts) run_decode<T, kHeadDim>(args, plan, work, unit, split, parts, block_memory());
}

constexpr int kMergeThreads = 128;

// Joins the splits, at most kMaxSplits. Grid: (sequences x KV heads x row parts, kDecodeRows).
template <class T>
__global__ void decode_merge_kernel(PagedAttentionArgs args, DecodePlan plan) {
  begin_early();
  const int unit = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const TileWork work = find_decode(args, plan, unit);
  if (row >= work.num_rows) return;
  const int parts = num_parts(plan, work);
  if (parts == 1) return;  // it has written its rows
  const int head_dim = static_cast<int>(args.pool.head_dim), size = head_dim + 2;
  const float* partials = partial_of(plan, unit, row, 0, head_dim);
  constexpr int kPerLane = kMaxSplits / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float tops[kPerLane], top = kNoScore, weights[kPerLane], total = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int split = i * 32 + lane;
    tops[i] = split < parts ? partials[split * size + head_dim] : kNoScore;
    top = fmaxf(top, tops[i]);
  }
  for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int split = i * 32 + lane;
    weights[i] = split < parts ? exp2_approximate(tops[i] - top) : 0;
    total += split < parts ? weights[i] * partials[split * size + head_dim + 1] : 0;
  }
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
  T* to = static_cast<T*>(args.out) + work.place(row, args.num_heads * head_dim, head_dim);
  for (int first = 0; first < head_dim; first += kMergeThreads) {  // whole warps: all lanes show their weights
    const int d = first + static_cast<int>(threadIdx.x);
    float out = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int count = min(parts - i * 32, 32);
#pragma unroll 8
      for (int s = 0; s < count; ++s) {
        const float weight = __shfl_sync(0xffffffffu, weights[i], s);
        if (d < head_dim) out += weight * partials[(i * 32 + s) * size + d];
      }
    }
    if (d < head_dim) to[d] = from_float<T>(out / total);
  }
}

}  // namespace hocket::cuda
