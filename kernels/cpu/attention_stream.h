// Attention of one query token: the cache is read once, as a stream, and nothing is kept of it.
//
// Keys come in tiles of kStreamKeys. Within a tile each KV head is served in turn for all its query heads: scores by
// dot products straight from the pool, softmax, then the weighted sum of the values.
#pragma once

#include "attention_state.h"
#include "paged.h"
#include "simd.h"
#include "thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kStreamKeys = 32;

// scores[r][j] = q[r] . k[j] for kRows rows and kKeys keys.
template <int kRows, int kKeys, class T>
inline void dot_keys(const float* q, int64_t q_row, const T* const* keys, int64_t offset, int64_t head_dim,
                     float* scores) {
  Vec sums[kRows][kKeys] = {};
  const auto accumulate = [&](int64_t i, auto load_key) {
    Vec q_vec[kRows];
    for (int r = 0; r < kRows; ++r) q_vec[r] = load(q + r * q_row + i);
    for (int j = 0; j < kKeys; ++j) {
      const Vec key = load_key(keys[j] + offset + i);
      for (int r = 0; r < kRows; ++r) sums[r][j] += q_vec[r] * key;
    }
  };
  int64_t i = 0;
  for (; i + kWidth <= head_dim; i += kWidth) accumulate(i, [](const T* p) { return load(p); });
  if (i < head_dim) accumulate(i, [&](const T* p) { return load_first(p, head_dim - i); });
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kKeys; j += 4) {
      const Vec4 dots = sum4(sums[r][j], sums[r][j + 1], sums[r][j + 2], sums[r][j + 3]);
      __builtin_memcpy(scores + r * kStreamKeys + j, &dots, sizeof(dots));
    }
  }
}

// out[r][i ...] = out[r][i ...] * decay[r] + sum_j weights[r][j] values[j][i ...], kVecs vectors wide.
template <int kRows, int kVecs, class T>
inline void add_values(const float* weights, const float* decay, const T* const* values, int64_t offset,
                       int64_t num_keys, float* out, int64_t out_row) {
  Vec sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) sums[r][c] = load(out + r * out_row + c * kWidth) * decay[r];
  }
  for (int64_t j = 0; j < num_keys; ++j) {
    const T* value = values[j] + offset;
    for (int c = 0; c < kVecs; ++c) {
      const Vec v = load(value + c * kWidth);
      for (int r = 0; r < kRows; ++r) sums[r][c] += weights[r * kStreamKeys + j] * v;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) store(out + r * out_row + c * kWidth, sums[r][c]);
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
        group_(args.num_heads / args.pool.num_kv_heads) {}

  // One query token, the KV heads [head_begin, head_end), the keys [key_begin, key_end).
  void run(int64_t row, int64_t head_begin, int64_t head_end, int64_t key_begin, int64_t key_end,
           const AttentionSink& sink) const {
    const int64_t rows = (head_end - head_begin) * group_;
    float* q = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(rows * (2 * row_size_ + 2)) * 4));
    float* out = q + rows * row_size_;
    const AttentionState state{out + rows * row_size_, out + rows * row_size_ + rows, out, row_size_};
    load_queries(sink.first_query, head_begin * group_, rows, q);
    reset(state, rows);

    for (int64_t key = key_begin; key < key_end; key += kStreamKeys) {
      const int64_t num_keys = min(kStreamKeys, key_end - key);
      const T *keys[kStreamKeys], *values[kStreamKeys];
      layer_.vectors(row, kKeys, key, num_keys, keys);
      layer_.vectors(row, kValues, key, num_keys, values);
      for (int64_t j = num_keys; j < kStreamKeys; ++j) keys[j] = keys[num_keys - 1];  // whole groups; scores dropped
      for (int64_t h = head_begin; h < head_end; ++h) {
        add_tile(keys, values, num_keys, h * head_dim_, q, (h - head_begin) * group_, state);
      }
    }
    for (int64_t r = 0; r < rows; ++r) sink.write(state, r, 0, head_begin * group_ + r);
  }

 private:
  // Scaled, and padded with zeros to whole vectors.
  void load_queries(int64_t query, int64_t first_head, int64_t rows, float* q) const {
    const float* from = static_cast<const float*>(args_.q) + query * args_.q_stride + first_head * head_dim_;
    for (int64_t r = 0; r < rows; ++r, from += head_dim_, q += row_size_) {
      for (int64_t i = 0; i < head_dim_; ++i) q[i] = from[i] * args_.scale;
      for (int64_t i = head_dim_; i < row_size_; ++i) q[i] = 0;
    }
  }

  // One tile of keys for the query heads [first, first + group) of one KV head.
  void add_tile(const T* const* keys, const T* const* values, int64_t num_keys, int64_t offset, const float* q,
                int64_t first, const AttentionState& state) const {
    for (int64_t r = first; r < first + group_;) {
      alignas(64) float scores[2 * kStreamKeys];
      float decay[2];
      if (r + 2 <= first + group_) {
        for (int64_t j = 0; j < num_keys; j += 4) {
          dot_keys<2, 4>(q + r * row_size_, row_size_, keys + j, offset, head_dim_, scores + j);
        }
        for (int i = 0; i < 2; ++i) decay[i] = softmax(scores + i * kStreamKeys, num_keys, state, r + i);
        add_head<2>(scores, decay, values, offset, num_keys, state.out + r * row_size_);
        r += 2;
      } else {
        for (int64_t j = 0; j < num_keys; j += 8) {
          dot_keys<1, 8>(q + r * row_size_, row_size_, keys + j, offset, head_dim_, scores + j);
        }
        decay[0] = softmax(scores, num_keys, state, r);
        add_head<1>(scores, decay, values, offset, num_keys, state.out + r * row_size_);
        r += 1;
      }
    }
  }

  // scores -> exp(scores - top), row r of the state brought up to date but for `out`, whose factor is returned.
  static float softmax(float* scores, int64_t num_keys, const AttentionState& state, int64_t r) {
    for (int64_t j = num_keys; j < kStreamKeys; ++j) scores[j] = -kInfinity;
    Vec top_vec = splat(state.top[r]);
    for (int64_t j = 0; j < kStreamKeys; j += kWidth) top_vec = max(top_vec, load(scores + j));
    const float top = max_lane(top_vec);
    const float decay = top == state.top[r] ? 1.0f : exp(splat(state.top[r] - top))[0];
    Vec total{};
    for (int64_t j = 0; j < kStreamKeys; j += kWidth) {
      const Vec weight = exp(load(scores + j) - top);
      store(scores + j, weight);
      total += weight;
    }
    state.top[r] = top;
    state.total[r] = state.total[r] * decay + sum(total);
    return decay;
  }

  template <int kRows>
  void add_head(const float* weights, const float* decay, const T* const* values, int64_t offset, int64_t num_keys,
                float* out) const {
    int64_t i = 0;
    const auto step = [&]<int kVecs>() {
      add_values<kRows, kVecs>(weights, decay, values, offset + i, num_keys, out + i, row_size_);
      i += kVecs * kWidth;
    };
    constexpr int kMany = 8 / kRows;
    while (i + kMany * kWidth <= head_dim_) step.template operator()<kMany>();
    if (kMany > 4 && i + 4 * kWidth <= head_dim_) step.template operator()<4>();
    if (i + 2 * kWidth <= head_dim_) step.template operator()<2>();
    if (i + kWidth <= head_dim_) step.template operator()<1>();
    if (i < head_dim_) add_tail<kRows>(weights, decay, values, offset, num_keys, out, i);
  }

  template <int kRows>
  void add_tail(const float* weights, const float* decay, const T* const* values, int64_t offset, int64_t num_keys,
                float* out, int64_t i) const {
    for (int r = 0; r < kRows; ++r) {
      Vec sum = load(out + r * row_size_ + i) * decay[r];
      for (int64_t j = 0; j < num_keys; ++j) {
        sum += weights[r * kStreamKeys + j] * load_first(values[j] + offset + i, head_dim_ - i);
      }
      store(out + r * row_size_ + i, sum);
    }
  }

  const PagedAttentionArgs& args_;
  PagedLayer<T> layer_;
  int64_t head_dim_;
  int64_t row_size_;
  int64_t group_;
};

}  // namespace hocket::cpu::HOCKET_ISA
