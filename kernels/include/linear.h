// linear: out = x weight^T + bias on CPU, x in float32, the weight packed once at load.
//
// Packed layout, for a weight [N][K]. Its rows, the output columns, are grouped into panels of linear_panel_width()
// columns, N padded with zeros to whole panels, K to an even number. Panel p is contiguous and holds
//   float32:   [K][panel]         element (k, c) = weight[p * panel + c][k]
//   bfloat16:  [K / 2][panel][2]  element (k / 2, c, k % 2) = weight[p * panel + c][k]
// so that a panel is read front to back, whatever the number of rows of x. Two bfloat16 in 32 bits become two float32
// by a shift and a mask.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace hocket {

struct LinearArgs {
  float* out;          // [num_tokens][out_features], contiguous
  const float* x;      // [num_tokens][in_features], strided rows
  const void* packed;  // see above, aligned to 64 bytes
  const float* bias;   // [out_features], or null
  int64_t num_tokens;
  int64_t in_features;
  int64_t out_features;
  int64_t x_stride;     // elements
  int64_t panel_width;  // for which the weight was packed
  DType dtype;          // of the weight; float32 or bfloat16
};

// kWrongPacking where panel_width is not the current instruction set's.
Status linear_cpu(const LinearArgs& args);

// Columns of a panel under the current instruction set.
int64_t linear_panel_width();

}  // namespace hocket
