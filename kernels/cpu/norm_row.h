// One row of rms_norm.h, for kernels that call it from C++: the result in the dtype that suits them.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

inline float sum_of_squares(const float* x, int64_t n) {
  Vec even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const Vec a = load(x + i), b = load(x + i + kWidth);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < n; i += kWidth) {
    const Vec v = load_up_to(x + i, n - i);
    even = fma(v, v, even);
  }
  return sum(even + odd);
}

// x, weight and out have n elements; out may be x.
template <class To>
inline void norm_row(const float* x, const float* weight, int64_t n, float eps, To* out) {
  const float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, load(x + i) * factor * load(weight + i));
  if (i < n) store_first(out + i, load_first(x + i, n - i) * factor * load_first(weight + i, n - i), n - i);
}

}  // namespace hocket::cpu::HOCKET_ISA
