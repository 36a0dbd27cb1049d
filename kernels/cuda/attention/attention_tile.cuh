// Attention of prefill chunks on tensor cores, for 16-bit elements.
//
// A group of warps takes query rows that share a KV head, 16 or 32 for each warp, and walks together over tiles of keys
// and values in a ring of shared memory, which are copied some tiles ahead.
//
// Operations: 4 x rows x keys x head_dim, half of it masked away on the diagonal only. Bytes: K and V once per block.
#pragma once

#include "attention/attention_products.cuh"

namespace hocket::cuda {

constexpr int kTileWarps = 4;
constexpr int kTileThreads = 32 * kTileWarps;

template <class T, int kHeadDim>
struct Tile {
  static constexpr int kKeys = 32;
  static constexpr int kStages = 3;
  static constexpr int kStage = 2 * kKeys * kTileRow<kHeadDim>;  // elements: keys, then values
  // Of a warp, where there are enough rows for all processors: each tile of keys that it loads then serves twice.
  static constexpr int kMaxRowTiles = kHeadDim > 128 ? 1 : 2;
  // Shared memory for this many query rows.
  __host__ __device__ static constexpr size_t num_bytes(int rows) {
    return (static_cast<size_t>(rows) * kTileRow<kHeadDim> + kStages * kStage) * sizeof(T);
  }
};

// A group of warps starts copying a tile, 16 keys or values a warp.
template <class T, int kHeadDim, class Group>
__device__ void copy_tile(const KeyPlaces<T>& places, int first, int end, int head_dim, T* to, const Group& warps) {
  constexpr int kParts = Tile<T, kHeadDim>::kKeys / kCopiedKeys;
  for (int i = warps.thread() / 32; i < 2 * kParts; i += warps.num_threads() / 32) {
    const Kind kind = i < kParts ? kKeys : kValues;
    const int at = i % kParts * kCopiedKeys;
    copy_keys<T, kHeadDim>(places, kind, first + at, end, head_dim, to + i * kCopiedKeys * kTileRow<kHeadDim>);
  }
}

template <class T, int kHeadDim, class Rows>
__device__ void write_out(const PagedAttentionArgs& args, const TileWork& work, int first_row, Rows& rows) {
  const int head_dim = static_cast<int>(args.pool.head_dim);
  rows.sum_totals();
#pragma unroll
  for (int m = 0; m < Rows::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + row_of_pair(m, i);
      if (row >= work.num_rows) continue;
      T* out = static_cast<T*>(args.out) + work.place(row, args.num_heads * head_dim, head_dim);
      const float factor = 1 / rows.total[m][i];
#pragma unroll
      for (int n = 0; n < Rows::kOutTiles; ++n) {
        const int at = n * 8 + column_of_pair();
        if (at >= head_dim) break;
        Vector<T, 2> pair;
        pair.set(0, rows.out[m][n][2 * i] * factor);
        pair.set(1, rows.out[m][n][2 * i + 1] * factor);
        store_vector(out + at, pair);
      }
    }
  }
}

// memory: Tile::num_bytes(16 x kRowTiles x warps), aligned to 16.
template <class T, int kHeadDim, int kRowTiles, class Group>
__device__ void run_tile(const PagedAttentionArgs& args, const TileWork& work, unsigned char* memory,
                         const Group& warps) {
  using Shape = Tile<T, kHeadDim>;
  constexpr int kRow = kTileRow<kHeadDim>;
  const int num_rows = 16 * kRowTiles * (warps.num_threads() / 32), first_row = warps.thread() / 32 * 16 * kRowTiles;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  const float scale = args.scale * kLog2OfE;
  T* queries = reinterpret_cast<T*>(memory);  // [num_rows][kRow]
  T* ring = queries + num_rows * kRow;        // [kStages][kStage]
  const KeyPlaces<T> places(args, work);

  // Keys that all rows of this warp see, and that any of them sees. A warp without rows sees none.
  const int last_row = min(first_row + 16 * kRowTiles, work.num_rows) - 1;
  const bool has_rows = first_row < work.num_rows;
  const int any_begin = has_rows ? first_key(args, work.position(first_row)) : 0;
  const int any_end = has_rows ? work.position(last_row) + 1 : 0;
  const int all_begin = has_rows ? first_key(args, work.position(last_row)) : 0;
  const int all_end = has_rows ? work.position(first_row) + 1 : 0;

  const int num_tiles = (work.key_end - work.key_begin + Shape::kKeys - 1) / Shape::kKeys;
  const auto start_copies = [&](int tile) {
    if (tile < num_tiles) {
      const int first = work.key_begin + tile * Shape::kKeys;
      T* to = ring + tile % Shape::kStages * Shape::kStage;
      copy_tile<T, kHeadDim>(places, first, work.key_end, head_dim, to, warps);
    }
    commit_copies();  // an empty group, too: they are counted
  };

  copy_queries<T, kHeadDim>(args, work, num_rows, queries, warps);
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) start_copies(tile);  // the queries are of the first group
  WarpRows<T, kHeadDim, Shape::kKeys, kRowTiles> rows;
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies<Shape::kStages - 2>();  // this tile is here
    warps.sync();                           // for all warps, and the one before may go
    start_copies(tile + Shape::kStages - 1);
    const int first = work.key_begin + tile * Shape::kKeys;
    if (first >= any_end || first + Shape::kKeys <= any_begin) continue;
    const T* keys = ring + tile % Shape::kStages * Shape::kStage;
    rows.multiply_keys(queries + first_row * kRow, keys);
    if (first < all_begin || first + Shape::kKeys > all_end) {
      rows.mask(RowBounds<kRowTiles>(args, work, first_row), first, work.key_end);
    }
    rows.softmax(scale);
    rows.multiply_values(keys + Shape::kKeys * kRow);
  }
  wait_for_copies<0>();
  write_out<T, kHeadDim>(args, work, first_row, rows);
}

// Grid: (ceil(max_query_len x group / rows of a block), KV heads, sequences). The last rows of a chunk see most keys:
// they begin first.
template <class T, int kHeadDim, int kRowTiles>
__global__ void __launch_bounds__(kTileThreads, 2) tile_kernel(PagedAttentionArgs args) {
  const int seq = static_cast<int>(blockIdx.z), index = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  if (has_few_rows(args, args.query_start[seq + 1] - args.query_start[seq])) return;  // the decode kernel's
  const TileWork work = find_tile(args, seq, static_cast<int>(blockIdx.y), index, 16 * kRowTiles * kTileWarps);
  if (work.num_rows > 0) {
    run_tile<T, kHeadDim, kRowTiles>(args, work, block_memory(), WholeBlock<kTileThreads>{});
  }
}

}  // namespace hocket::cuda
