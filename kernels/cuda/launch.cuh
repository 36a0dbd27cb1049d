// From a launcher's arguments to a kernel on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "base/dtype.h"
#include "base/status.h"
#include "vector.cuh"

namespace hocket::cuda {

// Memory of the block, as much as the launch asked for.
__device__ inline unsigned char* block_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

inline int num_processors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return count;
}

template <class... Params>
bool allow_memory(void (*kernel)(Params...), size_t block_memory_bytes) {
  if (block_memory_bytes <= 48 * 1024) return true;
  const int bytes = static_cast<int>(block_memory_bytes);
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess;
}

template <class... Params, class... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t block_memory_bytes, void* stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Status::kOk;
  if (!allow_memory(kernel, block_memory_bytes)) return Status::kDeviceError;
  kernel<<<grid, block, block_memory_bytes, static_cast<cudaStream_t>(stream)>>>(args...);
  return cudaGetLastError() == cudaSuccess ? Status::kOk : Status::kDeviceError;
}

// fn(T{}) with the type that dtype names.
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
