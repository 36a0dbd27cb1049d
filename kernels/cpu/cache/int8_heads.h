// Heads in int8, as the cache keeps them (base/paged_pool.h). Exact: the same bits whatever the instruction set.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr float kLeastOfHead = 1e-30f;  // a head whose largest element is below is zero: no number here is subnormal

inline float load_scale(const BFloat16* p) { return bit_cast<float>(static_cast<uint32_t>(p->bits) << 16); }

// The next bfloat16 that is not below x. REQUIRES: x is finite and not negative.
inline BFloat16 round_up_to_bfloat16(float x) {
  return {static_cast<uint16_t>((bit_cast<uint32_t>(x) + 0xffffu) >> 16)};
}

// n integers, to the nearest, ties to even.
inline void store_integers(const float* x, int64_t n, Vec inverse, int8_t* to) {
  const Vec magic = splat(12582912.0f);  // 1.5 x 2^23: adding it leaves the nearest integer in the lowest bits
  for (int64_t i = 0; i < n; i += kWidth) {
    const UintVec integers = bit_cast<UintVec>(load_up_to(x + i, n - i) * inverse + magic);
    if (i + kWidth <= n) {
      store_bytes(to + i, integers);
    } else {
      int8_t bytes[kWidth];
      store_bytes(bytes, integers);
      __builtin_memcpy(to + i, bytes, static_cast<size_t>(n - i));
    }
  }
}

// One head's integers; returns their scale, NaN where an element is not finite.
inline BFloat16 store_head(const float* x, int64_t head_dim, int8_t* to) {
  Vec most{}, spoiled{};  // spoiled: NaN where an element is not finite, else zero
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const Vec v = load_up_to(x + i, head_dim - i);
    most = max(most, max(v, -v));
    spoiled += v * 0.0f;
  }
  const float spoil = sum(spoiled), largest = max_lane(most);
  if (spoil != spoil || !(largest > kLeastOfHead)) {
    __builtin_memset(to, 0, static_cast<size_t>(head_dim));
    return {static_cast<uint16_t>(spoil != spoil ? 0x7fc0 : 0)};
  }
  const BFloat16 scale = round_up_to_bfloat16(largest / 127.0f);
  store_integers(x, head_dim, splat(1.0f / load_scale(&scale)), to);
  return scale;
}

inline void store_heads(const float* x, int64_t num_heads, int64_t head_dim, int8_t* to, BFloat16* scales) {
  for (int64_t h = 0; h < num_heads; ++h) scales[h] = store_head(x + h * head_dim, head_dim, to + h * head_dim);
}

}  // namespace hocket::cpu::HOCKET_ISA
