// Machine limits: what this machine can do at most, measured by loops that do nothing else, on the threads and
// instruction set that the CPU kernels use. The benchmarks hold every kernel against these.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hocket {

// Reads `bytes` (a multiple of 4096) at `data`, split over the threads; returns a value that depends on all of it.
float read_limit_cpu(const void* data, int64_t bytes);

// Operations (a multiply-add counts two) in about `rounds` rounds of independent multiply-adds per thread; returns how
// many were done. dtype: of what is multiplied: float32, bfloat16 (which means float32 where the instruction set has no
// such product) or kInt8Blocks (int8 by int8).
int64_t arithmetic_limit_cpu(int64_t rounds, DType dtype);

}  // namespace hocket
