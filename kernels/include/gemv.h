// gemv: out = x @ weight^T + bias for a few rows of x, products and sums in float32. On CUDA only: there libraries are
// made for many rows. On CPU see linear.h.
//
// is_gated: gate above up in the weight, out = silu(gate) * up.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace hocket {

constexpr int64_t kMaxGemvRows = 4;

struct GemvArgs {
  void* out;           // [num_rows][out_features], contiguous
  const void* x;       // [num_rows][in_features], rows strided
  const void* weight;  // [out_features][in_features], gated twice as many rows, contiguous; not written by what the
                       // stream has not yet done
  const void* bias;    // [out_features], gated twice as many; or null
  int64_t num_rows;    // in [0, kMaxGemvRows]
  int64_t in_features;
  int64_t out_features;
  int64_t x_stride;  // elements
  bool is_gated;
  DType dtype;  // of all: one of 16 bits
};

// x, weight, x_stride and in_features: 16 bytes or a multiple, or Status::kUnsupportedShape.
Status gemv_cuda(const GemvArgs& args, void* stream);

}  // namespace hocket
