// Some warps of a block, side by side with others, and how many such blocks a processor holds.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "launch.cuh"

namespace hocket::cuda {

struct PartOfBlock {
  static constexpr int kLeastWarps = 1;
  int first_warp;
  int num_warps;
  int barrier;  // nobody else's, and not 0, which is __syncthreads()'s

  __device__ int num_threads() const { return num_warps * 32; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) - first_warp * 32; }
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(num_threads()) : "memory"); }
};

// Blocks of the kernel that run on one processor at a time, at least 1.
template <class... Params>
int blocks_per_processor(void (*kernel)(Params...), int num_threads, size_t block_memory_bytes) {
  int blocks = 0;
  if (!allow_memory(kernel, block_memory_bytes)) return 1;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, num_threads, block_memory_bytes) != cudaSuccess) {
    return 1;
  }
  return blocks < 1 ? 1 : blocks;
}

}  // namespace hocket::cuda
