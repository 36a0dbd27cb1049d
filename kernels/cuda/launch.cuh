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

// Until all that was launched before has ended and can be read. A kernel of launch_early() does this first of all, in
// every block, or those behind it would not wait for those before it.
__device__ inline void wait_for_predecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From when all blocks have said this (or have ended), those of the next kernel may take their places, and wait there.
__device__ inline void let_successor_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void begin_early() {
  let_successor_begin();
  wait_for_predecessors();
}

// Whether devices launch blocks of a kernel before the one before it has ended. A process has devices of one kind.
inline bool can_launch_early() {
  static const bool can = [] {
    int device = 0, major = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return can;
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

// launch() of a kernel that calls wait_for_predecessors(): on newer devices its blocks are there when the kernel before
// it ends, instead of about a microsecond later.
template <class... Params, class... Args>
Status launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, size_t block_memory_bytes, void* stream,
                    Args... args) {
  if (!can_launch_early()) return launch(kernel, grid, block, block_memory_bytes, stream, args...);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Status::kOk;
  if (!allow_memory(kernel, block_memory_bytes)) return Status::kDeviceError;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = block_memory_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? Status::kOk : Status::kDeviceError;
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
