// Weights as vdpbf16ps takes them: vectors of pairs of bfloat16, one pair per column.
#pragma once

#ifdef __AVX512BF16__

#include "linear/linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

inline __m512bh load_pairs(const BFloat16* p) { return bit_cast<__m512bh>(_mm512_loadu_si512(p)); }

inline __m512bh splat_pair(const BFloat16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return bit_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// Two bfloat16 that are multiplied and added at once, as elements of a matrix (gemm.h).
struct BFloat16Pair {
  uint32_t bits;
};

inline __m512i load_lanes(const BFloat16Pair* p) { return _mm512_loadu_si512(p); }

inline Vec multiply_add(BFloat16Pair a, __m512i b, Vec sum) {
  const __m512i splat = _mm512_set1_epi32(static_cast<int>(a.bits));
  return bit_cast<Vec>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(splat), bit_cast<__m512bh>(b)));
}

// The bytes of the bfloat16 of every magnitude that an int8 can have.
struct MagnitudeTable {
  alignas(64) uint8_t low[128] = {};
  alignas(64) uint8_t high[128] = {};

  constexpr MagnitudeTable() {
    for (int magnitude = 1; magnitude < 128; ++magnitude) {
      int exponent = 0;
      while (magnitude >> (exponent + 1) != 0) ++exponent;
      const int bits = (127 + exponent) << 7 | ((magnitude << (7 - exponent)) & 0x7f);
      low[magnitude] = static_cast<uint8_t>(bits & 0xff);
      high[magnitude] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
inline constexpr MagnitudeTable kMagnitudes;

inline __m512i look_up(const uint8_t (&table)[128], __m512i index) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
}

// The columns of a panel at one pair of k, two vectors.
inline void load_panel(const BFloat16* p, __m512bh (&vectors)[2]) {
  vectors[0] = load_pairs(p);
  vectors[1] = load_pairs(p + 2 * kWidth);
}

// Likewise, columns in the order of interleaved(): that of the instruction that joins bytes.
inline void load_panel(const int8_t* p, __m512bh (&vectors)[2]) {
  const __m512i values = _mm512_loadu_si512(p), magnitudes = _mm512_abs_epi8(values);
  const __m512i low = look_up(kMagnitudes.low, magnitudes), unsigned_high = look_up(kMagnitudes.high, magnitudes);
  const __m512i high = _mm512_ternarylogic_epi64(unsigned_high, values, _mm512_set1_epi8(-128), 0xf8);  // a | b & c
  vectors[0] = bit_cast<__m512bh>(_mm512_unpacklo_epi8(low, high));
  vectors[1] = bit_cast<__m512bh>(_mm512_unpackhi_epi8(low, high));
}

// Sums over what load_panel() gave, in the order of the columns.
template <class T>
inline void restore_order([[maybe_unused]] Vec& first, [[maybe_unused]] Vec& second) {
  if constexpr (sizeof(T) == 1) {
    const Vec a = first, b = second;
    first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    second = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  }
}

}  // namespace hocket::cpu::HOCKET_ISA

#endif
