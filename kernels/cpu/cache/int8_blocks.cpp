#include "cache/int8_blocks.h"

#include "cache/int8_heads.h"
#include "cache/paged.h"
#include "cache/rope_head.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// K or V of one block in one layer. to: as a layer of an int8 pool; vector: room for one.
template <class T>
void round_block(const T* from, const PagedPool& pool, float* vector, uint8_t* to) {
  const int64_t dim = pool.num_kv_heads * pool.head_dim;
  auto* integers = reinterpret_cast<int8_t*>(to);
  auto* scales = reinterpret_cast<BFloat16*>(to + pool.block_size * dim);
  for (int64_t i = 0; i < pool.block_size; ++i) {
    copy_row(from + i * dim, vector, dim);
    store_heads(vector, pool.num_kv_heads, pool.head_dim, integers + i * dim, scales + i * pool.num_kv_heads);
  }
}

// Layer by layer, so that the workspace holds one at a time.
template <class T>
Status run(const Int8BlocksArgs& args) {
  const PagedPool& pool = args.pool;
  const int64_t dim = pool.num_kv_heads * pool.head_dim, count = args.num_blocks * pool.num_groups * 2;
  const int64_t size = pool.block_size * (dim + pool.num_kv_heads * static_cast<int64_t>(sizeof(BFloat16)));
  auto* rounded = static_cast<uint8_t*>(args.workspace);  // [count][size]
  for (int64_t layer = 0; layer < pool.layers_per_unit; ++layer) {
    const T* from = static_cast<const T*>(pool.data) + layer * layer_size(pool);
    parallel_ranges(count, 4 * pool.block_size * dim, [&](int64_t begin, int64_t end) {
      float* vector = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(dim) * sizeof(float)));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t unit = args.from_units[i] * pool.layers_per_unit;
        round_block(from + unit * layer_size(pool), pool, vector, rounded + i * size);
      }
    });
    uint8_t* to = static_cast<uint8_t*>(pool.data) + layer * layer_bytes(pool);
    parallel_ranges(count, size / 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t unit = args.to_units[i / 2] * pool.layers_per_unit;
        uint8_t* half = to + unit * layer_bytes(pool) + i % 2 * (layer_bytes(pool) / 2);
        __builtin_memcpy(half, rounded + i * size, static_cast<size_t>(size));
      }
    });
  }
  return Status::kOk;
}

}  // namespace

Status int8_blocks(const Int8BlocksArgs& args) {
  return with_type(args.pool.dtype, [&](auto zero) { return run<decltype(zero)>(args); });
}

}  // namespace hocket::cpu::HOCKET_ISA
