// Takes the place of kernels/cuda/launch.cuh in the emulated build: same names, blocks run on the CPU.
#pragma once

#include <cuda_runtime.h>

#include "emulation.h"
//
#include <algorithm>
#include <cstddef>

#include "dtype.h"
#include "status.h"
#include "vector.cuh"

namespace hocket::cuda {

inline unsigned char* block_memory() { return emulation::block->memory.data(); }

inline void sync_warps(int barrier, int num_threads) { emulation::sync_warps(barrier, num_threads); }
inline Status order(void*, void*) { return Status::kOk; }
inline int num_processors() { return 4; }  // few, so that long sequences are split

template <class... Params>
int blocks_per_processor(void (*)(Params...), int, size_t) {
  return 1;
}

template <class... Params, class... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t block_memory_bytes, void*, Args... args) {
  emulation::run_grid(grid, block, block_memory_bytes, [&] { kernel(args...); });
  return Status::kOk;
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
      break;
  }
  return Status::kUnsupportedDType;
}

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace hocket::cuda
