// One layer of the unit pool on the device: where a token's vectors lie.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/paged_pool.h"

namespace hocket::cuda {

enum Kind : int { kKeys = 0, kValues = 1 };

// The start of the d_kv elements of one token. See paged_pool.h.
template <class T>
__device__ T* paged_vector(const PagedPool& pool, int64_t layer, int row, Kind kind, int position) {
  const int block_size = static_cast<int>(pool.block_size);
  const int64_t dim = pool.num_kv_heads * pool.head_dim;
  const int64_t group = layer / pool.layers_per_unit;
  const int32_t* table = pool.block_table + ((row * pool.num_groups + group) * 2 + kind) * pool.max_blocks;
  const int64_t unit = table[position / block_size];
  const int64_t offset =
      (unit * pool.layers_per_unit + layer % pool.layers_per_unit) * block_size + position % block_size;
  return static_cast<T*>(pool.data) + offset * dim;
}

// The start of one token's X.
template <class T>
__device__ T* hidden_vector(const PagedPool& pool, int64_t layer, int row, int position) {
  const int block_size = static_cast<int>(pool.block_size);
  const int64_t dim = pool.num_kv_heads * pool.head_dim;
  const int64_t group = layer / pool.layers_per_unit;
  const int32_t* table = pool.block_table + (row * pool.num_groups * 2 + group) * pool.max_blocks;
  const int64_t unit = table[position / block_size];
  const int64_t offset =
      (unit * pool.layers_per_unit + layer % pool.layers_per_unit) * block_size + position % block_size;
  return static_cast<T*>(pool.data) + offset * dim;
}

}  // namespace hocket::cuda
