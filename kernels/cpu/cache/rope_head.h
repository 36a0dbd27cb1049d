// The rotation of one head (rope_kv_write.h), and copies that change the dtype.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

template <class From, class To>
inline void copy_row(const From* from, To* to, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(to + i, load(from + i));
  if (i < n) store_first(to + i, load_first(from + i, n - i), n - i);
}

// One head, from `x` to `to` (which may be x). cos and sin have `half` elements each.
template <class To>
inline void rotate_head(const float* x, const float* cos, const float* sin, int64_t half, int64_t head_dim, To* to) {
  int64_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(to + i, fma(a, c, -(b * s)));
    store(to + half + i, fma(b, c, a * s));
  }
  if (i < half) {
    const int64_t n = half - i;
    const Vec a = load_first(x + i, n), b = load_first(x + half + i, n);
    const Vec c = load_first(cos + i, n), s = load_first(sin + i, n);
    store_first(to + i, fma(a, c, -(b * s)), n);
    store_first(to + half + i, fma(b, c, a * s), n);
  }
  if (static_cast<const void*>(x) != to) copy_row(x + 2 * half, to + 2 * half, head_dim - 2 * half);
}

}  // namespace hocket::cpu::HOCKET_ISA
