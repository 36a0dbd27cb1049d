#include "memory/unit_pool.h"

#include <set>

#include "base/check.h"
#include "testing.h"

namespace hocket {
namespace {

TEST(unit_pool, hands_out_each_unit_once) {
  UnitPool pool(7);
  std::vector<UnitId> all(7);
  CHECK(pool.allocate(all));
  CHECK_EQ(std::set<UnitId>(all.begin(), all.end()), (std::set<UnitId>{0, 1, 2, 3, 4, 5, 6}));
  CHECK_EQ(pool.num_free(), 0);
}

TEST(unit_pool, refuses_more_than_it_has_and_changes_nothing) {
  UnitPool pool(3);
  std::vector<UnitId> two(2, kNone);
  CHECK(pool.allocate(two));
  std::vector<UnitId> more(2, kNone);
  CHECK(!pool.allocate(more));
  CHECK_EQ(more, (std::vector<UnitId>{kNone, kNone}));
  CHECK_EQ(pool.num_free(), 1);
  pool.check_invariants();
}

TEST(unit_pool, reuses_the_unit_released_last) {
  UnitPool pool(4);
  std::vector<UnitId> all(4);
  CHECK(pool.allocate(all));
  pool.release(std::vector<UnitId>{all[2], all[0]});
  std::vector<UnitId> one(1);
  CHECK(pool.allocate(one));
  CHECK_EQ(one[0], all[0]);
}

TEST(unit_pool, catches_a_unit_released_twice) {
  UnitPool pool(4);
  std::vector<UnitId> one(1);
  CHECK(pool.allocate(one));
  pool.release(one);
  CHECK_THROWS(pool.release(one), CoreError);
  CHECK_THROWS(pool.release(std::vector<UnitId>{4}), CoreError);
  CHECK_THROWS(pool.release(std::vector<UnitId>{-1}), CoreError);
}

}  // namespace
}  // namespace hocket
