// One layer of the unit pool: where a token's vectors lie.
#pragma once

#include "base/paged_pool.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

enum Kind : int64_t { kKeys = 0, kValues = 1 };

// T: float, BFloat16 or Float16, or int8_t, whose heads have scales.
template <class T>
class PagedLayer {
 public:
  PagedLayer(const PagedPool& pool, int64_t layer)
      : block_size_(pool.block_size),
        row_size_(pool.num_groups * 2 * pool.max_blocks),
        kind_size_(pool.max_blocks),
        dim_(pool.num_kv_heads * pool.head_dim),
        num_heads_(pool.num_kv_heads),
        unit_size_(pool.layers_per_unit * layer_size(pool)),
        data_(static_cast<T*>(pool.data) + layer % pool.layers_per_unit * layer_size(pool)),
        table_(pool.block_table + layer / pool.layers_per_unit * 2 * pool.max_blocks) {}

  // The d_kv elements of one token.
  T* vector(int64_t row, Kind kind, int64_t position) const {
    const int64_t unit = table(row, kind)[position / block_size_];
    return data_ + unit * unit_size_ + position % block_size_ * dim_;
  }

  // The scales of that vector's heads, [num_kv_heads].
  BFloat16* scales(int64_t row, Kind kind, int64_t position) const {
    static_assert(sizeof(T) == 1);
    T* unit = data_ + table(row, kind)[position / block_size_] * unit_size_;
    return reinterpret_cast<BFloat16*>(unit + block_size_ * dim_) + position % block_size_ * num_heads_;
  }

  // to[i] = the scale of one head at position first + i, 0 <= i < n.
  void head_scales(int64_t row, Kind kind, int64_t head, int64_t first, int64_t n, float* to) const {
    const int32_t* units = table(row, kind) + first / block_size_;
    int64_t offset = first % block_size_;
    for (int64_t i = 0; i < n; offset = 0, ++units) {
      const T* unit = data_ + *units * unit_size_ + block_size_ * dim_;
      const BFloat16* from = reinterpret_cast<const BFloat16*>(unit) + offset * num_heads_ + head;
      for (; offset < block_size_ && i < n; ++offset, ++i, from += num_heads_) {
        to[i] = bit_cast<float>(static_cast<uint32_t>(from->bits) << 16);
      }
    }
  }

  // pointers[i] = vector(row, kind, first + i), 0 <= i < n.
  void vectors(int64_t row, Kind kind, int64_t first, int64_t n, const T** pointers) const {
    const int32_t* units = table(row, kind) + first / block_size_;
    int64_t offset = first % block_size_;
    for (int64_t i = 0; i < n; offset = 0, ++units) {
      const T* vector = data_ + *units * unit_size_ + offset * dim_;
      for (; offset < block_size_ && i < n; ++offset, ++i, vector += dim_) pointers[i] = vector;
    }
  }

 private:
  // Elements of a layer in a unit; those of scales are bytes.
  static int64_t layer_size(const PagedPool& pool) {
    const int64_t scales = sizeof(T) == 1 ? pool.num_kv_heads * static_cast<int64_t>(sizeof(BFloat16)) : 0;
    return pool.block_size * (pool.num_kv_heads * pool.head_dim + scales);
  }

  const int32_t* table(int64_t row, Kind kind) const { return table_ + row * row_size_ + kind * kind_size_; }

  int64_t block_size_;
  int64_t row_size_;   // of the block table
  int64_t kind_size_;  // of the block table
  int64_t dim_;
  int64_t num_heads_;
  int64_t unit_size_;
  T* data_;
  const int32_t* table_;
};

// One layer of the hidden cache.
template <class T>
class HiddenLayer {
 public:
  HiddenLayer(const PagedPool& pool, int64_t layer)
      : block_size_(pool.block_size),
        row_size_(pool.num_groups * 2 * pool.max_blocks),
        dim_(pool.num_kv_heads * pool.head_dim),
        unit_size_(pool.layers_per_unit * pool.block_size * dim_),
        data_(static_cast<T*>(pool.data) + layer % pool.layers_per_unit * pool.block_size * dim_),
        table_(pool.block_table + layer / pool.layers_per_unit * pool.max_blocks) {}

  // X of one token.
  T* vector(int64_t row, int64_t position) const {
    const int64_t unit = table_[row * row_size_ + position / block_size_];
    return data_ + unit * unit_size_ + position % block_size_ * dim_;
  }

 private:
  int64_t block_size_;
  int64_t row_size_;  // of the block table
  int64_t dim_;
  int64_t unit_size_;
  T* data_;
  const int32_t* table_;
};

}  // namespace hocket::cpu::HOCKET_ISA
