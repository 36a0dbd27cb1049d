// linear: out = x weight^T + bias on CPU, the weight packed once at load.
//
// Packed layout, for a weight [N][K]. Its rows, the output columns, are grouped into panels of linear_panel_width()
// columns, N padded with zeros to whole panels, K to an even number. Panel p is contiguous and holds
//   float32:   [K][panel]         element (k, c) = weight[p * panel + c][k]
//   bfloat16:  [K / 2][panel][2]  element (k / 2, c, k % 2) = weight[p * panel + c][k]
//   int8:      as bfloat16, then [panel] float32: what the column's integers, -127 to 127, are multiplied by
//   int8 in blocks: for each kInt8Block values of k, the last may be fewer, K padded with zeros to a multiple of 4:
//              [k / 4][panel][4], then [panel] float32, by which the block's integers are multiplied
//   int4 in blocks: likewise of kInt4Block values, K padded to a multiple of 8: [k / 8][panel][4] bytes, of which the
//              lower half is the integer at k % 8 < 4 and the upper half the one four further, both -8 to 7 plus 8,
//              then [panel] float16
// so that a panel is read front to back, whatever the number of rows of x. Pairs of bfloat16 are what vdpbf16ps
// multiplies; without it, two bfloat16 in 32 bits become two float32 by a shift and a mask.
//
// Gated: the weight is two of the same size, gate and up, and out = silu(x gate^T) * (x up^T). The first half of each
// panel's columns are rows of the gate, the second half the same rows of up.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace hocket {

constexpr int64_t kInt8Block = 128;  // values of k with one scale
constexpr int64_t kInt4Block = 32;

struct LinearArgs {
  void* out;           // [num_tokens][out_features], strided rows
  const void* x;       // [num_tokens][in_features], strided rows
  const void* packed;  // see above, aligned to 64 bytes
  const float* bias;   // in the order of the packed columns, padded like these; or null
  int64_t num_tokens;
  int64_t in_features;
  int64_t out_features;  // of out: gated, half of the weight's rows
  int64_t x_stride;      // elements
  int64_t out_stride;    // elements
  int64_t panel_width;   // for which the weight was packed
  DType dtype;           // of the weight; float32, bfloat16, int8, or int8 or int4 in blocks
  DType x_dtype;         // float32, or bfloat16 where linear_input_dtype(dtype) is that
  DType out_dtype;       // float32 or bfloat16
  bool is_gated;
  bool is_added;  // out += the product, instead of out =; float32 only
};

// kWrongPacking where panel_width is not the current instruction set's.
//
// x and bfloat16 or int8 weights: where the instruction set multiplies bfloat16 (avx512_bf16, avx512_amx), x is rounded
// to bfloat16, to nearest even, and products are summed in float32; elsewhere the weights become float32 and x stays
// so. With float32 weights everything is float32. Weights in blocks meet x in int8, each block of kInt8Block values of
// a row being integers from -127 to 127 times a scale, to the nearest: products and sums are integers within a block,
// times both scales in float32, and blocks are summed in ascending order. kUnsupportedDType for bfloat16 x anywhere
// else.
Status linear_cpu(const LinearArgs& args);

// Columns of a panel under the current instruction set.
int64_t linear_panel_width();

}  // namespace hocket
