// Attention of one query token: the cache is read once, in the order in which it lies in memory.
//
// Keys come in tiles of kStreamKeys: all scores of the tile, for all KV heads and their query heads; all softmaxes;
// then all weighted sums of the values. Within a tile the vectors are read kGroup at a time, head by head, so that a
// group is read as kGroup neighbouring streams; the group after it is fetched meanwhile, which the hardware does not
// guess (stream_products.h).
#pragma once

#include <type_traits>

#include "attention_state.h"
#include "paged.h"
#include "simd.h"
#include "stream_products.h"
#include "stream_products_bf16.h"
#include "thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

#ifdef __AVX512BF16__
template <class T>
using StreamProductsOf = std::conditional_t<std::is_same_v<T, BFloat16>, StreamPairs, StreamProducts<T>>;
#else
template <class T>
using StreamProductsOf = StreamProducts<T>;
#endif

template <class T>
class StreamAttention {
 public:
  StreamAttention(const PagedAttentionArgs& args)
      : args_(args),
        layer_(args.pool, args.layer),
        head_dim_(args.pool.head_dim),
        row_size_(Products::row_size(head_dim_)),
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
      const bool is_last = key + kStreamKeys >= key_end;
      if (!is_last) find(row, key + kStreamKeys, key_end, tiles[i ^ 1]);
      add_tile(tiles[i], tiles[is_last ? i : i ^ 1].keys, num_heads, head_begin * head_dim_, rows);
    }
    write(rows, num_heads * group_, head_begin * group_, sink);
  }

 private:
  using Products = StreamProductsOf<T>;
  using Query = typename Products::Query;
  using Weight = typename Products::Weight;

  // One per query head of the item.
  struct Rows {
    float* scores;    // [rows][kStreamKeys]
    Query* q;         // [rows][row_size]
    Weight* weights;  // [rows][kStreamKeys]; the scores' place where they are of the same type
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
    constexpr bool kInPlace = std::is_same_v<Weight, float>;
    const int64_t floats = rows * (2 * row_size_ + (kInPlace ? 1 : 2) * kStreamKeys + 2);
    float* scores = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(floats) * sizeof(float)));
    float* weights = kInPlace ? scores : scores + rows * kStreamKeys;
    float* q = weights + rows * kStreamKeys;
    float* out = q + rows * row_size_;
    float* top = out + rows * row_size_;
    return {scores, reinterpret_cast<Query*>(q), reinterpret_cast<Weight*>(weights), {top, top + rows, out, row_size_}};
  }

  void load_queries(int64_t query, int64_t first_head, int64_t rows, Query* q) const {
    const float* from = static_cast<const float*>(args_.q) + query * args_.q_stride + first_head * head_dim_;
    for (int64_t r = 0; r < rows; ++r, from += head_dim_, q += row_size_) {
      Products::load_query(from, args_.scale, head_dim_, q);
    }
  }

  void write(const Rows& rows, int64_t num_rows, int64_t first_head, const AttentionSink& sink) const {
    float* in_order = reinterpret_cast<float*>(rows.q);  // of no more use, and as long
    for (int64_t r = 0; r < num_rows; ++r) {
      float* out = rows.state.out + r * row_size_;
      Products::store_result(out, head_dim_, in_order);
      __builtin_memcpy(out, in_order, static_cast<size_t>(head_dim_) * sizeof(float));
      sink.write(rows.state, r, 0, first_head + r);
    }
  }

  // All query heads of the item; `offset` is that of their first KV head in a vector. next_keys: of the tile after it.
  void add_tile(const Vectors& tile, const T* const* next_keys, int64_t num_heads, int64_t offset,
                const Rows& rows) const {
    for (int64_t j = 0; j < tile.num_keys; j += kGroup) {
      const T* const* next = ahead(tile.keys, j, tile.num_keys, tile.values);
      for (int64_t h = 0; h < num_heads; ++h) add_scores({tile.keys + j, next, offset + h * head_dim_}, h, rows, j);
    }
    for (int64_t r = 0; r < num_heads * group_; ++r) softmax(tile.num_keys, rows, r);
    for (int64_t j = 0; j < tile.num_keys; j += kGroup) {
      const T* const* next = ahead(tile.values, j, tile.num_keys, next_keys);
      for (int64_t h = 0; h < num_heads; ++h) add_outputs({tile.values + j, next, offset + h * head_dim_}, h, rows, j);
    }
  }

  // The group after that at j, which may be the first of what comes `then`.
  static const T* const* ahead(const T* const* vectors, int64_t j, int64_t num_keys, const T* const* then) {
    return j + kGroup < num_keys ? vectors + j + kGroup : then;
  }

  // The scores of the query heads of KV head h with the group of keys from j on.
  void add_scores(const StreamGroup<T>& keys, int64_t h, const Rows& rows, int64_t j) const {
    for_rows(h, [&]<int kRows, bool kFetch>(int64_t r) {
      const Query* q = rows.q + r * row_size_;
      Products::template scores<kRows, kFetch>(q, keys, head_dim_, rows.scores + r * kStreamKeys + j);
    });
  }

  // The group of values from j on, added to the outputs of the query heads of KV head h.
  void add_outputs(const StreamGroup<T>& values, int64_t h, const Rows& rows, int64_t j) const {
    for_rows(h, [&]<int kRows, bool kFetch>(int64_t r) {
      const Weight* weights = rows.weights + r * kStreamKeys + j;
      Products::template add_values<kRows, kFetch>(weights, values, head_dim_, rows.state.out + r * row_size_);
    });
  }

  // fn<n, is_first>(r) for the query heads of KV head h, 4, 2 or 1 at a time, r the first of them.
  template <class Fn>
  void for_rows(int64_t h, const Fn& fn) const {
    const int64_t begin = h * group_, end = begin + group_;
    int64_t r = begin;
    const auto take = [&]<int kRows>() {
      r == begin ? fn.template operator()<kRows, true>(r) : fn.template operator()<kRows, false>(r);
      r += kRows;
    };
    if constexpr (Products::kMaxRows >= 4) {
      while (r + 4 <= end) take.template operator()<4>();
    }
    while (r + 2 <= end) take.template operator()<2>();
    if (r < end) take.template operator()<1>();
  }

  // weights = exp(scores - top) in row r, and its state brought up to date. Those beyond num_keys become zero.
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
      total += Products::store_weight(rows.weights + r * kStreamKeys + j, exp(load(scores + j) - top));
    }
    state.total[r] += sum(total);
  }

  const PagedAttentionArgs& args_;
  PagedLayer<T> layer_;
  int64_t head_dim_;
  int64_t row_size_;
  int64_t group_;
};

}  // namespace hocket::cpu::HOCKET_ISA
