// Takes the place of bench/proofs/recompute_decode/part_of_block.cuh in the emulated build.
#pragma once

#include <cstddef>

#include "launch.cuh"

namespace hocket::cuda {

struct PartOfBlock {
  static constexpr int kLeastWarps = 1;
  int first_warp;
  int num_warps;
  int barrier;

  int num_threads() const { return num_warps * 32; }
  int thread() const { return static_cast<int>(threadIdx.x) - first_warp * 32; }
  void sync() const { emulation::sync_warps(barrier, num_threads()); }
};

template <class... Params>
int blocks_per_processor(void (*)(Params...), int, size_t) {
  return 1;
}

}  // namespace hocket::cuda
