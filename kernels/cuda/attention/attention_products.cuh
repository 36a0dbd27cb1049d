// What one warp does with tiles of query rows and keys in shared memory: scores by mma, softmax in registers, and the
// scores' accumulators become the next product's operand in place. For 16-bit elements.
//
// A query row is one query head at one query token; rows that share a KV head are numbered query * group + head.
#pragma once

#include "attention/attention_plan.cuh"
#include "launch.cuh"
#include "mma.cuh"
#include "paged.cuh"
#include "vector.cuh"

namespace hocket::cuda {

constexpr int kCopiedKeys = 16;  // that a warp copies at a time

// Elements of a row in shared memory: 16 bytes more than a head, so that 8 rows lie in different banks.
template <int kHeadDim>
constexpr int kTileRow = kHeadDim + 8;

// The query rows of one block, and the keys that any of them sees, from a multiple of kCopiedKeys on.
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
  // Where the row's head begins in a [tokens][heads][head_dim] tensor whose tokens are `stride` elements apart.
  __device__ int64_t place(int row, int64_t stride, int head_dim) const {
    const int query = (first_row + row) / group, head = (first_row + row) % group;
    return (first_token + query) * stride + (kv_head * group + head) * head_dim;
  }
};

// Rows [index * rows, (index + 1) * rows) of a sequence, as far as it has them.
__device__ inline TileWork find_tile(const PagedAttentionArgs& args, int seq, int kv_head, int index, int rows) {
  const int first_token = args.query_start[seq], num_queries = args.query_start[seq + 1] - first_token;
  TileWork work;
  work.group = static_cast<int>(args.num_heads) / static_cast<int>(args.pool.num_kv_heads);
  work.kv_head = kv_head;
  work.table_row = args.rows[seq];
  work.first_token = first_token;
  work.first_position = args.seq_lens[seq] - num_queries;
  work.first_row = index * rows;
  const int rows_left = num_queries * work.group - work.first_row;
  work.num_rows = rows_left < rows ? rows_left : rows;
  if (work.num_rows > 0) {
    work.key_begin = first_key(args, work.position(0)) / kCopiedKeys * kCopiedKeys;
    work.key_end = work.position(work.num_rows - 1) + 1;
  }
  return work;
}

// Where the vectors of a sequence's keys lie for one KV head. What does not depend on the key is computed once, unless
// a register costs more. kIsWhole: blocks have a multiple of kCopiedKeys tokens; else they may have any number.
template <class T, bool kIsWhole>
struct KeyPlaces {
  const PagedPool& pool;
  const T* data;          // of this KV head
  const int32_t* table;   // the sequence's blocks of K; max_blocks further, those of V
  unsigned layer_tokens;  // of a unit, before this layer's

  // args: outlives this.
  __device__ KeyPlaces(const PagedAttentionArgs& args, const TileWork& work)
      : pool(args.pool), data(static_cast<const T*>(args.pool.data) + work.kv_head * args.pool.head_dim) {
    const auto layer = static_cast<unsigned>(args.layer), layers = static_cast<unsigned>(pool.layers_per_unit);
    table = pool.block_table + (work.table_row * pool.num_groups + layer / layers) * 2 * pool.max_blocks;
    layer_tokens = layer % layers * static_cast<unsigned>(pool.block_size);
  }

  // Which token of the pool, over all layers, a key is: its vector begins at vector(token). Below 2^32 - 1, or the pool
  // would be larger than any device.
  __device__ uint32_t token(Kind kind, int position) const {
    const auto p = static_cast<unsigned>(position), size = static_cast<unsigned>(pool.block_size), index = p / size;
    const int64_t place = kind == kKeys ? index : index + pool.max_blocks;
    const auto unit_tokens = static_cast<unsigned>(pool.layers_per_unit) * size;
    return static_cast<uint32_t>(table[place]) * unit_tokens + layer_tokens + (p - index * size);
  }
  __device__ unsigned dim() const {
    return static_cast<unsigned>(pool.num_kv_heads) * static_cast<unsigned>(pool.head_dim);
  }
  __device__ const T* vector(uint32_t token) const { return data + uint64_t{token} * dim(); }
  // Whether kCopiedKeys keys from a multiple of that on always lie in one block, one behind the other.
  __device__ bool is_whole() const { return kIsWhole || pool.block_size % kCopiedKeys == 0; }
};

constexpr uint32_t kNoKey = 0xffffffffu;

// Where the keys [first, first + kCopiedKeys) lie, for copy_keys(): of this lane's, or of the first where blocks hold
// all of them. kNoKey from `end` on. To be asked for well before it is needed: it is a read. first: a multiple of
// kCopiedKeys.
template <class T, bool kIsWhole>
__device__ uint32_t find_key(const KeyPlaces<T, kIsWhole>& places, Kind kind, int first, int end) {
  const int key = places.is_whole() ? first : first + static_cast<int>(threadIdx.x) % kCopiedKeys;
  return key < end ? places.token(kind, key) : kNoKey;
}

// A warp starts copying kCopiedKeys keys or values to rows of kTileRow; zeros from `end` on. place: find_key().
template <int kHeadDim, class T, bool kIsWhole>
__device__ void copy_keys(const KeyPlaces<T, kIsWhole>& places, uint32_t place, int first, int end, T* to) {
  constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, per key
  constexpr int kRows = 32 / kChunks;    // keys that are copied at once
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / kChunks, at = lane % kChunks * 8;
  const bool is_element = at < places.pool.head_dim;
  to += row * kTileRow<kHeadDim> + at;
  if (places.is_whole()) {
    const int num_keys = place == kNoKey || !is_element ? 0 : end - first;
    const T* from = num_keys > 0 ? places.vector(place + row) + at : places.data;
    const unsigned step = num_keys > 0 ? kRows * places.dim() : 0;
#pragma unroll
    for (int i = 0; i < kCopiedKeys / kRows; ++i) {
      copy_async(to + i * kRows * kTileRow<kHeadDim>, from, row + i * kRows < num_keys);
      from += step;
    }
    return;
  }
#pragma unroll 4  // wholly unrolled, this and the products below would need more registers than there are
  for (int i = 0; i < kCopiedKeys / kRows; ++i) {
    const uint32_t token = __shfl_sync(0xffffffffu, place, row + i * kRows);
    const bool is_valid = token != kNoKey && is_element;
    copy_async(to + i * kRows * kTileRow<kHeadDim>, is_valid ? places.vector(token) + at : places.data, is_valid);
  }
}

// All threads of a group start copying `rows` query rows; zeros where there are none.
template <class T, int kHeadDim, class Group>
__device__ void copy_queries(const PagedAttentionArgs& args, const TileWork& work, int rows, T* to,
                             const Group& threads) {
  constexpr int kChunks = kHeadDim / 8;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  for (int i = threads.thread(); i < rows * kChunks; i += threads.num_threads()) {
    const int row = i / kChunks, at = i % kChunks * 8;
    const bool is_valid = row < work.num_rows && at < head_dim;
    const T* from = static_cast<const T*>(args.q);
    if (is_valid) from += work.place(row, args.q_stride, head_dim) + at;
    copy_async(to + row * kTileRow<kHeadDim> + at, from, is_valid);
  }
}

// How the elements of a fragment's accumulators lie: pair i of row tile m belongs to this row of the warp ...
__device__ inline int row_of_pair(int m, int i) { return m * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i * 8; }
// ... and begins with this column of a tile of 8.
__device__ inline int column_of_pair() { return static_cast<int>(threadIdx.x) % 4 * 2; }

// The keys that this thread's rows see: [begin, end).
template <int kRowTiles>
struct RowBounds {
  int begin[kRowTiles][2];
  int end[kRowTiles][2];

  // first_row: of the warp among the block's.
  __device__ RowBounds(const PagedAttentionArgs& args, const TileWork& work, int first_row) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int position = work.position(min(first_row + row_of_pair(m, i), work.num_rows - 1));
        begin[m][i] = first_key(args, position);
        end[m][i] = position + 1;
      }
    }
  }
};

// The state of one thread of a warp that has 16 x kRowTiles_ rows and walks over tiles of kKeys_ keys: of each 16 rows,
// those numbered g (index 0) and g + 8 (index 1); g = lane / 4.
template <class T, int kHeadDim, int kKeys_, int kRowTiles_>
struct WarpRows {
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kKeyTiles = kKeys_ / 8;
  static constexpr int kOutTiles = kHeadDim / 8;
  float scores[kRowTiles][kKeyTiles][4];
  float out[kRowTiles][kOutTiles][4];
  float top[kRowTiles][2];    // of the scores as they are, without args.scale
  float total[kRowTiles][2];  // of this thread's columns only, until sum_totals()

  __device__ WarpRows() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      for (auto& tile : out[m]) {
        for (float& element : tile) element = 0;
      }
      for (int i = 0; i < 2; ++i) {
        top[m][i] = kNoScore;
        total[m][i] = 0;
      }
    }
  }

  // scores = Q K^T. queries: of this warp's first row.
  __device__ void multiply_keys(const T* queries, const T* keys) {
    constexpr int kRow = kTileRow<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      for (auto& tile : scores[m]) {
        for (float& score : tile) score = 0;
      }
    }
#pragma unroll 4
    for (int k = 0; k < kHeadDim; k += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_matrices(a[m], queries + (m * 16 + lane % 16) * kRow + k + lane / 16 * 8);
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];  // keys n * 8.. at k and k + 8, then keys (n + 1) * 8..
        load_matrices(b, keys + (n * 8 + lane / 16 * 8 + lane % 8) * kRow + k + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(scores[m][n], a[m], b[0], b[1], T{});
          mma(scores[m][n + 1], a[m], b[2], b[3], T{});
        }
      }
    }
  }

  // out += scores V.
  __device__ void multiply_values(const T* values) {
    constexpr int kRow = kTileRow<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < kKeyTiles; k += 2) {  // 16 keys
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const auto& left = scores[m][k];
        const auto& right = scores[m][k + 1];
        a[m][0] = pack(left[0], left[1], T{});
        a[m][1] = pack(left[2], left[3], T{});
        a[m][2] = pack(right[0], right[1], T{});
        a[m][3] = pack(right[2], right[3], T{});
      }
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        uint32_t b[4];  // keys k * 8.. and k * 8 + 8.. at columns n * 8.., then at columns (n + 1) * 8..
        load_matrices_transposed(b, values + (k * 8 + lane % 16) * kRow + n * 8 + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(out[m][n], a[m], b[0], b[1], T{});
          mma(out[m][n + 1], a[m], b[2], b[3], T{});
        }
      }
    }
  }

  // Hides what a row may not see of the keys [first, first + kKeys_), and those from `end` on.
  __device__ void mask(const RowBounds<kRowTiles>& bounds, int first, int end) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row_end = min(bounds.end[m][i], end);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int key = first + n * 8 + column_of_pair() + j;
            float& score = scores[m][n][2 * i + j];
            score = key >= bounds.begin[m][i] && key < row_end ? score : -INFINITY;
          }
        }
      }
    }
  }

  // scores -> exp2(scale (scores - top)); out and total brought up to date with the new top. scale: args.scale in units
  // of log2(e), so that exp2 serves; positive.
  __device__ void softmax(float scale) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float highest = top[m][i];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          highest = fmaxf(highest, fmaxf(scores[m][n][2 * i], scores[m][n][2 * i + 1]));
        }
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
        const float decay = exp2_approximate((top[m][i] - highest) * scale), shift = highest * scale;
        top[m][i] = highest;
        float sum = total[m][i] * decay;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& score = scores[m][n][2 * i + j];
            score = exp2_approximate(score * scale - shift);
            sum += score;
          }
        }
        total[m][i] = sum;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          out[m][n][2 * i] *= decay;
          out[m][n][2 * i + 1] *= decay;
        }
      }
    }
  }

  // Afterwards every thread has its rows' whole totals.
  __device__ void sum_totals() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        total[m][i] += __shfl_xor_sync(0xffffffffu, total[m][i], 1);
        total[m][i] += __shfl_xor_sync(0xffffffffu, total[m][i], 2);
      }
    }
  }
};

}  // namespace hocket::cuda
