#include "rms_norm.h"

#include "kernels.h"
#include "norm_row.h"
#include "simd.h"
#include "threads/parallel.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

void add_row(const float* x, float* residual, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(residual + i, load(residual + i) + load(x + i));
  if (i < n) store_first(residual + i, load_first(residual + i, n - i) + load_first(x + i, n - i), n - i);
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
      if (args.residual != nullptr) {
        float* residual = static_cast<float*>(args.residual) + row * n;
        add_row(x, residual, n);
        x = residual;
      }
      norm_row(x, weight, n, args.eps, static_cast<float*>(args.out) + row * n);
    }
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
