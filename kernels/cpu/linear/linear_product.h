// The product of linear.h inside one instruction set, for kernels that call it from C++ and hand over what the product
// reads and writes in the form that suits them.
//
// Results do not depend on company: out[row] is the same, bit for bit, whatever other rows are in the call, however the
// panels are divided, and for kAdd as for kStore plus an addition. The order of the sums over k is that of one row.
//
// Thread safety: linear_product() runs on the thread pool and returns when all is written. linear_panels() runs on the
// calling thread alone; calls for different panels may run at the same time.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "linear.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// Columns of a panel: two vectors.
constexpr int64_t kPanel = 2 * kWidth;

// A packed weight, not owned; the fields are those of LinearArgs.
struct PackedWeight {
  const void* panels;
  const float* bias;  // [num_panels][kPanel], or null
  int64_t in_features;
  int64_t out_features;
  DType dtype;
  bool is_gated;
};

// x, [num_rows][in_features], for linear_panels() at least one row. dtype float32, or linear_input_dtype() of the
// weight; or, for weights in blocks, kInt8Blocks: rows as int8_rows.h has them, with their stride in bytes. REQUIRES:
// where x is bfloat16 and in_features odd, one more element of each row is readable and zero.
struct ProductInput {
  const void* data;
  int64_t stride;  // elements, or bytes: see above
  int64_t num_rows;
  DType dtype;
};

// [num_rows][out_features]. dtype float32 or bfloat16, with is_added float32.
struct ProductOutput {
  void* data;
  int64_t stride;  // elements
  DType dtype;
  bool is_added;  // out += the product, instead of out =
};

// What the product reads without converting: bfloat16 where the instruction set multiplies bfloat16 and the weight is
// not float32, else float32. Whoever makes x for it writes this best at once.
DType linear_input_dtype(DType weight);

// Elements of T from one panel to the next.
template <class T>
constexpr int64_t panel_size(int64_t in_features) {
  const int64_t scales = sizeof(T) == 1 ? kPanel * static_cast<int64_t>(sizeof(float)) : 0;
  return round_up(in_features, 2) * kPanel + scales;
}

constexpr bool is_in_blocks(DType weight) { return weight == DType::kInt8Blocks || weight == DType::kInt4Blocks; }

// Bytes from one panel to the next. REQUIRES: is_in_blocks(weight).
constexpr int64_t panel_bytes(DType weight, int64_t in_features) {
  const bool is_int8 = weight == DType::kInt8Blocks;
  const int64_t values = is_int8 ? round_up(in_features, 4) : round_up(in_features, 8) / 2;
  const int64_t scales = is_int8 ? ceil_div(in_features, kInt8Block) * 4 : ceil_div(in_features, kInt4Block) * 2;
  return (values + scales) * kPanel;
}

inline int64_t num_panels(const PackedWeight& weight) {
  return ceil_div(weight.out_features, weight.is_gated ? kWidth : kPanel);
}

// All of it, on the thread pool. Converts x where its dtype is neither linear_input_dtype() nor kInt8Blocks.
void linear_product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out);

// Panels [begin, end) for all rows, on this thread. out.data is where column 0 is, whatever `begin`.
// REQUIRES: x.dtype is linear_input_dtype(weight.dtype).
void linear_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                   int64_t end);

}  // namespace hocket::cpu::HOCKET_ISA
