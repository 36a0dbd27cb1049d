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
  // Of a warp, where there are enough rows for all processors: each tile of keys that it loads then serves twice. With
  // more than one, registers suffice for blocks of a multiple of kCopiedKeys tokens only.
  static constexpr int kMaxRowTiles = kHeadDim > 128 ? 1 : 2;
  // Shared memory for this many query rows.
  __host__ __device__ static constexpr size_t num_bytes(int rows) {
    return (static_cast<size_t>(rows) * kTileRow<kHeadDim> + kStages * kStage) * sizeof(T);
  }
};

// How a group of warps copies tiles, one after the other: 16 keys or values at a time each.
template <class T, int kHeadDim, bool kIsWhole, class Group>
class TileCopies {
 public:
  // work: outlives this; key_begin < key_end.
  __device__ TileCopies(const PagedAttentionArgs& args, const TileWork& work, T* ring, const Group& warps)
      : places_(args, work),
        ring_(ring),
        warp_(warps.thread() / 32),
        num_warps_(warps.num_threads() / 32),
        begin_(work.key_begin),
        end_(work.key_end) {}

  // Asks where the next tile's vectors lie. No earlier: what is held while tiles are multiplied costs registers.
  __device__ void find_next() {
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const int i = warp_ + n * num_warps_;
      found_[n] = i < 2 * kParts ? find_key(places_, i < kParts ? kKeys : kValues, first_of(i), end_) : kNoKey;
    }
  }

  // After find_next(). Always ends a group of copies, an empty one behind the last tile: they are counted.
  __device__ void start_next() {
    T* to = ring_ + next_ % Shape::kStages * Shape::kStage;
    if (begin_ + next_ * Shape::kKeys < end_) {
#pragma unroll
      for (int n = 0; n < kCopies; ++n) {
        const int i = warp_ + n * num_warps_;
        if (i >= 2 * kParts) continue;
        copy_keys<kHeadDim>(places_, found_[n], first_of(i), end_, to + i * kCopiedKeys * kTileRow<kHeadDim>);
      }
    }
    commit_copies();
    ++next_;
  }

 private:
  using Shape = Tile<T, kHeadDim>;
  static constexpr int kParts = Shape::kKeys / kCopiedKeys;                                   // of keys, and of values
  static constexpr int kCopies = (2 * kParts + Group::kLeastWarps - 1) / Group::kLeastWarps;  // of a warp

  // The first key of the i-th copy of the next tile.
  __device__ int first_of(int i) const { return begin_ + next_ * Shape::kKeys + i % kParts * kCopiedKeys; }

  KeyPlaces<T, kIsWhole> places_;
  T* ring_;
  int warp_;
  int num_warps_;
  int begin_;
  int end_;
  int next_ = 0;
  uint32_t found_[kCopies];
};

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
  const float scale = args.scale * kLog2E;
  T* queries = reinterpret_cast<T*>(memory);  // [num_rows][kRow]
  T* ring = queries + num_rows * kRow;        // [kStages][kStage]
  TileCopies<T, kHeadDim, (kRowTiles > 1), Group> copies(args, work, ring, warps);

  // Of this warp's rows, where it has any.
  const int last_row = min(first_row + 16 * kRowTiles, work.num_rows) - 1;
  const int first_position = work.position(first_row);
  const int last_position = first_row < work.num_rows ? work.position(last_row) : -1;

  copy_queries<T, kHeadDim>(args, work, num_rows, queries, warps);  // of the first group
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) {
    copies.find_next();
    copies.start_next();
  }
  WarpRows<T, kHeadDim, Shape::kKeys, kRowTiles> rows;
  for (int tile = 0, first = work.key_begin; first < work.key_end; ++tile, first += Shape::kKeys) {
    copies.find_next();
    wait_for_copies<Shape::kStages - 2>();  // this tile is here
    warps.sync();                           // for all warps, and the one before may go
    copies.start_next();
    if (first > last_position || first + Shape::kKeys <= first_key(args, first_position)) continue;  // no row sees it
    const T* keys = ring + tile % Shape::kStages * Shape::kStage;
    rows.multiply_keys(queries + first_row * kRow, keys);
    if (first < first_key(args, last_position) || first + Shape::kKeys > first_position + 1) {  // some do not see all
      rows.mask(RowBounds<kRowTiles>(args, work, first_row), first, work.key_end);
    }
    rows.softmax(scale);
    rows.multiply_values(keys + Shape::kKeys * kRow);
  }
  wait_for_copies<0>();
  write_out<T, kHeadDim>(args, work, first_row, rows);
}

// The blocks of a KV head are numbered through all sequences: sequence s has those from first_slot(s) to first_slot(s +
// 1), one at least and as many as its rows need. So their number depends on how many tokens and sequences there are,
// not on whose they are, and a launch can be recorded.
__device__ inline int first_slot(const PagedAttentionArgs& args, int seq, int rows) {
  const int64_t group = args.num_heads / args.pool.num_kv_heads;
  return static_cast<int>(args.query_start[seq] * group / rows) + seq;
}

inline int64_t num_slots(const PagedAttentionArgs& args, int rows) {
  return args.num_tokens * (args.num_heads / args.pool.num_kv_heads) / rows + args.num_seqs;
}

// The last sequence whose slots begin at `slot` or before. By all lanes of a warp together.
__device__ inline int find_sequence(const PagedAttentionArgs& args, int slot, int rows) {
  int count = 0;
  for (int seq = static_cast<int>(threadIdx.x) % 32; seq < args.num_seqs; seq += 32) {
    count += first_slot(args, seq, rows) <= slot;
  }
  for (int offset = 16; offset > 0; offset /= 2) count += __shfl_xor_sync(0xffffffffu, count, offset);
  return count - 1;
}

// Grid: (KV heads, num_slots()). The last rows of a chunk see most keys: they begin first, and blocks of few keys join
// them on their processors.
template <class T, int kHeadDim, int kRowTiles>
__global__ void __launch_bounds__(kTileThreads, 2) tile_kernel(PagedAttentionArgs args) {
  begin_early();
  constexpr int kRows = 16 * kRowTiles * kTileWarps;
  const int slot = static_cast<int>(gridDim.y - 1 - blockIdx.y), seq = find_sequence(args, slot, kRows);
  if (has_few_rows(args, args.query_start[seq + 1] - args.query_start[seq])) return;  // the decode kernel's
  const int index = slot - first_slot(args, seq, kRows);
  const TileWork work = find_tile(args, seq, static_cast<int>(blockIdx.x), index, kRows);
  if (work.num_rows > 0) {
    run_tile<T, kHeadDim, kRowTiles>(args, work, block_memory(), WholeBlock<kTileThreads>{});
  }
}

}  // namespace hocket::cuda
