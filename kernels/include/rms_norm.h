// rms_norm: out = x * weight / sqrt(mean(x^2) + eps), over the last dimension.
//
// With a residual (add_rms_norm): residual += x, then the norm of residual. Sums are in float32.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace hocket {

// Rows are addressed by two indices, so that the heads of a fused projection need no copy: row (i, j) of x begins at
// i * outer_stride + j * inner_stride. Strides are in elements.
struct RmsNormArgs {
  void* out;           // [num_outer][num_inner][hidden], contiguous
  const void* x;       // [num_outer][num_inner][hidden], strided rows
  const void* weight;  // [hidden]
  void* residual;      // [num_outer * num_inner][hidden], contiguous, updated in place; or null
  int64_t num_outer;
  int64_t num_inner;
  int64_t hidden;
  int64_t outer_stride;
  int64_t inner_stride;
  float eps;
  DType dtype;  // of x, weight, residual and out; float32 on CPU
};

Status rms_norm_cpu(const RmsNormArgs& args);
Status rms_norm_cuda(const RmsNormArgs& args, void* stream);

}  // namespace hocket
