// Attention of many query rows that share a KV head: two small matrix products per block of keys.
//
// A row is one query head at one query token; rows are numbered query * group + head within the KV head. For a block of
// keys, expanded to elements that are multiplied (float32, or pairs of bfloat16):
//   S [keys][rows]      = K [keys][head_dim]  Q^T [head_dim][rows]    rows along the lanes: softmax needs no shuffles
//   out [rows][head_dim] += exp(S)^T [rows][keys]  V [keys][head_dim]
//
// Each sum has the order that attention_state.h says, which is that of attention_stream.h: what is a vector's lanes
// there are sums one after the other here.
#pragma once

#include <type_traits>

#include "attention/attention_state.h"
#include "attention/gemm.h"
#include "attention/stream_products_bf16.h"
#include "cache/paged.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kTileRows = 48;  // multiples of kWidth and of kMicroRows

template <class T>
class TileAttention {
 public:
  TileAttention(const PagedAttentionArgs& args, const PagedLayer<T>& layer)
      : args_(args),
        layer_(layer),
        head_dim_(args.pool.head_dim),
        row_size_(Products::row_size(head_dim_)),
        group_(args.num_heads / args.pool.num_kv_heads) {}

  // The rows [row_begin, row_end) of one KV head, at most kTileRows, over the keys [key_begin, key_end). The query
  // token 0 of the sequence is at position `first_position`.
  void run(int64_t table_row, int64_t head, int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end,
           int64_t first_position, const AttentionSink& sink) const {
    Workspace ws = workspace();
    const int64_t rows = row_end - row_begin;
    const int64_t begin = max(key_begin, first_key(first_position + row_begin / group_));
    const int64_t end = min(key_end, first_position + (row_end - 1) / group_ + 1);
    load_queries(head, row_begin, rows, ws,
                 [&](int64_t query) { return Token{sink.first_query + query, first_position + query}; });
    const bool is_split = sink.partials != nullptr;  // then somebody waits for every partition
    const int64_t first = is_split ? key_begin : begin, last = is_split ? key_end : end;
    for (int64_t partition = first / kPartition; partition * kPartition < last; ++partition) {
      const int64_t partition_end = min(end, (partition + 1) * kPartition);
      reset(ws.state.now, kTileRows);
      for (int64_t block = partition * kPartition; block < partition_end; block += kKeyBlock) {
        const int64_t from = max(block, begin), to = min(partition_end, block + kKeyBlock);
        if (from < to) add_block(table_row, head, block, from, to, min(end, to + kKeyBlock), rows, ws);
      }
      if (!is_split) {
        ws.state.end(rows);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = row_begin + r;
        sink.write_partial<Products>(partition, ws.state.now, r, row / group_, head * group_ + row % group_);
      }
    }
    if (is_split) return;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = row_begin + r;
      sink.write<Products>(ws.state.before, r, row / group_, head * group_ + row % group_);
    }
  }

  // As run(), where query q of the rows is the token tokens[q] of the step, of a sequence of its own. All of them see
  // all of the keys, from a multiple of kPartition to one of kKeyBlock; their states go to states[q].
  void run_shared(int64_t table_row, int64_t head, int64_t row_begin, int64_t row_end, int64_t key_begin,
                  int64_t key_end, const int32_t* tokens, const WaitingStates* states) const {
    Workspace ws = workspace();
    const int64_t rows = row_end - row_begin;
    load_queries(head, row_begin, rows, ws, [&](int64_t query) { return Token{tokens[query], key_end - 1}; });
    for (int64_t begin = key_begin; begin < key_end; begin += kPartition) {
      reset(ws.state.now, kTileRows);
      for (int64_t block = begin; block < min(begin + kPartition, key_end); block += kKeyBlock) {
        const int64_t next = block + kKeyBlock;
        add_block(table_row, head, block, block, next, min(next + kKeyBlock, key_end), rows, ws);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = row_begin + r;
        const AttentionState& state = ws.state.now;
        const AttentionState one{state.top + r, state.total + r, state.out + r * row_size_, row_size_};
        copy(one, 1, states[row / group_].at(begin / kPartition, head * group_ + row % group_));
      }
    }
  }

 private:
  // Of the step, and its position in its sequence.
  struct Token {
    int64_t index;
    int64_t position;
  };

  using Products = StreamProductsOf<T>;
  using Element = typename Products::Element;
  using Query = typename Products::Query;
  static constexpr int kPerElement = Products::kPerElement;
  static constexpr bool kHasScales = std::is_same_v<T, int8_t>;

  struct Workspace {
    Element* queries;     // [row_size / kPerElement][kTileRows], scaled
    Query* some_queries;  // [kWidth][row_size]
    Element* keys;        // [kKeyBlock][row_size / kPerElement]
    Element* values;      // [kKeyBlock / kPerElement][row_size]
    float* scores;        // [kKeyBlock][kTileRows]; then weights as Element, [kKeyBlock / kPerElement][kTileRows]
    float* decay;         // [kTileRows]
    int32_t* positions;   // [kTileRows]
    PartitionedState state;
  };

  Workspace workspace() const {
    const int64_t floats = row_size_ * (3 * kTileRows + 2 * kKeyBlock + kWidth) + kKeyBlock * kTileRows + 6 * kTileRows;
    float* p = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(floats) * sizeof(float)));
    const auto take = [&p](int64_t n) {
      float* taken = p;
      p += n;
      return taken;
    };
    Workspace ws;
    ws.queries = reinterpret_cast<Element*>(take(row_size_ * kTileRows));
    ws.keys = reinterpret_cast<Element*>(take(row_size_ * kKeyBlock));
    ws.values = reinterpret_cast<Element*>(take(row_size_ * kKeyBlock));
    ws.some_queries = reinterpret_cast<Query*>(take(row_size_ * kWidth));
    ws.scores = take(kKeyBlock * kTileRows);
    ws.decay = take(kTileRows);
    ws.positions = reinterpret_cast<int32_t*>(take(kTileRows));
    AttentionState* states[] = {&ws.state.now, &ws.state.before};
    for (AttentionState* state : states)
      *state = {take(kTileRows), take(kTileRows), take(kTileRows * row_size_), row_size_};
    return ws;
  }

  int64_t elements() const { return row_size_ / kPerElement; }

  int64_t first_key(int64_t position) const {
    return args_.sliding_window > 0 ? max<int64_t>(0, position - args_.sliding_window + 1) : 0;
  }

  // Transposed. Rows beyond the last are zero and see what the last one sees. token_of(query): a Token.
  template <class TokenOf>
  void load_queries(int64_t head, int64_t row_begin, int64_t rows, const Workspace& ws, const TokenOf& token_of) const {
    for (int64_t first = 0; first < rows; first += kWidth) {
      for (int64_t r = 0; r < kWidth; ++r) {
        const int64_t row = row_begin + min(first + r, rows - 1), query = row / group_;
        const Token token = token_of(query);
        const float* from = static_cast<const float*>(args_.q) + token.index * args_.q_stride +
                            (head * group_ + row - query * group_) * head_dim_;
        Products::load_query(from, first + r < rows ? args_.scale : 0.0f, head_dim_, ws.some_queries + r * row_size_);
        ws.positions[first + r] = static_cast<int32_t>(token.position);
      }
      for (int64_t i = 0; i < elements(); i += kWidth) {
        Vec lanes[kWidth];
        for (int64_t r = 0; r < kWidth; ++r) {
          __builtin_memcpy(&lanes[r], ws.some_queries + r * row_size_ + i * kPerElement, sizeof(Vec));
        }
        transpose(lanes);
        for (int64_t k = 0; k < kWidth; ++k) {
          __builtin_memcpy(ws.queries + (i + k) * kTileRows + first, &lanes[k], sizeof(Vec));
        }
      }
    }
  }

  // The keys [from, to) of the block that begins at `block`. Those up to next_end are read after it. While keys are
  // expanded the values are fetched, and while these are, the next block's keys.
  void add_block(int64_t table_row, int64_t head, int64_t block, int64_t from, int64_t to, int64_t next_end,
                 int64_t rows, const Workspace& ws) const {
    const int64_t first = from - block, end = to - block, lanes = round_up(rows, kWidth), offset = head * head_dim_;
    const int64_t even_first = first / kPerElement * kPerElement, even_end = round_up(end, kPerElement);
    const T* keys[kKeyBlock];
    const T* values[kKeyBlock + 1];
    const T* next[kKeyBlock];
    layer_.vectors(table_row, kKeys, from, to - from, keys + first);
    layer_.vectors(table_row, kValues, from, to - from, values + first);
    layer_.vectors(table_row, kKeys, to, next_end - to, next);
    values[even_first] = values[first];
    values[even_end - 1] = values[end - 1];
    for (int64_t j = first; j < end; ++j) {
      fetch_lines(values[j] + offset, head_dim_);
      Products::expand_key(keys[j] + offset, head_dim_, ws.keys + j * elements());
    }
    for (int64_t j = even_first; j < even_end; j += kPerElement) {
      for (int64_t i = j; i < min(j + kPerElement, next_end - to); ++i) fetch_lines(next[i] + offset, head_dim_);
      Products::expand_values(values + j, offset, head_dim_, ws.values + j / kPerElement * row_size_);
    }

    gemm<StoreByLanes, Element>({ws.keys + first * elements(), elements(), 1}, ws.queries, kTileRows,
                                ws.scores + first * kTileRows, kTileRows, end - first, lanes, elements());
    if constexpr (kHasScales) scale_scores(table_row, head, block, first, end, lanes, ws);
    if (needs_mask(from, to, rows, ws)) mask(block, first, end, lanes, ws);
    float value_scales[kKeyBlock] = {};
    if constexpr (kHasScales) layer_.head_scales(table_row, kValues, head, from, to - from, value_scales + first);
    for (int64_t r = 0; r < lanes; r += kWidth) softmax(r, first, end, value_scales, ws);
    rescale(rows, ws);
    const Element* weights = reinterpret_cast<const Element*>(ws.scores) + even_first / kPerElement * kTileRows;
    gemm<AddInOrder, Element>({weights, 1, kTileRows}, ws.values + even_first / kPerElement * row_size_, row_size_,
                              ws.state.now.out, row_size_, rows, row_size_, (even_end - even_first) / kPerElement);
  }

  void scale_scores(int64_t table_row, int64_t head, int64_t block, int64_t first, int64_t end, int64_t lanes,
                    const Workspace& ws) const {
    float scales[kKeyBlock];
    layer_.head_scales(table_row, kKeys, head, block + first, end - first, scales + first);
    for (int64_t j = first; j < end; ++j) {
      float* scores = ws.scores + j * kTileRows;
      for (int64_t r = 0; r < lanes; r += kWidth) store(scores + r, load(scores + r) * scales[j]);
    }
  }

  bool needs_mask(int64_t from, int64_t to, int64_t rows, const Workspace& ws) const {
    return to - 1 > ws.positions[0] || from < first_key(ws.positions[rows - 1]);
  }

  void mask(int64_t block, int64_t first, int64_t end, int64_t lanes, const Workspace& ws) const {
    const int32_t window = args_.sliding_window > 0 ? static_cast<int32_t>(args_.sliding_window) : INT32_MAX;
    for (int64_t r = 0; r < lanes; r += kWidth) {
      IntVec position;
      __builtin_memcpy(&position, ws.positions + r, sizeof(position));
      for (int64_t j = first; j < end; ++j) {
        const IntVec distance = position - static_cast<int32_t>(block + j);
        float* scores = ws.scores + j * kTileRows + r;
        store(scores, select((distance >= 0) & (distance < window), load(scores), splat(-kInfinity)));
      }
    }
  }

  // scores -> exp(scores - top) as elements, for the kWidth rows from r on. value_scales: for kHasScales. Keys beside
  // [first, end) in their vectors of the stream weigh zero: the totals of all of its lanes stay in registers.
  static void softmax(int64_t r, int64_t first, int64_t end, const float* value_scales, const Workspace& ws) {
    const AttentionState& state = ws.state.now;
    float* scores = ws.scores + r;
    const Vec old_top = load(state.top + r);
    Vec top = old_top;
    for (int64_t j = first; j < end; ++j) top = max(top, load(scores + j * kTileRows));
    const int64_t begin = first / kWidth * kWidth, behind = round_up(end, kWidth);
    for (int64_t j = begin; j < first; ++j) store(scores + j * kTileRows, splat(-kInfinity));
    for (int64_t j = end; j < behind; ++j) store(scores + j * kTileRows, splat(-kInfinity));
    Vec totals[kWidth] = {};  // those of a vector of the stream: by j modulo kWidth
    for (int64_t j = begin; j < behind; j += kWidth) {
#pragma GCC unroll 16
      for (int l = 0; l < kWidth; l += kPerElement) {
        Vec weights[kPerElement];
        for (int i = 0; i < kPerElement; ++i) {
          weights[i] = Products::round_weight(exp(load(scores + (j + l + i) * kTileRows) - top));
          totals[l + i] += weights[i];
          if constexpr (kHasScales) weights[i] *= value_scales[j + l];
        }
        Products::expand_weights(weights,
                                 reinterpret_cast<Element*>(ws.scores) + (j + l) / kPerElement * kTileRows + r);
      }
    }
    for (int n = kWidth / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) totals[i] += totals[i + n];
    }
    const Vec decay = exp(old_top - top);
    store(ws.decay + r, decay);
    store(state.top + r, top);
    store(state.total + r, load(state.total + r) * decay + totals[0]);
  }

  void rescale(int64_t rows, const Workspace& ws) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float decay = ws.decay[r];
      if (decay == 1.0f) continue;
      float* out = ws.state.now.out + r * row_size_;
      for (int64_t i = 0; i < row_size_; i += kWidth) store(out + i, load(out + i) * decay);
    }
  }

  const PagedAttentionArgs& args_;
  PagedLayer<T> layer_;
  int64_t head_dim_;
  int64_t row_size_;
  int64_t group_;
};

}  // namespace hocket::cpu::HOCKET_ISA
