// Element types of the tensors that kernels read and write.
#pragma once

#include <cstdint>

namespace hocket {

// The values are part of the Python binding (worker/ops). Weights of products may be kInt8, a scale per column, or in
// blocks (linear.h); the cache may be kInt8, a scale per head (paged_pool.h).
enum class DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kInt8 = 3, kInt8Blocks = 4, kInt4Blocks = 5 };

// Storage only; arithmetic is done in float32.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

}  // namespace hocket
