#include "rms_norm.h"

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// residual += x; returns the sum of squares of the result.
float add_and_square(const float* x, float* residual, int64_t n) {
  Vec squares{};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = load(residual + i) + load(x + i);
    store(residual + i, v);
    squares += v * v;
  }
  if (i < n) {
    const Vec v = load_first(residual + i, n - i) + load_first(x + i, n - i);
    store_first(residual + i, v, n - i);
    squares += v * v;
  }
  return sum(squares);
}

float sum_of_squares(const float* x, int64_t n) {
  Vec even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const Vec a = load(x + i), b = load(x + i + kWidth);
    even += a * a;
    odd += b * b;
  }
  for (; i < n; i += kWidth) {
    const Vec v = i + kWidth <= n ? load(x + i) : load_first(x + i, n - i);
    even += v * v;
  }
  return sum(even + odd);
}

void scale(const float* x, const float* weight, float factor, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, load(x + i) * factor * load(weight + i));
  if (i < n) store_first(out + i, load_first(x + i, n - i) * factor * load_first(weight + i, n - i), n - i);
}

}  // namespace

Status rms_norm(const RmsNormArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  const int64_t n = args.hidden;
  const auto* weight = static_cast<const float*>(args.weight);

  parallel_ranges(args.num_outer * args.num_inner, 2 * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = static_cast<const float*>(args.x) + row / args.num_inner * args.outer_stride +
                       row % args.num_inner * args.inner_stride;
      float squares;
      if (args.residual != nullptr) {
        float* residual = static_cast<float*>(args.residual) + row * n;
        squares = add_and_square(x, residual, n);
        x = residual;
      } else {
        squares = sum_of_squares(x, n);
      }
      const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
      scale(x, weight, factor, static_cast<float*>(args.out) + row * n, n);
    }
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
