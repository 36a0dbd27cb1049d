#include "memory/block_tables.h"

#include <map>

#include "base/check.h"
#include "testing.h"

namespace hocket {
namespace {

constexpr int32_t kUnitsPerBlock = 4;  // 2 groups
constexpr int32_t kMaxBlocks = 5;

struct Tables {
  BlockPool pool{40, kUnitsPerBlock};
  BlockTables tables{3, kMaxBlocks};
  BatchPlan plan;

  // Index in the worker's flat table -> unit.
  std::map<int64_t, UnitId> flush() {
    plan = {};
    tables.flush_changes(pool, &plan.table);
    std::map<int64_t, UnitId> changes;
    for (size_t i = 0; i < plan.table.index.size(); ++i) {
      changes[plan.table.index[i]] = plan.table.unit[i];
    }
    CHECK_EQ(changes.size(), plan.table.index.size());
    return changes;
  }

  void expect(std::map<int64_t, UnitId>* changes, Row row, int32_t index, BlockId block) {
    for (int32_t part = 0; part < kUnitsPerBlock; ++part) {
      const int64_t place = (int64_t{row} * kUnitsPerBlock + part) * kMaxBlocks + index;
      CHECK(changes->contains(place));
      CHECK_EQ(changes->at(place), pool.units(block)[part]);
      changes->erase(place);
    }
  }
};

TEST(block_tables, rows_are_unique_and_recycled) {
  BlockTables tables(2, kMaxBlocks);
  const Row a = tables.allocate_row();
  const Row b = tables.allocate_row();
  CHECK(a != b);
  CHECK_EQ(tables.allocate_row(), kNone);
  tables.release_row(a);
  CHECK_EQ(tables.allocate_row(), a);
  tables.check_invariants();
}

TEST(block_tables, a_new_block_is_news_once) {
  Tables t;
  const Row row = t.tables.allocate_row();
  const BlockId first = t.pool.allocate();
  t.tables.append(row, first);
  auto changes = t.flush();
  t.expect(&changes, row, 0, first);
  CHECK(changes.empty());
  CHECK(t.flush().empty());

  const BlockId second = t.pool.allocate();
  t.tables.append(row, second);
  changes = t.flush();
  t.expect(&changes, row, 1, second);
  CHECK(changes.empty());
}

TEST(block_tables, a_replaced_block_is_news) {
  Tables t;
  const Row row = t.tables.allocate_row();
  for (int i = 0; i < 3; ++i) t.tables.append(row, t.pool.allocate());
  t.flush();
  const BlockId other = t.pool.allocate();
  t.tables.blocks(row)[1] = other;
  t.tables.mark_changed(row, 1, 2);
  auto changes = t.flush();
  t.expect(&changes, row, 1, other);
  CHECK(changes.empty());
}

TEST(block_tables, changes_before_and_after_each_other_are_all_reported) {
  Tables t;
  const Row row = t.tables.allocate_row();
  for (int i = 0; i < 3; ++i) t.tables.append(row, t.pool.allocate());
  t.flush();
  const BlockId last = t.pool.allocate();
  t.tables.append(row, last);
  const BlockId other = t.pool.allocate();
  t.tables.blocks(row)[1] = other;
  t.tables.mark_changed(row, 1, 2);
  auto changes = t.flush();
  t.expect(&changes, row, 1, other);
  t.expect(&changes, row, 3, last);
}

TEST(block_tables, a_row_released_before_the_flush_is_no_news) {
  Tables t;
  const Row row = t.tables.allocate_row();
  t.tables.append(row, t.pool.allocate());
  t.tables.release_row(row);
  CHECK(t.flush().empty());
}

TEST(block_tables, a_recycled_row_reports_its_new_blocks_only) {
  Tables t;
  const Row row = t.tables.allocate_row();
  for (int i = 0; i < 3; ++i) t.tables.append(row, t.pool.allocate());
  t.tables.release_row(row);
  CHECK_EQ(t.tables.allocate_row(), row);
  const BlockId block = t.pool.allocate();
  t.tables.append(row, block);
  auto changes = t.flush();
  t.expect(&changes, row, 0, block);
  CHECK(changes.empty());
  t.tables.check_invariants();
}

TEST(block_tables, a_row_holds_no_more_than_its_size) {
  Tables t;
  const Row row = t.tables.allocate_row();
  for (int i = 0; i < kMaxBlocks; ++i) t.tables.append(row, t.pool.allocate());
  CHECK_THROWS(t.tables.append(row, 0), CoreError);
}

}  // namespace
}  // namespace hocket
