#include "memory/block_pool.h"

#include "base/check.h"

namespace hocket {

BlockPool::BlockPool(int32_t num_units, int32_t units_per_block, int32_t compact_units_per_block)
    : units_per_block_(units_per_block), compact_units_per_block_(compact_units_per_block), pool_(num_units) {
  const int32_t num_records = num_units / (compact_units_per_block > 0 ? compact_units_per_block : units_per_block);
  units_.assign(static_cast<size_t>(num_records) * units_per_block, kNone);
  kind_.assign(num_records, CacheKind::kKv);
  is_free_.assign(num_records, 1);
  free_.resize(num_records);
  whole_.reserve(num_records);
  for (int32_t i = 0; i < num_records; ++i) free_[i] = num_records - 1 - i;
}

BlockId BlockPool::allocate(CacheKind kind) {
  if (kind == CacheKind::kKv && !whole_.empty()) {
    const BlockId block = whole_.back();
    whole_.pop_back();
    is_free_[block] = 0;
    __builtin_prefetch(&units_[static_cast<size_t>(block) * units_per_block_]);  // for the step's table changes
    return block;
  }
  while (!whole_.empty() && (free_.empty() || pool_.num_free() < units_of(kind))) break_one();
  if (free_.empty()) return kNone;
  const BlockId block = free_.back();
  kind_[block] = kind;
  if (!pool_.allocate(mutable_units(block))) return kNone;
  free_.pop_back();
  is_free_[block] = 0;
  return block;
}

// Its units may serve another kind.
void BlockPool::break_one() {
  const BlockId block = whole_.back();
  whole_.pop_back();
  pool_.release(units(block));
  free_.push_back(block);
}

void BlockPool::release(BlockId block) {
  HOCKET_CHECK(block >= 0 && block < num_blocks() && !is_free(block), "released a block that is not handed out");
  is_free_[block] = 1;
  if (kind(block) == CacheKind::kKv) {
    whole_.push_back(block);
    return;
  }
  pool_.release(units(block));
  free_.push_back(block);
}

void BlockPool::check_invariants() const {
  pool_.check_invariants();
  std::vector<uint8_t> owned(pool_.num_units(), 0);
  int32_t num_free_records = 0;
  int32_t num_owned = 0;
  std::vector<uint8_t> is_whole(num_blocks(), 0);
  for (const BlockId block : whole_) {
    HOCKET_CHECK(is_free(block) && kind(block) == CacheKind::kKv && !is_whole[block], "a wrong block keeps its units");
    is_whole[block] = 1;
  }
  for (BlockId block = 0; block < num_blocks(); ++block) {
    num_free_records += is_free_[block];
    if (is_free(block) && !is_whole[block]) continue;
    for (const UnitId unit : units(block)) {
      HOCKET_CHECK(!pool_.is_free(unit) && !owned[unit], "a block owns a unit that is free or another's");
      owned[unit] = 1;
      ++num_owned;
    }
  }
  HOCKET_CHECK(num_free_records == static_cast<int32_t>(free_.size() + whole_.size()),
               "free block marks differ from the free list");
  HOCKET_CHECK(num_owned + pool_.num_free() == pool_.num_units(), "free + owned units differ from the total");
}

}  // namespace hocket
