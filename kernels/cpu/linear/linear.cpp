#include "linear.h"

#include "cpu.h"
#include "kernels.h"
#include "linear/linear_bf16.h"
#include "linear/linear_bf16_amx.h"
#include "linear/linear_float.h"
#include "linear/linear_int8.h"
#include "linear/linear_product.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// Rows [begin, end) of x as bfloat16, padded with zeros to whole vectors.
void convert_rows(const ProductInput& x, int64_t in_features, BFloat16* to, int64_t stride, int64_t begin,
                  int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    for (int64_t k = 0; k < in_features; k += kWidth) {
      store_rounded(to + row * stride + k, load_up_to(from + k, in_features - k));
    }
  }
}

ProductInput to_bfloat16(const ProductInput& x, int64_t in_features) {
  const int64_t stride = round_up(in_features, 64) + 32;  // an odd number of cache lines: rows share no cache set
  auto* rows = static_cast<BFloat16*>(
      scratch(Scratch::kActivations, static_cast<size_t>(x.num_rows * stride) * sizeof(BFloat16)));
  parallel_ranges(x.num_rows, stride / 2,
                  [&](int64_t begin, int64_t end) { convert_rows(x, in_features, rows, stride, begin, end); });
  return {rows, stride, x.num_rows, DType::kBFloat16};
}

// x as panels of that weight take it.
ProductInput converted(const ProductInput& x, const PackedWeight& weight) {
  if (x.dtype == DType::kInt8Blocks) return x;
  if (is_in_blocks(weight.dtype)) return to_int8_rows(x, weight.in_features);
  return x.dtype == linear_input_dtype(weight.dtype) ? x : to_bfloat16(x, weight.in_features);
}

int64_t panels_together([[maybe_unused]] DType weight, [[maybe_unused]] int64_t num_rows) {
  if (is_in_blocks(weight)) return int8_panels_together(num_rows);
#ifdef __AVX512BF16__
  if (weight != DType::kFloat32) return uses_amx() ? AmxBf16Product<BFloat16>::panels_together(num_rows) : 1;
#endif
  return FloatProduct<float>::panels_together(num_rows);
}

}  // namespace

DType linear_input_dtype([[maybe_unused]] DType weight) {
#ifdef __AVX512BF16__
  if (weight == DType::kBFloat16 || weight == DType::kInt8) return DType::kBFloat16;
#endif
  return DType::kFloat32;
}

void linear_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                   int64_t end) {
  if (is_in_blocks(weight.dtype)) return int8_panels(weight, x, out, begin, end);
  if (weight.dtype == DType::kFloat32) return FloatProduct<float>(weight, x, out).run(begin, end);
#ifdef __AVX512BF16__
  if (uses_amx()) {
    if (weight.dtype == DType::kInt8) return AmxBf16Product<int8_t>(weight, x, out).run(begin, end);
    return AmxBf16Product<BFloat16>(weight, x, out).run(begin, end);
  }
  if (weight.dtype == DType::kInt8) return Bf16Product<int8_t>(weight, x, out).run(begin, end);
  Bf16Product<BFloat16>(weight, x, out).run(begin, end);
#else
  if (weight.dtype == DType::kInt8) return FloatProduct<int8_t>(weight, x, out).run(begin, end);
  FloatProduct<BFloat16>(weight, x, out).run(begin, end);
#endif
}

namespace {

// Of what the stride counts.
int64_t element_bytes(const ProductInput& x) {
  return x.dtype == DType::kFloat32 ? 4 : x.dtype == DType::kBFloat16 ? 2 : 1;
}

// Rows of x that are multiplied with all panels before the next ones: as many as stay in a core's cache with a panel,
// but never so few that cores wait for a weight that is in memory.
int64_t rows_together(const ProductInput& x, const PackedWeight& weight) {
  int64_t most = x.num_rows, group = 1;
  if (x.dtype == DType::kFloat32 && kWidth == 8) {  // elsewhere it brings nothing (int8), or was not measured
    group = 12;
    most = max(256 * 1024 / (weight.in_features * 4) / group, int64_t{2}) * group;
  }
#ifdef __AVX512BF16__
  if (uses_amx() && weight.dtype != DType::kFloat32) {
    group = 2 * kTileSize;
    most = max(896 * 1024 / (x.stride * element_bytes(x)) / group, int64_t{2}) * group;
  }
#endif
  return round_up(ceil_div(x.num_rows, ceil_div(x.num_rows, most)), group);
}

// Rows from `begin` on.
ProductInput some_rows(const ProductInput& x, int64_t begin, int64_t end) {
  return {static_cast<const int8_t*>(x.data) + begin * x.stride * element_bytes(x), x.stride, end - begin, x.dtype};
}

ProductOutput some_rows(const ProductOutput& out, int64_t begin) {
  const int64_t size = out.dtype == DType::kFloat32 ? 4 : 2;
  return {static_cast<int8_t*>(out.data) + begin * out.stride * size, out.stride, out.dtype, out.is_added};
}

void multiply_all(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out) {
  const int64_t n = num_panels(weight);
  int64_t together = panels_together(weight.dtype, x.num_rows);
  while (together > 1 && ceil_div(n, together) < num_threads()) together /= 2;  // some work for everybody first
  // Some 2 us of one thread, in products; reading a weight takes as long as using it for eight rows.
  constexpr int64_t kWorthAThread = 1 << 20;
  if (n * kPanel * weight.in_features * (x.num_rows + 8) < kWorthAThread) return linear_panels(weight, x, out, 0, n);
  parallel_stretches(ceil_div(n, together),
                     [&](int64_t i) { linear_panels(weight, x, out, i * together, min(n, (i + 1) * together)); });
}

}  // namespace

void linear_product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out) {
  if (x.num_rows == 0) return;
  const ProductInput input = converted(x, weight);
  const int64_t together = rows_together(input, weight);
  for (int64_t row = 0; row < x.num_rows; row += together) {
    multiply_all(weight, some_rows(input, row, min(row + together, x.num_rows)), some_rows(out, row));
  }
}

Status linear(const LinearArgs& args) {
  if (args.panel_width != kPanel) return Status::kWrongPacking;
  const bool has_weight = args.dtype != DType::kFloat16;
  const bool has_x = args.x_dtype == DType::kFloat32 || args.x_dtype == linear_input_dtype(args.dtype);
  const bool has_out = args.out_dtype == DType::kFloat32 || (args.out_dtype == DType::kBFloat16 && !args.is_added);
  if (!has_weight || !has_x || !has_out) return Status::kUnsupportedDType;
  linear_product({args.packed, args.bias, args.in_features, args.out_features, args.dtype, args.is_gated},
                 {args.x, args.x_stride, args.num_tokens, args.x_dtype},
                 {args.out, args.out_stride, args.out_dtype, args.is_added});
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
