#include "block_pool.h"

#include "check.h"

namespace hocket {

BlockPool::BlockPool(int32_t num_units, int32_t units_per_block) : units_per_block_(units_per_block), pool_(num_units) {
  const int32_t num_blocks = num_units / units_per_block;
  units_.assign(static_cast<size_t>(num_blocks) * units_per_block, kNone);
  is_free_.assign(num_blocks, 1);
  free_.resize(num_blocks);
  for (int32_t i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;
}

BlockId BlockPool::allocate() {
  if (free_.empty()) return kNone;
  const BlockId block = free_.back();
  if (!pool_.allocate(mutable_units(block))) return kNone;
  free_.pop_back();
  is_free_[block] = 0;
  return block;
}

void BlockPool::release(BlockId block) {
  HOCKET_CHECK(block >= 0 && block < num_blocks() && !is_free(block), "released a block that is not handed out");
  pool_.release(units(block));
  is_free_[block] = 1;
  free_.push_back(block);
}

void BlockPool::check_invariants() const {
  pool_.check_invariants();
  std::vector<uint8_t> owned(pool_.num_units(), 0);
  int32_t num_free_records = 0;
  for (BlockId block = 0; block < num_blocks(); ++block) {
    num_free_records += is_free_[block];
    if (is_free(block)) continue;
    for (const UnitId unit : units(block)) {
      HOCKET_CHECK(!pool_.is_free(unit) && !owned[unit], "a block owns a unit that is free or another's");
      owned[unit] = 1;
    }
  }
  HOCKET_CHECK(num_free_records == num_free(), "free block marks differ from the free list");
  const int32_t num_owned = (num_blocks() - num_free()) * units_per_block_;
  HOCKET_CHECK(num_owned + pool_.num_free() == pool_.num_units(), "free + owned units differ from the total");
}

}  // namespace hocket
