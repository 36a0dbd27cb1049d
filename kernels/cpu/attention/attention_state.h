// The online softmax of several query rows over keys that arrive in blocks.
//
// For each row, after the keys seen so far: `top` the largest score, `total` = sum exp(score - top) and
// `out` = sum exp(score - top) * value. States over disjoint keys can be joined.
//
// A query's result does not depend on its company, to the last bit: not on the other queries of its sequence, nor on
// other sequences, nor on how keys are divided among threads. So every way to compute it has the same order:
//
//   score     the product of each lane's elements (StreamProducts), in ascending order, then over the lanes by halves;
//             where keys are int8, of their integers, and then times the key's scale
//   block     kKeyBlock keys from a multiple of kKeyBlock on: the top is raised, what there is so far is scaled; the
//             total takes the weights by their place modulo kWidth, then over the lanes by halves; each element of out
//             takes the values in ascending order, int8 ones as integers times the weight that the value's scale is in
//   partition kPartition keys likewise, with a state of its own
//   result    the partitions' states, joined in ascending order
//
// Keys that a query does not see weigh exactly zero, blocks and partitions of such keys change nothing: they may be
// left out or not.
#pragma once

#include "paged_attention.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kKeyBlock = 64;
constexpr int64_t kPartition = 4 * kKeyBlock;  // what is not worth a split, and is seldom enough for joins to be cheap

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

// One row's state after the keys of b, which follow those of a: that of b is joined to that of a. out has n elements.
inline void join_row(float& a_top, float& a_total, float* a_out, float b_top, float b_total, const float* b_out,
                     int64_t n) {
  const float top = max(a_top, b_top);
  Vec differences = splat(a_top - top);
  differences[1] = b_top - top;
  const Vec weights = exp(differences);
  const float a = weights[0], b = weights[1];
  a_top = top;
  a_total = fma(b, b_total, a * a_total);
  for (int64_t i = 0; i < n; ++i) a_out[i] = fma(b, b_out[i], a * a_out[i]);
}

// As join_row(), each of the rows.
inline void join(const AttentionState& a, const AttentionState& b, int64_t rows) {
  for (int64_t first = 0; first < rows; first += kWidth) {
    const int64_t n = min<int64_t>(kWidth, rows - first);
    const Vec a_top = load_up_to(a.top + first, n), b_top = load_up_to(b.top + first, n), top = max(a_top, b_top);
    const Vec a_weights = exp(a_top - top), b_weights = exp(b_top - top);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = first + i, place = row * a.row_size;
      const float a_weight = a_weights[i], b_weight = b_weights[i];
      a.top[row] = top[i];
      a.total[row] = fma(b_weight, b.total[row], a_weight * a.total[row]);
      for (int64_t k = place; k < place + a.row_size; k += kWidth) {
        store(a.out + k, fma(b_weight, load(b.out + k), a_weight * load(a.out + k)));
      }
    }
  }
}

// One row of a partition as it goes to memory: top, total, then the head_dim elements of out.
inline int64_t partial_size(int64_t head_dim) { return head_dim + 2; }

// Where one work item's results go: to the output, or partition by partition to partials that others join.
struct AttentionSink {
  const PagedAttentionArgs* args;
  int64_t first_query;      // of the sequence, in the flattened batch
  float* partials;          // [partitions][num_queries][num_heads][partial_size], or null
  int64_t first_partition;  // of partials
  int64_t stride;           // floats from one partition to the next

  // Products: of stream_products.h, which know the order of the elements.
  template <class Products>
  void write(const AttentionState& state, int64_t row, int64_t query, int64_t head) const {
    const int64_t head_dim = args->pool.head_dim;
    float* to = static_cast<float*>(args->out) + ((first_query + query) * args->num_heads + head) * head_dim;
    Products::store_result(state.out + row * state.row_size, 1.0f / state.total[row], head_dim, to);
  }

  template <class Products>
  void write_partial(int64_t partition, const AttentionState& state, int64_t row, int64_t query, int64_t head) const {
    const int64_t head_dim = args->pool.head_dim;
    float* to = partials + (partition - first_partition) * stride;
    to += (query * args->num_heads + head) * partial_size(head_dim);
    to[0] = state.top[row];
    to[1] = state.total[row];
    Products::store_result(state.out + row * state.row_size, 1.0f, head_dim, to + 2);
  }
};

// One row's out[head_dim] from its partials, `stride` floats apart.
inline void merge_partials(float* partials, int64_t num_partitions, int64_t stride, int64_t head_dim, float* out) {
  for (int64_t i = 1; i < num_partitions; ++i) {
    const float* next = partials + i * stride;
    join_row(partials[0], partials[1], partials + 2, next[0], next[1], next + 2, head_dim);
  }
  const float factor = 1.0f / partials[1];
  for (int64_t i = 0; i < head_dim; ++i) out[i] = partials[2 + i] * factor;
}

inline void copy(const AttentionState& from, int64_t rows, const AttentionState& to) {
  __builtin_memcpy(to.top, from.top, static_cast<size_t>(rows) * sizeof(float));
  __builtin_memcpy(to.total, from.total, static_cast<size_t>(rows) * sizeof(float));
  __builtin_memcpy(to.out, from.out, static_cast<size_t>(rows * from.row_size) * sizeof(float));
}

// One query token's states after its first partitions, the last of which may be cut: computed with other sequences'
// (shared_keys.h), they wait for the rest of its keys.
struct WaitingStates {
  float* data = nullptr;  // [partitions][size]
  int64_t num_heads = 0;
  int64_t row_size = 0;

  // Floats of one partition.
  static int64_t size(int64_t num_heads, int64_t row_size) { return round_up(num_heads * (row_size + 2), 16); }

  // A row for each of the heads from this one on.
  AttentionState at(int64_t partition, int64_t head) const {
    float* out = data + partition * size(num_heads, row_size);
    float* top = out + num_heads * row_size;
    return {top + head, top + num_heads + head, out + head * row_size, row_size};
  }
};

// The two states that a work item needs: of the partition at hand, and of all before it.
struct PartitionedState {
  AttentionState now;
  AttentionState before;
  bool is_first = true;

  // Ends a partition.
  void end(int64_t rows) {
    if (is_first) {
      const AttentionState state = now;
      now = before;
      before = state;
      is_first = false;
    } else {
      join(before, now, rows);
    }
  }

  // As if the rows, one per head from this one on, had seen the keys [0, num_keys).
  void go_on(const WaitingStates& states, int64_t num_keys, int64_t first_head, int64_t rows) {
    for (int64_t p = 0; p < num_keys / kPartition; ++p) {
      if (is_first) {
        copy(states.at(p, first_head), rows, before);
        is_first = false;
      } else {
        join(before, states.at(p, first_head), rows);
      }
    }
    if (num_keys % kPartition == 0) {
      reset(now, rows);
    } else {
      copy(states.at(num_keys / kPartition, first_head), rows, now);
    }
  }
};

}  // namespace hocket::cpu::HOCKET_ISA
