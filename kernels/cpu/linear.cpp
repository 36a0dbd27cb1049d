#include "linear.h"

#include "kernels.h"
#include "linear_bf16.h"
#include "linear_float.h"
#include "linear_product.h"
#include "parallel.h"
#include "simd.h"
#include "thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// Rows [begin, end) of x as bfloat16, each with zeros up to `stride`.
void convert_rows(const ProductInput& x, int64_t in_features, BFloat16* to, int64_t stride, int64_t begin,
                  int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    for (int64_t k = 0; k < stride; k += kWidth) {
      const int64_t left = in_features - k;
      store(to + row * stride + k, left > 0 ? load_up_to(from + k, left) : Vec{});
    }
  }
}

ProductInput to_bfloat16(const ProductInput& x, int64_t in_features) {
  const int64_t stride = round_up(in_features, 32) + 32;
  auto* rows = static_cast<BFloat16*>(
      scratch(Scratch::kActivations, static_cast<size_t>(x.num_rows * stride) * sizeof(BFloat16)));
  parallel_ranges(x.num_rows, stride / 2,
                  [&](int64_t begin, int64_t end) { convert_rows(x, in_features, rows, stride, begin, end); });
  return {rows, stride, x.num_rows, DType::kBFloat16};
}

}  // namespace

DType linear_input_dtype([[maybe_unused]] DType weight) {
#ifdef __AVX512BF16__
  if (weight == DType::kBFloat16) return DType::kBFloat16;
#endif
  return DType::kFloat32;
}

void linear_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                   int64_t end) {
  if (weight.dtype == DType::kFloat32) return FloatProduct<float>(weight, x, out).run(begin, end);
#ifdef __AVX512BF16__
  Bf16Product(weight, x, out).run(begin, end);
#else
  FloatProduct<BFloat16>(weight, x, out).run(begin, end);
#endif
}

void linear_product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out) {
  if (x.num_rows == 0) return;
  const bool is_ready = x.dtype == linear_input_dtype(weight.dtype);
  const ProductInput input = is_ready ? x : to_bfloat16(x, weight.in_features);
  parallel_ranges(num_panels(weight), weight.in_features * kPanel * x.num_rows / 4,
                  [&](int64_t begin, int64_t end) { linear_panels(weight, input, out, begin, end); });
}

Status linear(const LinearArgs& args) {
  if (args.panel_width != kPanel) return Status::kWrongPacking;
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kBFloat16) return Status::kUnsupportedDType;
  linear_product({args.packed, args.bias, args.in_features, args.out_features, args.dtype, args.is_gated},
                 {args.x, args.x_stride, args.num_tokens, DType::kFloat32},
                 {args.out, args.out_features, DType::kFloat32, false});
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
