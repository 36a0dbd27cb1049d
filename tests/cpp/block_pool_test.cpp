#include "block_pool.h"

#include <set>

#include "check.h"
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
  CHECK_EQ(pool.unit_pool().num_free(), 3);
  pool.check_invariants();
}

TEST(block_pool, a_released_block_gives_its_units_back) {
  BlockPool pool(8, 4);
  const BlockId block = pool.allocate();
  pool.release(block);
  CHECK_EQ(pool.num_free(), 2);
  CHECK_EQ(pool.unit_pool().num_free(), 8);
  CHECK_THROWS(pool.release(block), CoreError);
  pool.check_invariants();
}

}  // namespace
}  // namespace hocket
