// Attention of one query token: the cache is read once, in the order in which it lies in memory.
//
// Keys come in tiles of kStreamKeys: all scores of the tile, for all KV heads and their query heads; all softmaxes;
// then all weighted sums of the values. Within a tile the vectors are read kGroup at a time, head by head, so that a
// group is read as kGroup neighbouring streams; the group after it is fetched meanwhile, which the hardware does not
// guess.
#pragma once

#include "attention_state.h"
#include "paged.h"
#include "simd.h"
#include "thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kStreamKeys = 64;
constexpr int64_t kGroup = kWidth < 8 ? 8 : kWidth;
constexpr int64_t kAhead = 1;  // groups that a group is fetched before it is used

// A head is read in chunks of two vectors. The two of a bfloat16 chunk hold its even and its odd elements: one load,
// one shift and one mask. Queries and results are kept in the same order.
constexpr int64_t kChunk = 2 * kWidth;

struct Chunk {
  Vec first;
  Vec second;
};

template <class T>
inline Chunk load_chunk(const T* p) {
  return {load(p), load(p + kWidth)};
}
inline Chunk load_chunk(const BFloat16* p) {
  UintVec bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return {bit_cast<Vec>(bits << 16), bit_cast<Vec>(bits & 0xffff0000u)};
}

template <class T>
constexpr bool kIsSplit = false;
template <>
constexpr bool kIsSplit<BFloat16> = true;

// From the order of a head's elements to that of load_chunk(), scaled; and back.
template <class T>
inline void to_chunk_order(const float* from, float scale, int64_t whole, float* to) {
  for (int64_t c = 0; c < whole; c += kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) to[c + i] = from[c + (kIsSplit<T> ? i % kWidth * 2 + i / kWidth : i)] * scale;
  }
}
template <class T>
inline void from_chunk_order(const float* from, int64_t whole, float* to) {
  for (int64_t c = 0; c < whole; c += kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) to[c + i] = from[c + (kIsSplit<T> ? i / 2 + i % 2 * kWidth : i)];
  }
}

// scores[r][j] = q[r] . k[j] over whole chunks, for kRows rows and as many keys as make a vector of scores.
template <int kRows, class T>
inline void dot_keys(const float* q, int64_t q_row, const T* const* keys, int64_t offset, int64_t whole,
                     float* scores) {
  constexpr int kKeys = kWidth / kRows;
  Vec sums[kRows * kKeys] = {};
  for (int64_t i = 0; i < whole; i += kChunk) {
    Chunk q_chunk[kRows];
    for (int r = 0; r < kRows; ++r) q_chunk[r] = {load(q + r * q_row + i), load(q + r * q_row + i + kWidth)};
    for (int j = 0; j < kKeys; ++j) {
      const Chunk key = load_chunk(keys[j] + offset + i);
      for (int r = 0; r < kRows; ++r) sums[r * kKeys + j] += q_chunk[r].first * key.first;
      for (int r = 0; r < kRows; ++r) sums[r * kKeys + j] += q_chunk[r].second * key.second;
    }
  }
  float dots[kRows][kKeys];
  store(dots[0], sum_each(sums));
  for (int r = 0; r < kRows; ++r) __builtin_memcpy(scores + r * kStreamKeys, dots[r], sizeof(dots[r]));
}

// out[r][i ...] += sum_j weights[r][j] values[j][i ...] over kGroup keys, kChunks chunks wide.
template <int kRows, int kChunks, class T>
inline void add_values(const float* weights, const T* const* values, int64_t offset, float* out, int64_t out_row) {
  Vec sums[kRows][2 * kChunks];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kChunks; ++c) sums[r][c] = load(out + r * out_row + c * kWidth);
  }
  for (int64_t j = 0; j < kGroup; ++j) {
    const T* value = values[j] + offset;
    for (int c = 0; c < kChunks; ++c) {
      const Chunk chunk = load_chunk(value + c * kChunk);
      for (int r = 0; r < kRows; ++r) {
        const float weight = weights[r * kStreamKeys + j];
        sums[r][2 * c] += weight * chunk.first;
        sums[r][2 * c + 1] += weight * chunk.second;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kChunks; ++c) store(out + r * out_row + c * kWidth, sums[r][c]);
  }
}

template <class T>
class StreamAttention {
 public:
  StreamAttention(const PagedAttentionArgs& args)
      : args_(args),
        layer_(args.pool, args.layer),
        head_dim_(args.pool.head_dim),
        row_size_(round_up(head_dim_, kWidth)),
        whole_(head_dim_ / kChunk * kChunk),
        group_(args.num_heads / args.pool.num_kv_heads) {}

  // One query token, the KV heads [head_begin, head_end), the keys [key_begin, key_end).
  void run(int64_t row, int64_t head_begin, int64_t head_end, int64_t key_begin, int64_t key_end,
           const AttentionSink& sink) const {
    const int64_t num_heads = head_end - head_begin;
    const Rows rows = workspace(num_heads * group_);
    load_queries(sink.first_query, head_begin * group_, num_heads * group_, rows.q);
    reset(rows.state, num_heads * group_);

    Vectors tiles[2];
    find(row, key_begin, key_end, tiles[0]);
    for (int64_t key = key_begin, i = 0; key < key_end; key += kStreamKeys, i ^= 1) {
      if (key + kStreamKeys < key_end) find(row, key + kStreamKeys, key_end, tiles[i ^ 1]);
      add_tile(tiles[i], tiles[i ^ 1].keys, num_heads, head_begin * head_dim_, rows);
    }
    write(rows.state, num_heads * group_, head_begin * group_, rows.q, sink);
  }

 private:
  // One per query head of the item.
  struct Rows {
    float* q;       // [rows][row_size]
    float* scores;  // [rows][kStreamKeys]
    AttentionState state;
  };

  // Where the vectors of a tile of keys are. The last one is repeated to make the last group whole.
  struct Vectors {
    int64_t num_keys;
    const T* keys[kStreamKeys];
    const T* values[kStreamKeys];
  };

  void find(int64_t row, int64_t key, int64_t key_end, Vectors& tile) const {
    tile.num_keys = min(kStreamKeys, key_end - key);
    layer_.vectors(row, kKeys, key, tile.num_keys, tile.keys);
    layer_.vectors(row, kValues, key, tile.num_keys, tile.values);
    for (int64_t j = tile.num_keys; j < round_up(tile.num_keys, kGroup); ++j) {
      tile.keys[j] = tile.keys[j - 1];
      tile.values[j] = tile.values[j - 1];
    }
  }

  Rows workspace(int64_t rows) const {
    const int64_t floats = rows * (2 * row_size_ + kStreamKeys + 2);
    float* q = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(floats) * sizeof(float)));
    float* scores = q + rows * row_size_;
    float* out = scores + rows * kStreamKeys;
    float* top = out + rows * row_size_;
    return {q, scores, {top, top + rows, out, row_size_}};
  }

  // Scaled, and padded with zeros to whole vectors.
  void load_queries(int64_t query, int64_t first_head, int64_t rows, float* q) const {
    const float* from = static_cast<const float*>(args_.q) + query * args_.q_stride + first_head * head_dim_;
    for (int64_t r = 0; r < rows; ++r, from += head_dim_, q += row_size_) {
      to_chunk_order<T>(from, args_.scale, whole_, q);
      for (int64_t i = whole_; i < head_dim_; ++i) q[i] = from[i] * args_.scale;
      for (int64_t i = head_dim_; i < row_size_; ++i) q[i] = 0;
    }
  }

  void write(const AttentionState& state, int64_t rows, int64_t first_head, float* in_order,
             const AttentionSink& sink) const {
    for (int64_t r = 0; r < rows; ++r) {
      float* out = state.out + r * row_size_;
      from_chunk_order<T>(out, whole_, in_order);
      __builtin_memcpy(out, in_order, static_cast<size_t>(whole_) * sizeof(float));
      sink.write(state, r, 0, first_head + r);
    }
  }

  // All query heads of the item; `offset` is that of their first KV head in a vector. next_keys: of the tile after it.
  void add_tile(const Vectors& tile, const T* const* next_keys, int64_t num_heads, int64_t offset,
                const Rows& rows) const {
    for (int64_t j = 0; j < tile.num_keys; j += kGroup) {
      const T* const* next = ahead(tile.keys, j, tile.num_keys, tile.values);
      for (int64_t h = 0; h < num_heads; ++h) {
        add_scores(tile.keys + j, offset + h * head_dim_, h, rows, j);
        prefetch(next, offset + h * head_dim_);
      }
    }
    for (int64_t r = 0; r < num_heads * group_; ++r) softmax(tile.num_keys, rows, r);
    for (int64_t j = 0; j < tile.num_keys; j += kGroup) {
      const T* const* next = ahead(tile.values, j, tile.num_keys, next_keys);
      for (int64_t h = 0; h < num_heads; ++h) {
        add_outputs(tile.values + j, offset + h * head_dim_, h, rows, j);
        prefetch(next, offset + h * head_dim_);
      }
    }
  }

  // The group kAhead after that at j, which may be one of what comes `then`. The last group is repeated.
  static const T* const* ahead(const T* const* vectors, int64_t j, int64_t num_keys, const T* const* then) {
    const int64_t last = round_up(num_keys, kGroup), place = j + kAhead * kGroup;
    return place < last ? vectors + place : then + min(place - last, last - kGroup);
  }

  // The scores of the query heads of KV head h with the group of keys from j on.
  void add_scores(const T* const* keys, int64_t offset, int64_t h, const Rows& rows, int64_t j) const {
    for_rows(h, [&]<int kRows>(int64_t r) {
      constexpr int kKeys = kWidth / kRows;
      const float* q = rows.q + r * row_size_;
      float* scores = rows.scores + r * kStreamKeys + j;
      for (int64_t i = 0; i < kGroup; i += kKeys) {
        dot_keys<kRows>(q, row_size_, keys + i, offset, whole_, scores + i);
      }
      if (whole_ < head_dim_) dot_tail(q, kRows, keys, offset, scores);
    });
  }

  // fn<n>(r) for the query heads of KV head h, n = 2 or 1 at a time, r the first of them.
  template <class Fn>
  void for_rows(int64_t h, const Fn& fn) const {
    int64_t r = h * group_;
    for (; r + 2 <= (h + 1) * group_; r += 2) fn.template operator()<2>(r);
    if (r < (h + 1) * group_) fn.template operator()<1>(r);
  }

  // One head of a group.
  void prefetch(const T* const* vectors, int64_t offset) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = offset; i < offset + head_dim_; i += kLine) {
      for (int64_t j = 0; j < kGroup; ++j) __builtin_prefetch(vectors[j] + i);
    }
  }

  void dot_tail(const float* q, int64_t rows, const T* const* keys, int64_t offset, float* scores) const {
    for (int64_t i = whole_; i < head_dim_; i += kWidth) {
      for (int64_t j = 0; j < kGroup; ++j) {
        const Vec key = load_up_to(keys[j] + offset + i, head_dim_ - i);
        for (int64_t r = 0; r < rows; ++r) scores[r * kStreamKeys + j] += sum(load(q + r * row_size_ + i) * key);
      }
    }
  }

  // scores -> exp(scores - top) in row r, and its state brought up to date. Scores beyond num_keys become zero.
  void softmax(int64_t num_keys, const Rows& rows, int64_t r) const {
    const AttentionState& state = rows.state;
    float* scores = rows.scores + r * kStreamKeys;
    const int64_t end = round_up(num_keys, max<int64_t>(kGroup, kWidth));
    for (int64_t j = num_keys; j < end; ++j) scores[j] = -kInfinity;
    Vec top_vec = splat(state.top[r]);
    for (int64_t j = 0; j < end; j += kWidth) top_vec = max(top_vec, load(scores + j));
    const float top = max_lane(top_vec);
    if (top != state.top[r]) {
      const float decay = exp(splat(state.top[r] - top))[0];
      state.top[r] = top;
      state.total[r] *= decay;
      float* out = state.out + r * row_size_;
      for (int64_t i = 0; i < row_size_; i += kWidth) store(out + i, load(out + i) * decay);
    }
    Vec total{};
    for (int64_t j = 0; j < end; j += kWidth) {
      const Vec weight = exp(load(scores + j) - top);
      store(scores + j, weight);
      total += weight;
    }
    state.total[r] += sum(total);
  }

  // The group of values from j on, added to the outputs of the query heads of KV head h.
  void add_outputs(const T* const* values, int64_t offset, int64_t h, const Rows& rows, int64_t j) const {
    for_rows(h, [&]<int kRows>(int64_t r) {
      const float* weights = rows.scores + r * kStreamKeys + j;
      float* out = rows.state.out + r * row_size_;
      int64_t i = 0;
      const auto step = [&]<int kChunks>() {
        add_values<kRows, kChunks>(weights, values, offset + i, out + i, row_size_);
        i += kChunks * kChunk;
      };
      constexpr int kMany = 4 / kRows;
      while (i + kMany * kChunk <= whole_) step.template operator()<kMany>();
      if (kMany > 2 && i + 2 * kChunk <= whole_) step.template operator()<2>();
      if (i + kChunk <= whole_) step.template operator()<1>();
      if (i < head_dim_) add_tail(weights, kRows, values, offset, out);
    });
  }

  void add_tail(const float* weights, int64_t rows, const T* const* values, int64_t offset, float* out) const {
    for (int64_t i = whole_; i < head_dim_; i += kWidth) {
      for (int64_t r = 0; r < rows; ++r) {
        Vec sum = load(out + r * row_size_ + i);
        for (int64_t j = 0; j < kGroup; ++j) {
          sum += weights[r * kStreamKeys + j] * load_up_to(values[j] + offset + i, head_dim_ - i);
        }
        store(out + r * row_size_ + i, sum);
      }
    }
  }

  const PagedAttentionArgs& args_;
  PagedLayer<T> layer_;
  int64_t head_dim_;
  int64_t row_size_;
  int64_t whole_;  // elements of a head in whole chunks; the rest is the tail
  int64_t group_;
};

}  // namespace hocket::cpu::HOCKET_ISA
