// Blocks: spans of block_size tokens with the units that hold their vectors.
//
// A block record names the units of one block over all layer groups, in the order of the worker's table:
// units(b)[group * 2 + kind], K = 0, V = 1; a block of a compact kind has one per group, units(b)[group]. The
// record is what the prefix cache and the block tables pass around; the units are what takes memory, and any unit
// serves any kind.
//
// A KV block that is released keeps its units for the next KV block, which then costs nothing per unit, until another
// kind needs them.
//
// Invariants: a record is handed out and owns units_of(kind) units of the pool, or is free and has none, or all of a KV
// block.
// Thread safety: none. No allocation after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cache_form.h"
#include "base/ids.h"
#include "memory/unit_pool.h"

namespace hocket {

class BlockPool {
 public:
  // compact_units_per_block: 0 if there is no kind but KV. REQUIRES: 0 <= it < units_per_block, units_per_block
  // >= 1.
  BlockPool(int32_t num_units, int32_t units_per_block, int32_t compact_units_per_block = 0);

  // A block of the caller's, or kNone if no memory is free.
  BlockId allocate(CacheKind kind = CacheKind::kKv);

  // REQUIRES: `block` was handed out by allocate() and has not been released since.
  void release(BlockId block);

  std::span<const UnitId> units(BlockId block) const {
    return {units_.data() + static_cast<size_t>(block) * units_per_block_, static_cast<size_t>(units_of(kind(block)))};
  }
  CacheKind kind(BlockId block) const { return kind_[block]; }
  bool is_free(BlockId block) const { return is_free_[block] != 0; }
  int32_t num_blocks() const { return static_cast<int32_t>(is_free_.size()); }    // records
  int32_t num_kv_blocks() const { return pool_.num_units() / units_per_block_; }  // that the pool holds
  int32_t num_free() const { return num_free_units() / units_per_block_; }        // KV blocks that could be allocated
  int32_t num_free_units() const { return pool_.num_free() + static_cast<int32_t>(whole_.size()) * units_per_block_; }
  int32_t units_per_block() const { return units_per_block_; }  // of KV
  int32_t compact_units_per_block() const { return compact_units_per_block_; }
  int32_t units_of(CacheKind kind) const {
    return kind == CacheKind::kKv ? units_per_block_ : compact_units_per_block_;
  }
  int32_t num_units() const { return pool_.num_units(); }

  // Throws CoreError on the first broken invariant. O(num_units).
  void check_invariants() const;

 private:
  void break_one();

  std::span<UnitId> mutable_units(BlockId block) {
    return {units_.data() + static_cast<size_t>(block) * units_per_block_, static_cast<size_t>(units_of(kind(block)))};
  }

  const int32_t units_per_block_;
  const int32_t compact_units_per_block_;
  UnitPool pool_;
  std::vector<UnitId> units_;     // [num_blocks][units_per_block]
  std::vector<CacheKind> kind_;   // by block
  std::vector<BlockId> free_;     // records without units, a stack
  std::vector<BlockId> whole_;    // free KV blocks that keep their units for the next one, a stack
  std::vector<uint8_t> is_free_;  // by block
};

}  // namespace hocket
