// What attention_stream.h multiplies: query heads with a group of keys, weights with a group of values.
//
// A group is kGroup tokens, read as kGroup neighbouring streams. While it is read the group after it is fetched, one
// line for each that is read: a fetch keeps its place among the instructions in flight until memory has taken it, so
// that many at once hold up what stands behind them. For the same reason every instruction saved here is time saved.
#pragma once

#include <type_traits>

#include "attention/attention_state.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kGroup = kWidth < 8 ? 8 : kWidth;

// The same head of kGroup tokens, of which `next` are read after it. offset: of the head in a token's vector.
template <class T>
struct StreamGroup {
  const T* const* now;
  const T* const* next;
  int64_t offset;
};

// Into the second cache: a block is more than the first one holds, and more lines than it waits for at a time, so that
// whatever is read meanwhile would wait with them.
template <class T>
inline void fetch_lines(const T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(64 / sizeof(T))) __builtin_prefetch(p + i, 0, 2);
}

// In float32. A head is read in chunks of two vectors. The two of a bfloat16 chunk hold its even and its odd elements:
// one load, one shift and one mask. Queries and results are kept in the same order, and what attention_tile.h expands.
template <class T>
class StreamProducts {
 public:
  using Query = float;
  using Weight = float;
  using Element = float;  // what attention_tile.h multiplies
  static constexpr int kPerElement = 1;
  static constexpr int kMaxKeyRows = 2;    // query heads at a time
  static constexpr int kMaxValueRows = 2;  // likewise

  // Of a query head and of its result, in elements; what is behind the head is zero.
  static constexpr int64_t row_size(int64_t head_dim) { return round_up(head_dim, kWidth); }

  static void load_query(const float* from, float scale, int64_t head_dim, Query* to) {
    const int64_t whole = head_dim / kChunk * kChunk;
    for (int64_t i = 0; i < whole; i += kChunk) {
      Vec a = load(from + i), b = load(from + i + kWidth);
      if constexpr (kIsSplit) separate(a, b);
      store(to + i, a * scale);
      store(to + i + kWidth, b * scale);
    }
    for (int64_t i = whole; i < head_dim; ++i) to[i] = from[i] * scale;
    for (int64_t i = head_dim; i < row_size(head_dim); ++i) to[i] = 0;
  }

  static void store_result(const float* from, float factor, int64_t head_dim, float* to) {
    const int64_t whole = head_dim / kChunk * kChunk;
    for (int64_t i = 0; i < whole; i += kChunk) {
      Vec a = load(from + i) * factor, b = load(from + i + kWidth) * factor;
      if constexpr (kIsSplit) alternate(a, b);
      store(to + i, a);
      store(to + i + kWidth, b);
    }
    for (int64_t i = whole; i < head_dim; ++i) to[i] = from[i] * factor;
  }

  // As it is multiplied.
  static Vec round_weight(Vec weight) { return weight; }
  static void store_weight(Weight* to, Vec weight) { store(to, weight); }

  // One head's key as elements, zeros behind it: to[row_size].
  static void expand_key(const T* from, int64_t head_dim, Element* to) {
    const int64_t whole = head_dim / kChunk * kChunk;
    for (int64_t i = 0; i < whole; i += kChunk) {
      const Chunk chunk = load_chunk(from + i);
      store(to + i, chunk.first);
      store(to + i + kWidth, chunk.second);
    }
    for (int64_t i = whole; i < head_dim; i += kWidth) store(to + i, load_up_to(from + i, head_dim - i));
  }

  // The values of the tokens that an element is made of, from from[...] + offset on.
  static void expand_values(const T* const* from, int64_t offset, int64_t head_dim, Element* to) {
    expand_key(from[0] + offset, head_dim, to);
  }

  // Their weights, for kWidth rows.
  static void expand_weights(const Vec (&weights)[kPerElement], Element* to) { store(to, weights[0]); }

  // scores[r][j] = q[r] . k[j] for kRows query heads and the keys of the group.
  template <int kRows, bool kFetch>
  static void scores(const Query* q, const StreamGroup<T>& keys, int64_t head_dim, float* scores) {
    head_dim % kChunk == 0 ? scores_of<kRows, kFetch, false>(q, keys, head_dim, scores)
                           : scores_of<kRows, kFetch, true>(q, keys, head_dim, scores);
  }

  // out[r] += sum over the group of weights[r][j] v[j].
  template <int kRows, bool kFetch>
  static void add_values(const Weight* weights, const StreamGroup<T>& values, int64_t head_dim, float* out) {
    const int64_t whole = head_dim / kChunk * kChunk;
    constexpr int kMany = 4 / kRows;
    int64_t i = 0;
    for (; i + kMany * kChunk <= whole; i += kMany * kChunk) {
      add_chunks<kRows, kMany, kFetch>(weights, values, i, head_dim, out);
    }
    for (; i + kChunk <= whole; i += kChunk) add_chunks<kRows, 1, kFetch>(weights, values, i, head_dim, out);
    for (; i < head_dim; i += kWidth) {
      for (int r = 0; r < kRows; ++r) {
        float* to = out + r * row_size(head_dim) + i;
        Vec sum = load(to);
        for (int64_t j = 0; j < kGroup; ++j) {
          const Vec value = load_up_to(values.now[j] + values.offset + i, head_dim - i);
          sum = fma(weights[r * kKeyBlock + j], value, sum);
        }
        store(to, sum);
      }
    }
  }

 private:
  static constexpr int64_t kChunk = 2 * kWidth;
  static constexpr bool kIsSplit = std::is_same_v<T, BFloat16>;

  struct Chunk {
    Vec first;
    Vec second;
  };

  static Chunk load_chunk(const T* p) {
    if constexpr (kIsSplit) {
      UintVec bits;
      __builtin_memcpy(&bits, p, sizeof(bits));
      return {bit_cast<Vec>(bits << 16), bit_cast<Vec>(bits & 0xffff0000u)};
    } else {
      return {load(p), load(p + kWidth)};
    }
  }

  // kHasTail: head_dim is no multiple of a chunk. Its loop would keep the sums of the others out of the registers.
  template <int kRows, bool kFetch, bool kHasTail>
  static void scores_of(const Query* q, const StreamGroup<T>& keys, int64_t head_dim, float* scores) {
    const int64_t whole = head_dim / kChunk * kChunk, row = row_size(head_dim);
    constexpr int kKeys = kWidth / kRows;
    for (int64_t first = 0; first < kGroup; first += kKeys) {
      Vec sums[kRows * kKeys] = {};
      for (int64_t i = 0; i < whole; i += kChunk) {
        Chunk q_chunk[kRows];
        for (int r = 0; r < kRows; ++r) q_chunk[r] = {load(q + r * row + i), load(q + r * row + i + kWidth)};
        for (int j = 0; j < kKeys; ++j) {
          const Chunk key = load_chunk(keys.now[first + j] + keys.offset + i);
          if constexpr (kFetch) fetch_lines(keys.next[first + j] + keys.offset + i, kChunk);
          for (int r = 0; r < kRows; ++r) {
            sums[r * kKeys + j] = fma(q_chunk[r].first, key.first, sums[r * kKeys + j]);
          }
          for (int r = 0; r < kRows; ++r) {
            sums[r * kKeys + j] = fma(q_chunk[r].second, key.second, sums[r * kKeys + j]);
          }
        }
      }
      for (int64_t i = whole; kHasTail && i < head_dim; i += kWidth) {
        for (int j = 0; j < kKeys; ++j) {
          const Vec key = load_up_to(keys.now[first + j] + keys.offset + i, head_dim - i);
          for (int r = 0; r < kRows; ++r) {
            sums[r * kKeys + j] = fma(load(q + r * row + i), key, sums[r * kKeys + j]);
          }
        }
      }
      float dots[kRows][kKeys];
      store(dots[0], sum_each(sums));
      for (int r = 0; r < kRows; ++r) __builtin_memcpy(scores + r * kKeyBlock + first, dots[r], sizeof(dots[r]));
    }
  }

  template <int kRows, int kChunks, bool kFetch>
  static void add_chunks(const Weight* weights, const StreamGroup<T>& values, int64_t i, int64_t head_dim, float* out) {
    const int64_t row = row_size(head_dim);
    Vec sums[kRows][2 * kChunks];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 2 * kChunks; ++c) sums[r][c] = load(out + r * row + i + c * kWidth);
    }
    for (int64_t j = 0; j < kGroup; ++j) {
      const T* value = values.now[j] + values.offset + i;
      if constexpr (kFetch) fetch_lines(values.next[j] + values.offset + i, kChunks * kChunk);
#pragma GCC unroll 4  // or the sums live in memory
      for (int c = 0; c < kChunks; ++c) {
        const Chunk chunk = load_chunk(value + c * kChunk);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const float weight = weights[r * kKeyBlock + j];
          sums[r][2 * c] = fma(weight, chunk.first, sums[r][2 * c]);
          sums[r][2 * c + 1] = fma(weight, chunk.second, sums[r][2 * c + 1]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 2 * kChunks; ++c) store(out + r * row + i + c * kWidth, sums[r][c]);
    }
  }
};

}  // namespace hocket::cpu::HOCKET_ISA
