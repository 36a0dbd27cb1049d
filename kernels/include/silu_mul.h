// silu_mul: out = silu(gate) * up, silu(x) = x / (1 + exp(-x)), in float32.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace hocket {

struct SiluMulArgs {
  void* out;            // [num_tokens][intermediate], contiguous
  const void* gate_up;  // [num_tokens][2 * intermediate], contiguous; gate first
  int64_t num_tokens;
  int64_t intermediate;
  DType dtype;  // float32 on CPU
};

Status silu_mul_cpu(const SiluMulArgs& args);
Status silu_mul_cuda(const SiluMulArgs& args, void* stream);

}  // namespace hocket
