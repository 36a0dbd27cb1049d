#include "memory/block_pool.h"

#include <set>

#include "base/check.h"
#include "testing.h"

namespace hocket {
namespace {

TEST(block_pool, a_block_owns_units_of_its_own) {
  BlockPool pool(/*num_units=*/12, /*units_per_block=*/4);
  std::set<UnitId> units;
  for (int i = 0; i < 3; ++i) {
    const BlockId block = pool.allocate();
    CHECK(block != kNone);
    CHECK_EQ(pool.units(block).size(), 4);
    units.insert(pool.units(block).begin(), pool.units(block).end());
  }
  CHECK_EQ(units.size(), 12);
  CHECK_EQ(pool.allocate(), kNone);
  pool.check_invariants();
}

TEST(block_pool, units_that_make_no_whole_block_stay_free) {
  BlockPool pool(11, 4);
  CHECK_EQ(pool.num_blocks(), 2);
  CHECK(pool.allocate() != kNone);
  CHECK(pool.allocate() != kNone);
  CHECK_EQ(pool.allocate(), kNone);
  CHECK_EQ(pool.num_free_units(), 3);
  pool.check_invariants();
}

TEST(block_pool, a_released_block_gives_its_units_back) {
  BlockPool pool(8, 4);
  const BlockId block = pool.allocate();
  pool.release(block);
  CHECK_EQ(pool.num_free(), 2);
  CHECK_EQ(pool.num_free_units(), 8);
  CHECK_THROWS(pool.release(block), CoreError);
  pool.check_invariants();
}

TEST(block_pool, a_hidden_block_takes_fewer_units_of_the_same_pool) {
  BlockPool pool(/*num_units=*/12, /*units_per_block=*/4, /*hidden_units_per_block=*/2);
  CHECK_EQ(pool.num_blocks(), 6);  // records
  CHECK_EQ(pool.num_kv_blocks(), 3);
  const BlockId kv = pool.allocate();
  const BlockId hidden = pool.allocate(CacheKind::kHidden);
  CHECK_EQ(pool.units(kv).size(), 4);
  CHECK_EQ(pool.units(hidden).size(), 2);
  CHECK(pool.kind(kv) == CacheKind::kKv && pool.kind(hidden) == CacheKind::kHidden);
  CHECK_EQ(pool.num_free_units(), 6);
  CHECK_EQ(pool.num_free(), 1);
  pool.check_invariants();
}

TEST(block_pool, the_kinds_fill_the_pool_together) {
  BlockPool pool(12, 4, 2);
  std::set<UnitId> units;
  for (const CacheKind kind : {CacheKind::kHidden, CacheKind::kKv, CacheKind::kHidden, CacheKind::kKv}) {
    const BlockId block = pool.allocate(kind);
    CHECK(block != kNone);
    units.insert(pool.units(block).begin(), pool.units(block).end());
  }
  CHECK_EQ(units.size(), 12);
  CHECK_EQ(pool.allocate(CacheKind::kHidden), kNone);
  CHECK_EQ(pool.allocate(CacheKind::kKv), kNone);
  pool.check_invariants();
}

TEST(block_pool, what_is_too_little_for_one_kind_may_do_for_the_other) {
  BlockPool pool(6, 4, 2);
  CHECK(pool.allocate() != kNone);
  CHECK_EQ(pool.allocate(), kNone);
  CHECK(pool.allocate(CacheKind::kHidden) != kNone);
  pool.check_invariants();
}

TEST(block_pool, units_that_a_released_block_keeps_serve_another_kind_when_no_others_do) {
  BlockPool pool(8, 4, 1);
  const BlockId first = pool.allocate();
  const BlockId second = pool.allocate();
  pool.release(first);
  CHECK_EQ(pool.num_free_units(), 4);
  for (int i = 0; i < 4; ++i) CHECK(pool.allocate(CacheKind::kHidden) != kNone);
  CHECK_EQ(pool.allocate(CacheKind::kHidden), kNone);
  CHECK_EQ(pool.num_free_units(), 0);
  pool.check_invariants();
  pool.release(second);
  CHECK_EQ(pool.num_free(), 1);
  CHECK_EQ(pool.allocate(), second);
  pool.check_invariants();
}

TEST(block_pool, a_record_serves_either_kind_in_turn) {
  BlockPool pool(4, 4, 1);
  const BlockId hidden = pool.allocate(CacheKind::kHidden);
  pool.release(hidden);
  CHECK_EQ(pool.num_free_units(), 4);
  const BlockId kv = pool.allocate(CacheKind::kKv);
  CHECK_EQ(kv, hidden);
  CHECK_EQ(pool.units(kv).size(), 4);
  CHECK_EQ(pool.allocate(CacheKind::kHidden), kNone);
  pool.release(kv);
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < 4; ++i) blocks.push_back(pool.allocate(CacheKind::kHidden));
  CHECK(std::ranges::count(blocks, kNone) == 0);
  pool.check_invariants();
}

}  // namespace
}  // namespace hocket
