// The online softmax of several query rows over keys that arrive in tiles.
//
// For each row, after the keys seen so far: `top` the largest score, `total` = sum exp(score - top) and
// `out` = sum exp(score - top) * value. Two states over disjoint keys can be merged; see merge_partials().
#pragma once

#include "paged_attention.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// Below every score, yet finite: a row that has seen no key stays free of NaN.
constexpr float kNoScore = -1e30f;

struct AttentionState {
  float* top;    // [rows]
  float* total;  // [rows]
  float* out;    // [rows][row_size]
  int64_t row_size;
};

inline void reset(const AttentionState& state, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    state.top[i] = kNoScore;
    state.total[i] = 0;
  }
  for (int64_t i = 0; i < rows * state.row_size; ++i) state.out[i] = 0;
}

// One row of a split sequence as it goes to memory: top, total, then the head_dim elements of out.
inline int64_t partial_size(int64_t head_dim) { return head_dim + 2; }

// Where one work item's results go: to the output, or to partials that merge_partials() joins.
struct AttentionSink {
  const PagedAttentionArgs* args;
  int64_t first_query;  // of the sequence, in the flattened batch
  float* partials;      // [num_queries][num_heads][partial_size], or null

  void write(const AttentionState& state, int64_t row, int64_t query, int64_t head) const {
    const int64_t head_dim = args->pool.head_dim;
    const float* from = state.out + row * state.row_size;
    if (partials == nullptr) {
      float* to = static_cast<float*>(args->out) + ((first_query + query) * args->num_heads + head) * head_dim;
      const float factor = 1.0f / state.total[row];
      for (int64_t i = 0; i < head_dim; ++i) to[i] = from[i] * factor;
    } else {
      float* to = partials + (query * args->num_heads + head) * partial_size(head_dim);
      to[0] = state.top[row];
      to[1] = state.total[row];
      __builtin_memcpy(to + 2, from, static_cast<size_t>(head_dim) * sizeof(float));
    }
  }
};

// out[head_dim] from num_splits partials of one row, `stride` floats apart.
inline void merge_partials(const float* partials, int64_t num_splits, int64_t stride, int64_t head_dim, float* out) {
  float top = kNoScore;
  for (int64_t i = 0; i < num_splits; ++i) top = max(top, partials[i * stride]);
  float total = 0;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0;
  for (int64_t i = 0; i < num_splits; ++i) {
    const float* partial = partials + i * stride;
    const float weight = exp(splat(partial[0] - top))[0];
    total += weight * partial[1];
    for (int64_t d = 0; d < head_dim; ++d) out[d] += weight * partial[2 + d];
  }
  const float factor = 1.0f / total;
  for (int64_t d = 0; d < head_dim; ++d) out[d] *= factor;
}

}  // namespace hocket::cpu::HOCKET_ISA
