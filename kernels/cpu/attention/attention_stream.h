// Attention of one query token: the cache is read once, in the order in which it lies in memory.
//
// Keys come in blocks: all scores of the block, for all KV heads and their query heads; all softmaxes; then all
// weighted sums of the values. Within a block the vectors are read kGroup at a time, head by head, so that a group is
// read as kGroup neighbouring streams; the group after it is fetched meanwhile, which the hardware does not guess
// (stream_products.h).
#pragma once

#include <type_traits>

#include "attention/attention_state.h"
#include "attention/stream_products_bf16.h"
#include "cache/paged.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

template <class T>
class StreamAttention {
 public:
  StreamAttention(const PagedAttentionArgs& args, const PagedLayer<T>& layer)
      : args_(args),
        layer_(layer),
        head_dim_(args.pool.head_dim),
        row_size_(Products::row_size(head_dim_)),
        group_(args.num_heads / args.pool.num_kv_heads) {}

  int64_t row_size() const { return row_size_; }

  // One query token, the KV heads [head_begin, head_end), the keys [key_begin, key_end). Where there are states of the
  // keys before these, from key 0 on, it goes on from there.
  void run(int64_t row, int64_t head_begin, int64_t head_end, int64_t key_begin, int64_t key_end,
           const WaitingStates& states, const AttentionSink& sink) const {
    const int64_t num_heads = head_end - head_begin, num_rows = num_heads * group_;
    Rows rows = workspace(num_rows);
    load_queries(sink.first_query, head_begin * group_, num_rows, rows.q);
    if (states.data == nullptr) {
      reset(rows.state.now, num_rows);
    } else {
      rows.state.go_on(states, key_begin, head_begin * group_, num_rows);
    }

    Vectors blocks[2];
    int64_t block = key_begin / kKeyBlock * kKeyBlock;
    find(row, block, key_begin, key_end, blocks[0]);
    for (int64_t i = 0; block < key_end; block += kKeyBlock, i ^= 1) {
      const int64_t next = block + kKeyBlock;
      const bool is_last = next >= key_end;
      if (!is_last) find(row, next, next, key_end, blocks[i ^ 1]);
      const Scales scales{this, row, head_begin, block};
      add_block(blocks[i], blocks[is_last ? i : i ^ 1].keys, num_heads, head_begin * head_dim_, scales, rows);
      if (is_last || next % kPartition == 0) {
        end_partition(block / kPartition, rows, num_rows, head_begin * group_, sink);
        if (!is_last) reset(rows.state.now, num_rows);
      }
    }
    if (sink.partials != nullptr) return;
    for (int64_t r = 0; r < num_rows; ++r) sink.write<Products>(rows.state.before, r, 0, head_begin * group_ + r);
  }

 private:
  using Products = StreamProductsOf<T>;
  using Query = typename Products::Query;
  using Weight = typename Products::Weight;

  // One per query head of the item.
  struct Rows {
    float* scores;    // [rows][kKeyBlock]
    Query* q;         // [rows][row_size]
    Weight* weights;  // [rows][kKeyBlock]; the scores' place where they are of the same type
    PartitionedState state;
  };

  // Where the vectors of a block are, of which the keys [first, end) are seen. What is before and behind them in their
  // groups is read, too, and weighs nothing: the first and the last one, repeated.
  struct Vectors {
    int64_t first;
    int64_t end;
    const T* keys[kKeyBlock];
    const T* values[kKeyBlock];
  };

  // Those of the block of keys at `block`; where elements have none, nothing is done with them.
  struct Scales {
    const StreamAttention* attention;
    int64_t row;
    int64_t first_head;
    int64_t block;

    // data[r][j] *= the scale of key or value j, for the query heads of KV head h and the keys [first, end).
    void apply(Kind kind, int64_t h, int64_t first, int64_t end, float* data) const {
      if constexpr (std::is_same_v<T, int8_t>) {
        float scales[kKeyBlock] = {};  // what is not seen weighs nothing
        attention->layer_.head_scales(row, kind, first_head + h, block + first, end - first, scales + first);
        for (int64_t r = h * attention->group_; r < (h + 1) * attention->group_; ++r) {
          float* of_row = data + r * kKeyBlock;
          for (int64_t j = first / kWidth * kWidth; j < end; j += kWidth) {
            store(of_row + j, load(of_row + j) * load(scales + j));
          }
        }
      }
    }
  };

  struct Place {
    Kind kind;
    const T** vectors;
  };

  // The keys [key_begin, key_end) of the block.
  void find(int64_t row, int64_t block, int64_t key_begin, int64_t key_end, Vectors& keys) const {
    keys.first = key_begin - block;
    keys.end = min(kKeyBlock, key_end - block);
    const Place places[] = {{kKeys, keys.keys}, {kValues, keys.values}};
    for (auto [kind, vectors] : places) {
      layer_.vectors(row, kind, key_begin, keys.end - keys.first, vectors + keys.first);
      for (int64_t j = 0; j < keys.first; ++j) vectors[j] = vectors[keys.first];
      for (int64_t j = keys.end; j < round_up(keys.end, kGroup); ++j) vectors[j] = vectors[j - 1];
    }
  }

  Rows workspace(int64_t rows) const {
    constexpr bool kInPlace = std::is_same_v<Weight, float>;
    const int64_t floats = rows * (3 * row_size_ + (kInPlace ? 1 : 2) * kKeyBlock + 4);
    float* p = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(floats) * sizeof(float)));
    const auto take = [&p, rows](int64_t n) {
      float* taken = p;
      p += rows * n;
      return taken;
    };
    Rows taken;
    taken.scores = take(kKeyBlock);
    taken.weights = reinterpret_cast<Weight*>(kInPlace ? taken.scores : take(kKeyBlock));
    taken.q = reinterpret_cast<Query*>(take(row_size_));
    AttentionState* states[] = {&taken.state.now, &taken.state.before};
    for (AttentionState* state : states) {
      state->out = take(row_size_);
      state->top = take(1);
      state->total = take(1);
      state->row_size = row_size_;
    }
    return taken;
  }

  void load_queries(int64_t query, int64_t first_head, int64_t rows, Query* q) const {
    const float* from = static_cast<const float*>(args_.q) + query * args_.q_stride + first_head * head_dim_;
    for (int64_t r = 0; r < rows; ++r, from += head_dim_, q += row_size_) {
      Products::load_query(from, args_.scale, head_dim_, q);
    }
  }

  void end_partition(int64_t partition, Rows& rows, int64_t num_rows, int64_t first_head,
                     const AttentionSink& sink) const {
    if (sink.partials == nullptr) return rows.state.end(num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      sink.write_partial<Products>(partition, rows.state.now, r, 0, first_head + r);
    }
  }

  // All query heads of the item; `offset` is that of their first KV head in a vector. next_keys: of the block after it.
  void add_block(const Vectors& block, const T* const* next_keys, int64_t num_heads, int64_t offset,
                 const Scales& scales, const Rows& rows) const {
    const int64_t begin = block.first / kGroup * kGroup;
    for (int64_t j = begin; j < block.end; j += kGroup) {
      const T* const* next = ahead(block.keys, j, block.end, block.values + begin);
      for (int64_t h = 0; h < num_heads; ++h) add_scores({block.keys + j, next, offset + h * head_dim_}, h, rows, j);
    }
    for (int64_t h = 0; h < num_heads; ++h) scales.apply(kKeys, h, block.first, block.end, rows.scores);
    const int64_t num_rows = num_heads * group_;
    for (int64_t r = 0; r < num_rows; r += kWidth)
      softmax(block.first, block.end, rows, r, min<int64_t>(kWidth, num_rows - r));
    for (int64_t h = 0; h < num_heads; ++h) scales.apply(kValues, h, block.first, block.end, rows.scores);
    for (int64_t j = begin; j < block.end; j += kGroup) {
      const T* const* next = ahead(block.values, j, block.end, next_keys);
      for (int64_t h = 0; h < num_heads; ++h) add_outputs({block.values + j, next, offset + h * head_dim_}, h, rows, j);
    }
  }

  // The group after that at j, which may be the first of what comes `then`.
  static const T* const* ahead(const T* const* vectors, int64_t j, int64_t end, const T* const* then) {
    return j + kGroup < end ? vectors + j + kGroup : then;
  }

  // The scores of the query heads of KV head h with the group of keys from j on.
  void add_scores(const StreamGroup<T>& keys, int64_t h, const Rows& rows, int64_t j) const {
    for_rows<Products::kMaxKeyRows>(h, [&]<int kRows, bool kFetch>(int64_t r) {
      const Query* q = rows.q + r * row_size_;
      Products::template scores<kRows, kFetch>(q, keys, head_dim_, rows.scores + r * kKeyBlock + j);
    });
  }

  // The group of values from j on, added to the outputs of the query heads of KV head h.
  void add_outputs(const StreamGroup<T>& values, int64_t h, const Rows& rows, int64_t j) const {
    for_rows<Products::kMaxValueRows>(h, [&]<int kRows, bool kFetch>(int64_t r) {
      const Weight* weights = rows.weights + r * kKeyBlock + j;
      Products::template add_values<kRows, kFetch>(weights, values, head_dim_, rows.state.now.out + r * row_size_);
    });
  }

  // fn<n, is_first>(r) for the query heads of KV head h, kMax or fewer at a time, r the first of them.
  template <int kMax, class Fn>
  void for_rows(int64_t h, const Fn& fn) const {
    const int64_t begin = h * group_, end = begin + group_;
    int64_t r = begin;
    const auto take = [&]<int kRows>() {
      r == begin ? fn.template operator()<kRows, true>(r) : fn.template operator()<kRows, false>(r);
      r += kRows;
    };
    if constexpr (kMax >= 8) {
      while (r + 8 <= end) take.template operator()<8>();
      if (r + 7 == end) return take.template operator()<7>();
      if (r + 6 == end) return take.template operator()<6>();
      if (r + 5 == end) return take.template operator()<5>();
    }
    if constexpr (kMax >= 4) {
      while (r + 4 <= end) take.template operator()<4>();
    }
    while (r + 2 <= end) take.template operator()<2>();
    if (r < end) take.template operator()<1>();
  }

  // weights = exp(scores - top) of the n <= kWidth rows from `row` on, and their states brought up to date. Those of
  // keys that are not seen are zero.
  void softmax(int64_t first, int64_t end, const Rows& rows, int64_t row, int64_t n) const {
    const AttentionState& state = rows.state.now;
    const int64_t begin = first / kGroup * kGroup, behind = round_up(end, kGroup);
    Vec of_rows[kWidth];
    for (int64_t r = 0; r < kWidth; ++r) {
      float* scores = rows.scores + (row + min(r, n - 1)) * kKeyBlock;
      for (int64_t j = begin; j < first; ++j) scores[j] = -kInfinity;
      for (int64_t j = end; j < behind; ++j) scores[j] = -kInfinity;
      of_rows[r] = load(scores + begin);
      for (int64_t j = begin + kWidth; j < behind; j += kWidth) of_rows[r] = max(of_rows[r], load(scores + j));
    }
    const Vec old_top = load_up_to(state.top + row, n), top = max(old_top, max_each(of_rows));
    const Vec decay = exp(old_top - top);
    float tops[kWidth], decays[kWidth];
    store(tops, top);
    store(decays, decay);
    for (int64_t r = n; r < kWidth; ++r) of_rows[r] = Vec{};
    for (int64_t r = 0; r < n; ++r) {
      const float* scores = rows.scores + (row + r) * kKeyBlock;
      Weight* weights = rows.weights + (row + r) * kKeyBlock;
      Vec total{};
      for (int64_t j = begin; j < behind; j += kWidth) {
        const Vec weight = Products::round_weight(exp(load(scores + j) - tops[r]));
        Products::store_weight(weights + j, weight);
        total += weight;
      }
      of_rows[r] = total;
      float* out = state.out + (row + r) * row_size_;
      for (int64_t i = 0; i < row_size_; i += kWidth) store(out + i, load(out + i) * decays[r]);
    }
    store_first(state.total + row, load_up_to(state.total + row, n) * decay + sum_each(of_rows), n);
    store_first(state.top + row, top, n);
  }

  const PagedAttentionArgs& args_;
  PagedLayer<T> layer_;
  int64_t head_dim_;
  int64_t row_size_;
  int64_t group_;
};

}  // namespace hocket::cpu::HOCKET_ISA
