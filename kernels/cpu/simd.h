// Vectors of kWidth floats, in the compiler's own vector types, so that one source serves every instruction set.
//
// Included by files that are compiled once per instruction set, with HOCKET_ISA (a namespace) and HOCKET_SIMD_WIDTH set
// by the build. Everything here lives in that namespace, and such files use no inline function or template of anybody
// else: the linker keeps one copy of those, and it might be the one with the wrong instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(HOCKET_ISA) || !defined(HOCKET_SIMD_WIDTH)
#error "compile this with HOCKET_ISA and HOCKET_SIMD_WIDTH"
#endif

namespace hocket::cpu::HOCKET_ISA {

constexpr int kWidth = HOCKET_SIMD_WIDTH;

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kWidth * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kWidth * 2)));
typedef float Vec4 __attribute__((vector_size(16)));
typedef uint32_t UintVec4 __attribute__((vector_size(16)));

constexpr float kInfinity = __builtin_inff();

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline Vec splat(float x) { return x - Vec{}; }  // nothing is left to compute, unlike in 0 + x where x may be -0
inline IntVec splat(int32_t x) { return IntVec{} + x; }
inline Vec select(IntVec mask, Vec yes, Vec no) { return mask ? yes : no; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

inline float load_scalar(const float* p) { return *p; }

// ---- a * b + c, rounded once where there is an instruction for it ----
//
// The only place where a product and a sum become one: the compiler may not join them by itself (-ffp-contract=off),
// for whether it does depends on the code around, and one request's numbers would depend on which copy of a loop
// computed them.

inline float fma(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec fma(Vec a, Vec b, Vec c) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  return bit_cast<Vec>(_mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__FMA__)
  return bit_cast<Vec>(_mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
#elif HOCKET_SIMD_WIDTH == 16 && defined(__FMA__)
  __m256 x[2], y[2], z[2];
  __builtin_memcpy(x, &a, sizeof(a));
  __builtin_memcpy(y, &b, sizeof(b));
  __builtin_memcpy(z, &c, sizeof(c));
  for (int i = 0; i < 2; ++i) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, sizeof(c));
  return c;
#elif HOCKET_SIMD_WIDTH == 4 && defined(__aarch64__)
  return bit_cast<Vec>(vfmaq_f32(bit_cast<float32x4_t>(c), bit_cast<float32x4_t>(a), bit_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

inline Vec fma(float a, Vec b, Vec c) { return fma(splat(a), b, c); }

// ---- float32 ----

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

// ---- bfloat16: the upper half of a float32 ----

inline HalfVec load_bits(const void* p) {
  HalfVec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

inline UintVec widen(HalfVec v) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  return bit_cast<UintVec>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(v)));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__AVX2__)
  return bit_cast<UintVec>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, UintVec);
#endif
}

inline Vec load(const BFloat16* p) { return bit_cast<Vec>(widen(load_bits(p)) << 16); }

// To nearest, ties to even; NaN stays NaN.
inline void store(BFloat16* p, Vec v) {
  const UintVec bits = bit_cast<UintVec>(v);
  const UintVec rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const HalfVec half = __builtin_convertvector(v == v ? rounded : (bits >> 16 | 0x40u), HalfVec);
  __builtin_memcpy(p, &half, sizeof(half));
}

// ---- float16 ----

#if !(HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)) && !(HOCKET_SIMD_WIDTH == 8 && defined(__F16C__))

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Shifted into a float32 the exponent is 112 too small; a multiplication corrects it, subnormals included.
  return bit_cast<float>(bit_cast<uint32_t>(bit_cast<float>(magnitude << 13) * 0x1p112f) | sign);
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = bit_cast<uint32_t>(f);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded result in the low bits
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

#endif

inline Vec load(const Float16* p) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  return bit_cast<Vec>(_mm512_cvtph_ps(bit_cast<__m256i>(load_bits(p))));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__F16C__)
  return bit_cast<Vec>(_mm256_cvtph_ps(bit_cast<__m128i>(load_bits(p))));
#else
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = half_to_float(p[i].bits);
  return v;
#endif
}

inline void store(Float16* p, Vec v) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  const __m256i half = _mm512_cvtps_ph(bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &half, sizeof(half));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__F16C__)
  const __m128i half = _mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &half, sizeof(half));
#else
  for (int i = 0; i < kWidth; ++i) p[i].bits = float_to_half(v[i]);
#endif
}

// ---- int8 ----

inline Vec load(const int8_t* p) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  __m128i bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return bit_cast<Vec>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__AVX2__)
  return bit_cast<Vec>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(p))));
#else
  typedef int8_t ByteVec __attribute__((vector_size(kWidth)));
  ByteVec bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Vec);
#endif
}

// The lowest byte of each. What GCC makes of the generic form costs products of int8 a twentieth of their time.
inline void store_bytes(int8_t* p, UintVec v) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512F__)
  const __m128i bytes = _mm512_cvtepi32_epi8(bit_cast<__m512i>(v));
#elif HOCKET_SIMD_WIDTH == 8 && defined(__AVX2__)
  constexpr int kBytes = 0x0c080400;
  const __m256i quads = _mm256_shuffle_epi8(bit_cast<__m256i>(v), _mm256_set1_epi32(kBytes));
  const int64_t bytes =
      _mm_cvtsi128_si64(_mm_unpacklo_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1)));
#else
  typedef uint8_t ByteVec __attribute__((vector_size(kWidth)));
  const ByteVec bytes = __builtin_convertvector(v, ByteVec);
#endif
  __builtin_memcpy(p, &bytes, sizeof(bytes));
}

// As store(), in one instruction where there is one, which takes subnormal numbers for zero, as the product does.
inline void store_rounded(BFloat16* to, Vec value) {
#ifdef __AVX512BF16__
  const auto rounded = _mm512_cvtneps_pbh(bit_cast<__m512>(value));
  __builtin_memcpy(to, &rounded, sizeof(rounded));
#else
  store(to, value);
#endif
}

// ---- the first n < kWidth elements; the others read as zero and are not written ----

template <class T>
inline Vec load_first(const T* p, int64_t n) {
  T buffer[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}

template <class T>
inline Vec load_up_to(const T* p, int64_t n) {
  return n >= kWidth ? load(p) : load_first(p, n);
}

template <class T>
inline void store_first(T* p, Vec v, int64_t n) {
  T buffer[kWidth];
  store(buffer, v);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

// ---- two vectors, a and then b ----

// The even elements, then the odd ones.
inline void separate(Vec& a, Vec& b) {
  const Vec x = a, y = b;
#if HOCKET_SIMD_WIDTH == 16
  a = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  b = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif HOCKET_SIMD_WIDTH == 8
  a = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14);
  b = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  a = __builtin_shufflevector(x, y, 0, 2, 4, 6);
  b = __builtin_shufflevector(x, y, 1, 3, 5, 7);
#endif
}

// Back: one of a, one of b.
inline void alternate(Vec& a, Vec& b) {
  const Vec x = a, y = b;
#if HOCKET_SIMD_WIDTH == 16
  a = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  b = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif HOCKET_SIMD_WIDTH == 8
  a = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
  b = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  a = __builtin_shufflevector(x, y, 0, 4, 1, 5);
  b = __builtin_shufflevector(x, y, 2, 6, 3, 7);
#endif
}

// The lanes of v[i] become lane i of each. Each pass makes one vector of two, so that after as many as a lane's number
// has bits every element has changed places with its mirror.
inline void transpose(Vec (&v)[kWidth]) {
  for (int n = 1; n < kWidth; n *= 2) {
    Vec x[kWidth];
    for (int i = 0; i < kWidth / 2; ++i) {
      x[2 * i] = v[i];
      x[2 * i + 1] = v[i + kWidth / 2];
      alternate(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < kWidth; ++i) v[i] = x[i];
  }
}

// ---- over the lanes ----

inline Vec4 quarter(Vec v) {  // sums of every fourth lane
  Vec4 parts[kWidth / 4];
  __builtin_memcpy(parts, &v, sizeof(v));
  for (int n = kWidth / 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) parts[i] += parts[i + n];
  }
  return parts[0];
}

// All sums over lanes are made in the same order: one half of them plus the other, and so on with what that gives.
inline float sum(Vec v) {
  const Vec4 q = quarter(v);
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// Two vectors whose lanes are parts in segments, halved: of each segment of a and of b, one half joined with the other.
// REQUIRES: join() does not mind their order. So what it is given is a blend and one shuffle, which are cheaper than
// two shuffles: lower halves of a beside upper ones of b, and the other way round.
template <int kSegment, class Join>
inline Vec fold(Vec a, Vec b, const Join& join) {
#if HOCKET_SIMD_WIDTH == 16
  if constexpr (kSegment == 16) {
    return join(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31),
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
  } else if constexpr (kSegment == 8) {
    return join(__builtin_shufflevector(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31),
                __builtin_shufflevector(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27));
  } else if constexpr (kSegment == 4) {
    return join(__builtin_shufflevector(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31),
                __builtin_shufflevector(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29));
  } else {
    return join(__builtin_shufflevector(a, b, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31),
                __builtin_shufflevector(a, b, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30));
  }
#elif HOCKET_SIMD_WIDTH == 8
  if constexpr (kSegment == 8) {
    return join(__builtin_shufflevector(a, b, 0, 1, 2, 3, 12, 13, 14, 15),
                __builtin_shufflevector(a, b, 4, 5, 6, 7, 8, 9, 10, 11));
  } else if constexpr (kSegment == 4) {
    return join(__builtin_shufflevector(a, b, 0, 1, 10, 11, 4, 5, 14, 15),
                __builtin_shufflevector(a, b, 2, 3, 8, 9, 6, 7, 12, 13));
  } else {
    return join(__builtin_shufflevector(a, b, 0, 9, 2, 11, 4, 13, 6, 15),
                __builtin_shufflevector(a, b, 1, 8, 3, 10, 5, 12, 7, 14));
  }
#else
  if constexpr (kSegment == 4) {
    return join(__builtin_shufflevector(a, b, 0, 1, 6, 7), __builtin_shufflevector(a, b, 2, 3, 4, 5));
  } else {
    return join(__builtin_shufflevector(a, b, 0, 5, 2, 7), __builtin_shufflevector(a, b, 1, 4, 3, 6));
  }
#endif
}

// Lane i of the result is what join() makes of the lanes of v[i]. Overwrites v.
template <int kNum, class Join>
[[gnu::always_inline]] inline Vec join_each(Vec* v, const Join& join) {
  if constexpr (kNum == 1) {
    return v[0];
  } else {
    for (int i = 0; i < kNum / 2; ++i) v[i] = fold<kNum>(v[i], v[i + kNum / 2], join);
    return join_each<kNum / 2>(v, join);
  }
}

// Lane i of the result is the sum over the lanes of v[i]. Overwrites v.
[[gnu::always_inline]] inline Vec sum_each(Vec* v) {
  return join_each<kWidth>(v, [](Vec a, Vec b) { return a + b; });
}

// Likewise the largest.
[[gnu::always_inline]] inline Vec max_each(Vec* v) {
  return join_each<kWidth>(v, [](Vec a, Vec b) { return max(a, b); });
}

// The sums over the lanes of v[0], v[1], v[2] and v[3].
inline UintVec4 sum_each_of_four(const UintVec (&v)[4]) {
  UintVec4 q[4];
  for (int i = 0; i < 4; ++i) {
    UintVec4 parts[kWidth / 4];
    __builtin_memcpy(parts, &v[i], sizeof(v[i]));
    q[i] = parts[0];
    for (int j = 1; j < kWidth / 4; ++j) q[i] += parts[j];
  }
  const UintVec4 a = __builtin_shufflevector(q[0], q[1], 0, 4, 2, 6) + __builtin_shufflevector(q[0], q[1], 1, 5, 3, 7);
  const UintVec4 b = __builtin_shufflevector(q[2], q[3], 0, 4, 2, 6) + __builtin_shufflevector(q[2], q[3], 1, 5, 3, 7);
  return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

template <class V>
inline auto max_lane(V v) {
  typedef decltype(v[0] + v[0]) Quarter __attribute__((vector_size(16)));
  Quarter parts[kWidth / 4];
  __builtin_memcpy(parts, &v, sizeof(v));
  for (int n = kWidth / 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) parts[i] = parts[i] > parts[i + n] ? parts[i] : parts[i + n];
  }
  const Quarter q = parts[0];
  return max(max(q[0], q[2]), max(q[1], q[3]));
}

// exp(x), within 2 units in the last place; exactly 0 below -87.3 (so also at -infinity), large but finite above 88.
//
// exp(x) = 2^n exp(r), r = x - n ln 2, |r| <= ln 2 / 2; exp(r) by its Taylor polynomial of degree 7.
inline Vec exp(Vec x) {
  const Vec clamped = x < 88.0f ? x : splat(88.0f);
  const Vec magic = splat(0x1.8p23f);  // adding it rounds to an integer
  const Vec shifted = fma(0x1.715476p+0f, clamped, magic);
  const Vec n = shifted - magic;
  const Vec r = fma(-0x1.7f7d1cp-20f, n, fma(-0x1.62e4p-1f, n, clamped));
  constexpr float kFactors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Vec p = splat(1.0f / 5040);
  for (float factor : kFactors) p = fma(p, r, splat(factor));
  const IntVec exponent = bit_cast<IntVec>(shifted) << 23;  // the low bits of `shifted` are n
  const Vec result = bit_cast<Vec>(bit_cast<IntVec>(p) + exponent);
  return x < -87.3f ? Vec{} : result;
}

}  // namespace hocket::cpu::HOCKET_ISA
