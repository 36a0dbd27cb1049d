// Attention of many query rows that share a KV head: two small matrix products per tile of keys.
//
// A row is one query head at one query token; rows are numbered query * group + head within the KV head. For a tile of
// kTileKeys keys, expanded to float32:
//   S [keys][rows]      = K [keys][head_dim]  Q^T [head_dim][rows]    rows along the lanes: softmax needs no shuffles
//   out [rows][head_dim] += exp(S)^T [rows][keys]  V [keys][head_dim]
#pragma once

#include "attention_state.h"
#include "gemm.h"
#include "paged.h"
#include "simd.h"
#include "thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kTileRows = 48;  // multiples of kWidth and of kMicroRows
constexpr int64_t kTileKeys = 48;

template <class T>
class TileAttention {
 public:
  TileAttention(const PagedAttentionArgs& args)
      : args_(args),
        layer_(args.pool, args.layer),
        head_dim_(args.pool.head_dim),
        row_size_(round_up(head_dim_, kWidth)),
        group_(args.num_heads / args.pool.num_kv_heads) {}

  // The rows [row_begin, row_end) of one KV head, at most kTileRows, over the keys [key_begin, key_end). The query
  // token 0 of the sequence is at position `first_position`.
  void run(int64_t table_row, int64_t head, int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end,
           int64_t first_position, const AttentionSink& sink) const {
    const Workspace ws = workspace();
    const int64_t rows = row_end - row_begin;
    load_queries(sink.first_query, head, row_begin, rows, first_position, ws);
    reset(ws.state, kTileRows);
    const int64_t first_visible = first_key(first_position + row_begin / group_);
    const int64_t end = min(key_end, first_position + (row_end - 1) / group_ + 1);
    for (int64_t key = max(key_begin, first_visible); key < end; key += kTileKeys) {
      const int64_t num_keys = min(kTileKeys, end - key);
      expand(table_row, kKeys, key, num_keys, head * head_dim_, ws.keys);
      expand(table_row, kValues, key, num_keys, head * head_dim_, ws.values);
      add_tile(key, num_keys, rows, ws);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = row_begin + r;
      sink.write(ws.state, r, row / group_, head * group_ + row % group_);
    }
  }

 private:
  struct Workspace {
    float* queries;      // [row_size][kTileRows], scaled
    float* keys;         // [kTileKeys][row_size]
    float* values;       // [kTileKeys][row_size]
    float* scores;       // [kTileKeys][kTileRows]
    float* decay;        // [kTileRows]
    int32_t* positions;  // [kTileRows]
    AttentionState state;
  };

  Workspace workspace() const {
    const int64_t floats = row_size_ * (2 * kTileRows + 2 * kTileKeys) + kTileKeys * kTileRows + 4 * kTileRows;
    float* p = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(floats) * sizeof(float)));
    const auto take = [&p](int64_t n) {
      float* taken = p;
      p += n;
      return taken;
    };
    Workspace ws;
    ws.queries = take(row_size_ * kTileRows);
    ws.keys = take(row_size_ * kTileKeys);
    ws.values = take(row_size_ * kTileKeys);
    ws.scores = take(kTileKeys * kTileRows);
    ws.decay = take(kTileRows);
    ws.positions = reinterpret_cast<int32_t*>(take(kTileRows));
    ws.state = {take(kTileRows), take(kTileRows), take(kTileRows * row_size_), row_size_};
    return ws;
  }

  int64_t first_key(int64_t position) const {
    return args_.sliding_window > 0 ? max<int64_t>(0, position - args_.sliding_window + 1) : 0;
  }

  // Transposed. Rows beyond the last are zero and see what the last one sees.
  void load_queries(int64_t first_query, int64_t head, int64_t row_begin, int64_t rows, int64_t first_position,
                    const Workspace& ws) const {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t row = row_begin + min(r, rows - 1);
      const int64_t query = row / group_;
      const float* from = static_cast<const float*>(args_.q) + (first_query + query) * args_.q_stride +
                          (head * group_ + row % group_) * head_dim_;
      const float scale = r < rows ? args_.scale : 0.0f;
      for (int64_t i = 0; i < head_dim_; ++i) ws.queries[i * kTileRows + r] = from[i] * scale;
      ws.positions[r] = static_cast<int32_t>(first_position + query);
    }
  }

  void expand(int64_t table_row, Kind kind, int64_t first, int64_t num_keys, int64_t offset, float* to) const {
    const T* from[kTileKeys];
    layer_.vectors(table_row, kind, first, num_keys, from);
    for (int64_t j = 0; j < num_keys; ++j, to += row_size_) {
      int64_t i = 0;
      for (; i + kWidth <= head_dim_; i += kWidth) store(to + i, load(from[j] + offset + i));
      if (i < head_dim_) store(to + i, load_first(from[j] + offset + i, head_dim_ - i));
    }
  }

  void add_tile(int64_t first_key_position, int64_t num_keys, int64_t rows, const Workspace& ws) const {
    const int64_t lanes = round_up(rows, kWidth);
    for (int64_t j = 0; j < num_keys; ++j) {
      for (int64_t r = 0; r < lanes; r += kWidth) store(ws.scores + j * kTileRows + r, Vec{});
    }
    gemm({ws.keys, row_size_, 1}, ws.queries, kTileRows, ws.scores, kTileRows, num_keys, lanes, head_dim_);
    if (needs_mask(first_key_position, num_keys, rows, ws)) mask(first_key_position, num_keys, lanes, ws);
    for (int64_t r = 0; r < lanes; r += kWidth) softmax(r, num_keys, ws);
    rescale(rows, ws);
    gemm({ws.scores, 1, kTileRows}, ws.values, row_size_, ws.state.out, row_size_, rows, row_size_, num_keys);
  }

  bool needs_mask(int64_t key, int64_t num_keys, int64_t rows, const Workspace& ws) const {
    return key + num_keys - 1 > ws.positions[0] || key < first_key(ws.positions[rows - 1]);
  }

  void mask(int64_t first, int64_t num_keys, int64_t lanes, const Workspace& ws) const {
    const int32_t window = args_.sliding_window > 0 ? static_cast<int32_t>(args_.sliding_window) : INT32_MAX;
    for (int64_t r = 0; r < lanes; r += kWidth) {
      IntVec position;
      __builtin_memcpy(&position, ws.positions + r, sizeof(position));
      for (int64_t j = 0; j < num_keys; ++j) {
        const IntVec distance = position - static_cast<int32_t>(first + j);
        float* scores = ws.scores + j * kTileRows + r;
        store(scores, select((distance >= 0) & (distance < window), load(scores), splat(-kInfinity)));
      }
    }
  }

  // scores -> exp(scores - top) for the kWidth rows from r on.
  static void softmax(int64_t r, int64_t num_keys, const Workspace& ws) {
    float* scores = ws.scores + r;
    const Vec old_top = load(ws.state.top + r);
    Vec top = old_top;
    for (int64_t j = 0; j < num_keys; ++j) top = max(top, load(scores + j * kTileRows));
    Vec total{};
    for (int64_t j = 0; j < num_keys; ++j) {
      const Vec weight = exp(load(scores + j * kTileRows) - top);
      store(scores + j * kTileRows, weight);
      total += weight;
    }
    const Vec decay = exp(old_top - top);
    store(ws.decay + r, decay);
    store(ws.state.top + r, top);
    store(ws.state.total + r, load(ws.state.total + r) * decay + total);
  }

  void rescale(int64_t rows, const Workspace& ws) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float decay = ws.decay[r];
      if (decay == 1.0f) continue;
      float* out = ws.state.out + r * row_size_;
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
