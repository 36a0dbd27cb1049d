// stream_products.h where the processor multiplies pairs of bfloat16 and adds them in float32. Blocks of many queries
// are multiplied in the same pairs, which are the elements of attention_tile.h there.
//
// Queries and weights are rounded to bfloat16, as the cache's vectors are: a score is off by 2^-9 of its terms at most,
// and the weights that are added up for the softmax are the rounded ones. A third of the instructions of float32.
#pragma once

#include <type_traits>

#include "attention/stream_products.h"
#include "linear/bf16_pairs.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

#ifdef __AVX512BF16__

class StreamPairs {
 public:
  using Query = BFloat16;
  using Weight = BFloat16;
  using Element = BFloat16Pair;
  static constexpr int kPerElement = 2;
  static constexpr int kMaxKeyRows = 4;
  static constexpr int kMaxValueRows = 8;

  static constexpr int64_t row_size(int64_t head_dim) { return round_up(head_dim, kChunk); }

  static void load_query(const float* from, float scale, int64_t head_dim, Query* to) {
    const int64_t size = row_size(head_dim);
    for (int64_t i = 0; i < size; i += kWidth) {
      store_rounded(to + i, i < head_dim ? HOCKET_ISA::load_up_to(from + i, head_dim - i) * scale : Vec{});
    }
  }

  // A chunk's results are in the order of join(): four of every eight, then the other four.
  static void store_result(const float* from, float factor, int64_t head_dim, float* to) {
    for (int64_t i = 0; i < head_dim; i += kChunk) {
      Vec halves[2] = {load(from + i) * factor, load(from + i + kWidth) * factor};
      restore_order<int8_t>(halves[0], halves[1]);
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t left = head_dim - i - h * kWidth;
        if (left > 0)
          left < kWidth ? store_first(to + i + h * kWidth, halves[h], left) : store(to + i + h * kWidth, halves[h]);
      }
    }
  }

  static Vec round_weight(Vec weight) {
    const auto half = bit_cast<HalfVec>(_mm512_cvtneps_pbh(bit_cast<__m512>(weight)));
    return bit_cast<Vec>(widen(half) << 16);
  }
  static void store_weight(Weight* to, Vec weight) { store_rounded(to, weight); }

  static void expand_key(const BFloat16* from, int64_t head_dim, Element* to) {
    for (int64_t i = 0; i < head_dim; i += kChunk) _mm512_storeu_si512(to + i / 2, load_up_to(from + i, head_dim - i));
  }

  // Pairs of a token and the next one, in the order of join().
  static void expand_values(const BFloat16* const* from, int64_t offset, int64_t head_dim, Element* to) {
    for (int64_t i = 0; i < head_dim; i += kChunk) {
      const __m512i a = load_up_to(from[0] + offset + i, head_dim - i);
      const __m512i b = load_up_to(from[1] + offset + i, head_dim - i);
      _mm512_storeu_si512(to + i, _mm512_unpacklo_epi16(a, b));
      _mm512_storeu_si512(to + i + kWidth, _mm512_unpackhi_epi16(a, b));
    }
  }

  // REQUIRES: the weights are rounded.
  static void expand_weights(const Vec (&weights)[2], Element* to) {
    const UintVec pairs = bit_cast<UintVec>(weights[0]) >> 16 | bit_cast<UintVec>(weights[1]);
    __builtin_memcpy(to, &pairs, sizeof(pairs));
  }

  template <int kRows, bool kFetch>
  static void scores(const Query* q, const StreamGroup<BFloat16>& keys, int64_t head_dim, float* scores) {
    switch (head_dim) {  // where the loops over the head have fixed ends, each token's address is looked up once
      case kChunk:
        return scores_of<kRows, kFetch, kChunk>(q, keys, head_dim, scores);
      case 2 * kChunk:
        return scores_of<kRows, kFetch, 2 * kChunk>(q, keys, head_dim, scores);
      case 4 * kChunk:
        return scores_of<kRows, kFetch, 4 * kChunk>(q, keys, head_dim, scores);
      default:
        return scores_of<kRows, kFetch, 0>(q, keys, head_dim, scores);
    }
  }

  template <int kRows, bool kFetch>
  static void add_values(const Weight* weights, const StreamGroup<BFloat16>& values, int64_t head_dim, float* out) {
    constexpr int kMany = max(8 / kRows, 1);  // chunks at a time: 16 sums
    const int64_t row = row_size(head_dim);
    int64_t i = 0;
    const auto step = [&]<int kChunks>(bool is_whole) {
      const auto mask = is_whole ? ~__mmask32{0} : (__mmask32{1} << (head_dim - i)) - 1;
      add_chunks<kRows, kChunks, kFetch>(weights, values, i, mask, row, out);
      i += kChunks * kChunk;
    };
    while (i + kMany * kChunk <= head_dim) step.template operator()<kMany>(true);
    if (kMany > 4 && i + 4 * kChunk <= head_dim) step.template operator()<min(kMany, 4)>(true);
    while (kMany > 1 && i + 2 * kChunk <= head_dim) step.template operator()<min(kMany, 2)>(true);
    while (i + kChunk <= head_dim) step.template operator()<1>(true);
    if (i < head_dim) step.template operator()<1>(false);
  }

 private:
  static constexpr int64_t kChunk = 2 * kWidth;

  static __m512i load_bits(const BFloat16* p) { return _mm512_loadu_si512(p); }
  static __m512i load_bits(const BFloat16* p, __mmask32 mask) { return _mm512_maskz_loadu_epi16(mask, p); }
  static __m512i load_up_to(const BFloat16* p, int64_t n) {
    return n >= kChunk ? load_bits(p) : load_bits(p, (__mmask32{1} << n) - 1);
  }
  static Vec add_pairs(Vec sum, __m512i a, __m512i b) {
    return bit_cast<Vec>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(a), bit_cast<__m512bh>(b)));
  }

  // kHeadDim 0: any.
  template <int kRows, bool kFetch, int64_t kHeadDim>
  static void scores_of(const Query* q, const StreamGroup<BFloat16>& keys, int64_t any_head_dim, float* scores) {
    const int64_t head_dim = kHeadDim > 0 ? kHeadDim : any_head_dim;
    const int64_t row = row_size(head_dim), whole = head_dim / kChunk * kChunk;
    constexpr int kKeys = kWidth / kRows;
    for (int64_t first = 0; first < kGroup; first += kKeys) {
      Vec sums[kRows * kKeys] = {};
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        const BFloat16* key = keys.now[first + j] + keys.offset;
        const BFloat16* next = keys.next[first + j] + keys.offset;
#pragma GCC unroll 4
        for (int64_t i = 0; i < whole; i += kChunk) {
          if constexpr (kFetch) fetch_lines(next + i, kChunk);
          for (int r = 0; r < kRows; ++r) {
            Vec& sum = sums[r * kKeys + j];
            sum = add_pairs(sum, load_bits(q + r * row + i), load_bits(key + i));
          }
        }
        if (whole < head_dim) {
          const __m512i bits = load_bits(key + whole, (__mmask32{1} << (head_dim - whole)) - 1);
          for (int r = 0; r < kRows; ++r) {
            Vec& sum = sums[r * kKeys + j];
            sum = add_pairs(sum, load_bits(q + r * row + whole), bits);
          }
        }
      }
      float dots[kRows][kKeys];
      store(dots[0], sum_each(sums));
      for (int r = 0; r < kRows; ++r) __builtin_memcpy(scores + r * kKeyBlock + first, dots[r], sizeof(dots[r]));
    }
  }

  // Elements in `mask` of kChunks chunks from i on.
  template <int kRows, int kChunks, bool kFetch>
  static void add_chunks(const Weight* weights, const StreamGroup<BFloat16>& values, int64_t i, __mmask32 mask,
                         int64_t row, float* out) {
    Vec sums[kRows][2 * kChunks];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 2 * kChunks; ++c) sums[r][c] = load(out + r * row + i + c * kWidth);
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kGroup; j += 2) {
      const BFloat16* first = values.now[j] + values.offset + i;
      const BFloat16* second = values.now[j + 1] + values.offset + i;
      if constexpr (kFetch) {
        fetch_lines(values.next[j] + values.offset + i, kChunks * kChunk);
        fetch_lines(values.next[j + 1] + values.offset + i, kChunks * kChunk);
      }
      __m512i pairs[kRows];
      for (int r = 0; r < kRows; ++r) pairs[r] = splat_weights(weights + r * kKeyBlock + j);
      for (int c = 0; c < kChunks; ++c) {
        const __m512i a = load_bits(first + c * kChunk, mask), b = load_bits(second + c * kChunk, mask);
        const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
        for (int r = 0; r < kRows; ++r) {
          sums[r][2 * c] = add_pairs(sums[r][2 * c], low, pairs[r]);
          sums[r][2 * c + 1] = add_pairs(sums[r][2 * c + 1], high, pairs[r]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 2 * kChunks; ++c) store(out + r * row + i + c * kWidth, sums[r][c]);
    }
  }

  static __m512i splat_weights(const Weight* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
};

template <class T>
using StreamProductsOf = std::conditional_t<std::is_same_v<T, BFloat16>, StreamPairs, StreamProducts<T>>;

#else

template <class T>
using StreamProductsOf = StreamProducts<T>;

#endif

}  // namespace hocket::cpu::HOCKET_ISA
