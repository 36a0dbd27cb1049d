// Four products of int8 by int8 per lane, added to an int32: what each instruction set has for it. All of them are
// exact, so that they agree to the last bit.
//
// A vector of weights holds four rows of k of kWidth columns, as the packed layout has them (linear.h); x gives four
// values of one row, of which none is -128.
//
// add() takes weights that prepare() has made from signed ones, and its sums are too large by kOffset times the sum of
// x; add_unsigned() takes weights from 0 to 15. quad() is what both take of x: made once for all weights that it meets,
// since on some CPUs loads are what limits these products. Where kIsJoined, sums of add_unsigned() are pairs in 16
// bits, which hold kInt4Block values and no more (8 x 2 x 15 x 127), and join() makes int32 of them.
//
// kMaxRows: that go together, since more find too few registers. kMaxRowsAlone: where there are no others, and waiting
// for the weight is what takes time.
#pragma once

#include "linear.h"
#include "linear/int8_rows.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

inline UintVec load_quads(const int8_t* p) {
  UintVec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// Four values in every lane.
inline IntVec splat_quad(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return splat(quad);
}

#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512BW__)

// By vpdpbusd, which takes one side unsigned: weights plus 128, so that sums begin at -128 times the sum of x. Written
// as assembly, since CPUs with and without it share a build.
struct ByteDot {
  static constexpr int kMaxRows = 7, kMaxRowsAlone = 12;
  static constexpr bool kIsJoined = false;
  static constexpr int32_t kOffset = kInt8Excess;
  static UintVec prepare(UintVec weights) { return weights ^ 0x80808080u; }
  static IntVec quad(const int8_t* x) { return splat_quad(x); }
  static IntVec add_unsigned(IntVec sum, IntVec x, UintVec weights) { return add(sum, x, weights); }
  static IntVec add(IntVec sum, IntVec x, UintVec weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
    return sum;
  }
};

// By products of pairs of bytes in 16 bits, which cannot overflow: 2 x 127 x 127. One side is unsigned again; here the
// sign of the weights goes to x.
struct PairDot {
  static constexpr int kMaxRows = 6, kMaxRowsAlone = 6;
  static constexpr bool kIsJoined = true;
  static constexpr int32_t kOffset = 0;
  static UintVec prepare(UintVec weights) { return weights; }
  static IntVec quad(const int8_t* x) { return splat_quad(x); }
  static IntVec add(IntVec sum, IntVec x, UintVec weights) {
    const __m512i w = bit_cast<__m512i>(weights), values = bit_cast<__m512i>(x);
    const __m512i signed_x = _mm512_mask_sub_epi8(values, _mm512_movepi8_mask(w), _mm512_setzero_si512(), values);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
    return sum + bit_cast<IntVec>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static IntVec add_unsigned(IntVec sum, IntVec x, UintVec weights) {
    const __m512i pairs = _mm512_maddubs_epi16(bit_cast<__m512i>(weights), bit_cast<__m512i>(x));
    return bit_cast<IntVec>(_mm512_add_epi16(bit_cast<__m512i>(sum), pairs));
  }
  static IntVec join(IntVec sum) {
    return bit_cast<IntVec>(_mm512_madd_epi16(bit_cast<__m512i>(sum), _mm512_set1_epi16(1)));
  }
};

#elif HOCKET_SIMD_WIDTH == 8 && defined(__AVX2__)

// As the one of 16 lanes.
struct PairDot {
  static constexpr int kMaxRows = 4, kMaxRowsAlone = 4;
  static constexpr bool kIsJoined = true;
  static constexpr int32_t kOffset = 0;
  static UintVec prepare(UintVec weights) { return weights; }
  static IntVec quad(const int8_t* x) { return splat_quad(x); }
  static IntVec add(IntVec sum, IntVec x, UintVec weights) {
    const __m256i w = bit_cast<__m256i>(weights);
    const __m256i signed_x = _mm256_sign_epi8(bit_cast<__m256i>(x), w);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
    return sum + bit_cast<IntVec>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static IntVec add_unsigned(IntVec sum, IntVec x, UintVec weights) {
    const __m256i pairs = _mm256_maddubs_epi16(bit_cast<__m256i>(weights), bit_cast<__m256i>(x));
    return bit_cast<IntVec>(_mm256_add_epi16(bit_cast<__m256i>(sum), pairs));
  }
  static IntVec join(IntVec sum) {
    return bit_cast<IntVec>(_mm256_madd_epi16(bit_cast<__m256i>(sum), _mm256_set1_epi16(1)));
  }
};

#else

struct PairDot {
  static constexpr int kMaxRows = 3, kMaxRowsAlone = 3;
  static constexpr bool kIsJoined = false;
  static constexpr int32_t kOffset = 0;
  static UintVec prepare(UintVec weights) { return weights; }
  static const int8_t* quad(const int8_t* x) { return x; }
  static IntVec add(IntVec sum, const int8_t* x, UintVec weights) {
    for (int i = 0; i < 4; ++i) sum += (bit_cast<IntVec>(weights << (24 - 8 * i)) >> 24) * int32_t{x[i]};
    return sum;
  }
  static IntVec add_unsigned(IntVec sum, const int8_t* x, UintVec weights) { return add(sum, x, weights); }
};

#endif

// ---- how the packed layout (linear.h) has them ----

template <class Dot>
struct Int8Weights {
  using Scale = float;
  static constexpr int64_t kBlock = kInt8Block;
  static constexpr int kQuads = 1;  // of k in a vector
  static constexpr int32_t kOffset = Dot::kOffset;
  static constexpr bool kIsJoined = false;
  static void unpack(UintVec packed, UintVec (&quads)[kQuads]) { quads[0] = Dot::prepare(packed); }
  template <class Quad>
  static IntVec add(IntVec sum, Quad x, UintVec quad) {
    return Dot::add(sum, x, quad);
  }
};

template <class Dot>
struct Int4Weights {
  using Scale = Float16;
  static constexpr int64_t kBlock = kInt4Block;
  static constexpr int kQuads = 2;
  static constexpr int32_t kOffset = kInt4Excess;
  static constexpr bool kIsJoined = Dot::kIsJoined;
  static void unpack(UintVec packed, UintVec (&quads)[kQuads]) {
    quads[0] = packed & 0x0f0f0f0fu;
    quads[1] = packed >> 4 & 0x0f0f0f0fu;
  }
  template <class Quad>
  static IntVec add(IntVec sum, Quad x, UintVec quad) {
    return Dot::add_unsigned(sum, x, quad);
  }
};

}  // namespace hocket::cpu::HOCKET_ISA
