// Takes the place of kernels/cuda/launch.cuh in the emulated build: same names, blocks run on the CPU.
#pragma once

#include <cuda_runtime.h>

#include "emulation.h"
//
#include <algorithm>
#include <cstddef>

#include "base/dtype.h"
#include "base/status.h"
#include "vector.cuh"

namespace hocket::cuda {

inline unsigned char* block_memory() { return emulation::block->memory.data(); }

inline int num_processors() { return 4; }  // few, so that long sequences are split

template <class... Params, class... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t block_memory_bytes, void*, Args... args) {
  emulation::run_grid(grid, block, block_memory_bytes, [&] { kernel(args...); });
  return Status::kOk;
}

inline void wait_for_predecessors() {}
inline void let_successor_begin() {}
inline void begin_early() {}

template <class... Params, class... Args>
Status launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, size_t block_memory_bytes, void* stream,
                    Args... args) {
  return launch(kernel, grid, block, block_memory_bytes, stream, args...);
}

template <class Fn>
Status with_type(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn(float{});
    case DType::kBFloat16:
      return fn(__nv_bfloat16{});
    case DType::kFloat16:
      return fn(__half{});
    case DType::kInt8:
    case DType::kInt8Blocks:
    case DType::kInt4Blocks:
      break;
  }
  return Status::kUnsupportedDType;
}

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace hocket::cuda
