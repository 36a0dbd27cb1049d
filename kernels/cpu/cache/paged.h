// One layer of the unit pool: where a token's vectors lie.
#pragma once

#include "base/paged_pool.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

enum Kind : int64_t { kKeys = 0, kValues = 1 };

// Elements of a layer in a unit.
inline int64_t layer_size(const PagedPool& pool) { return pool.block_size * pool.vector_size; }

inline int64_t layer_bytes(const PagedPool& pool) {
  const int64_t element = pool.dtype == DType::kInt8 ? 1 : pool.dtype == DType::kFloat32 ? 4 : 2;
  return layer_size(pool) * element;
}

inline bool is_int8_row(const PagedPool& pool, int64_t row) {
  return pool.int8_rows != nullptr && pool.int8_rows[row] != 0;
}

// T: float, BFloat16 or Float16, or int8_t, whose heads have scales.
template <class T>
class PagedLayer {
 public:
  PagedLayer(const PagedPool& pool, int64_t layer)
      : block_size_(pool.block_size),
        row_size_(pool.num_groups * 2 * pool.max_blocks),
        kind_size_(pool.max_blocks),
        kind_offset_(0),
        dim_(pool.num_kv_heads * pool.head_dim),
        num_heads_(pool.num_kv_heads),
        unit_size_(pool.layers_per_unit * layer_size(pool)),
        data_(static_cast<T*>(pool.data) + layer % pool.layers_per_unit * layer_size(pool)),
        table_(pool.block_table + layer / pool.layers_per_unit * 2 * pool.max_blocks) {}

  // Of the rows in int8 of a pool that is not. REQUIRES: block_size * d_kv is even, for the scales behind that.
  static PagedLayer of_int8_rows(const PagedPool& pool, int64_t layer) {
    static_assert(sizeof(T) == 1);
    PagedLayer rows(pool, layer);
    rows.kind_size_ = 0;
    rows.kind_offset_ = layer_bytes(pool) / 2;
    rows.unit_size_ = pool.layers_per_unit * layer_bytes(pool);
    rows.data_ = static_cast<T*>(pool.data) + layer % pool.layers_per_unit * layer_bytes(pool);
    rows.table_ = pool.block_table + layer / pool.layers_per_unit * pool.max_blocks;
    return rows;
  }

  // The d_kv elements of one token.
  T* vector(int64_t row, Kind kind, int64_t position) const {
    return block(table(row, kind)[position / block_size_], kind) + position % block_size_ * dim_;
  }

  // The scales of that vector's heads, [num_kv_heads].
  BFloat16* scales(int64_t row, Kind kind, int64_t position) const {
    static_assert(sizeof(T) == 1);
    T* vectors = block(table(row, kind)[position / block_size_], kind);
    return reinterpret_cast<BFloat16*>(vectors + block_size_ * dim_) + position % block_size_ * num_heads_;
  }

  // to[i] = the scale of one head at position first + i, 0 <= i < n.
  void head_scales(int64_t row, Kind kind, int64_t head, int64_t first, int64_t n, float* to) const {
    const int32_t* units = table(row, kind) + first / block_size_;
    int64_t offset = first % block_size_;
    for (int64_t i = 0; i < n; offset = 0, ++units) {
      const T* behind = block(*units, kind) + block_size_ * dim_;
      const BFloat16* from = reinterpret_cast<const BFloat16*>(behind) + offset * num_heads_ + head;
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
      const T* vector = block(*units, kind) + offset * dim_;
      for (; offset < block_size_ && i < n; ++offset, ++i, vector += dim_) pointers[i] = vector;
    }
  }

 private:
  T* block(int64_t unit, Kind kind) const { return data_ + unit * unit_size_ + kind * kind_offset_; }
  const int32_t* table(int64_t row, Kind kind) const { return table_ + row * row_size_ + kind * kind_size_; }

  int64_t block_size_;
  int64_t row_size_;     // of the block table
  int64_t kind_size_;    // of the block table
  int64_t kind_offset_;  // within a layer
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
        unit_size_(pool.layers_per_unit * layer_size(pool)),
        data_(static_cast<T*>(pool.data) + layer % pool.layers_per_unit * layer_size(pool)),
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
