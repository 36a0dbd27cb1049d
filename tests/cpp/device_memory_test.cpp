#include "memory/device_memory.h"

#include "base/check.h"
#include "testing.h"

namespace hocket {
namespace {

using Tokens = std::vector<int32_t>;

// Blocks of 2 tokens and 2 units.
SchedulerConfig config_of(int32_t num_blocks, int32_t num_rows = 4) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 1;
  config.block_size = 2;
  config.max_num_seqs = num_rows;
  config.max_model_len = 64;
  return config;
}

Tokens counting(int32_t num_tokens, int32_t from = 0) {
  Tokens tokens(num_tokens);
  for (int32_t i = 0; i < num_tokens; ++i) tokens[i] = from + i;
  return tokens;
}

struct Memory {
  DeviceMemory memory;
  int32_t num_running = 0;
  std::vector<Row> rows;

  explicit Memory(const SchedulerConfig& config) : memory(config) {}

  // Seats a request of these tokens, or returns kNone.
  Row seat(const Tokens& tokens, CacheForm form = {}) {
    memory.open("", tokens, form);
    if (!memory.fits(static_cast<int32_t>(rows.size()))) {
      memory.close();
      return kNone;
    }
    rows.push_back(memory.seat());
    return rows.back();
  }

  // Seats and computes all of `tokens`.
  Row run(const Tokens& tokens, CacheForm form = {}) {
    const Row row = seat(tokens, form);
    CHECK(row != kNone);
    CHECK(memory.grow(row, static_cast<int32_t>(tokens.size())));
    memory.index(row, tokens);
    memory.check_invariants(rows);
    return row;
  }

  void release(Row row) {
    memory.release(row);
    std::erase(rows, row);
    memory.check_invariants(rows);
  }
};

TEST(device_memory, computed_blocks_are_hit_while_their_request_still_runs) {
  Memory m(config_of(20));
  const Row first = m.run(counting(5));
  CHECK_EQ(m.memory.open("", counting(5)), 4);
  const Row second = m.memory.seat();
  m.rows.push_back(second);
  CHECK_EQ(m.memory.tables().blocks(second)[1], m.memory.tables().blocks(first)[1]);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, the_last_token_is_never_cached) {
  Memory m(config_of(20));
  m.release(m.run(counting(4)));
  CHECK_EQ(m.memory.open("", counting(4)), 2);
  m.memory.close();
  CHECK_EQ(m.memory.open("", counting(5)), 4);
  m.memory.close();
}

TEST(device_memory, without_prefix_caching_nothing_is_kept) {
  SchedulerConfig config = config_of(20);
  config.enable_prefix_caching = false;
  Memory m(config);
  m.release(m.run(counting(6)));
  CHECK_EQ(m.memory.pool().num_free(), 20);
  CHECK_EQ(m.memory.open("", counting(6)), 0);
  m.memory.close();
}

TEST(device_memory, growth_evicts_what_nobody_runs) {
  Memory m(config_of(4));
  m.release(m.run(counting(6)));  // 3 blocks cached
  const Row row = m.run(counting(5, 100));
  CHECK_EQ(m.memory.cache().num_evicted_blocks(), 2);
  CHECK(m.memory.grow(row, 8));
  CHECK(!m.memory.grow(row, 9));
  CHECK_EQ(m.memory.tables().num_blocks(row), 4);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, a_promise_keeps_the_next_request_out) {
  Memory m(config_of(9));
  CHECK(m.seat(counting(9)) != kNone);        // promised 5 blocks, holds none
  CHECK_EQ(m.seat(counting(5, 100)), kNone);  // 3 + 5 + headroom 2 > 9
  CHECK(m.seat(counting(3, 100)) != kNone);   // 2 + 5 + headroom 2 = 9
  CHECK(m.memory.grow(m.rows[0], 9));
  CHECK(m.memory.grow(m.rows[1], 4));
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, a_request_alone_needs_no_headroom) {
  Memory m(config_of(3));
  CHECK(m.seat(counting(5)) != kNone);
  CHECK(m.memory.grow(m.rows[0], 6));
  CHECK(!m.memory.grow(m.rows[0], 7));
}

TEST(device_memory, withheld_rows_count_as_free_until_restored) {
  Memory m(config_of(8));
  const Row row = m.run(counting(9));
  m.memory.open("", counting(9, 100));
  CHECK(!m.memory.fits(1));
  m.memory.withhold(row);
  CHECK(m.memory.fits(1));
  m.memory.unwithhold(row);
  CHECK(!m.memory.fits(1));
  m.memory.close();
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, shared_blocks_of_withheld_rows_are_free_only_together) {
  Memory m(config_of(8));
  const Row a = m.run(counting(8));
  m.memory.open("", counting(9));
  const Row b = m.memory.seat();
  m.rows.push_back(b);
  m.memory.open("", counting(11, 100));
  m.memory.withhold(a);
  CHECK(!m.memory.fits(2));
  m.memory.withhold(b);
  CHECK(m.memory.fits(2));
  m.memory.unwithhold(a);
  m.memory.unwithhold(b);
  m.memory.close();
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, a_duplicate_block_is_given_back_and_the_table_follows) {
  Memory m(config_of(20));
  const Row a = m.seat(counting(4));
  const Row b = m.seat(counting(4));
  for (const Row row : {a, b}) CHECK(m.memory.grow(row, 4));
  BatchPlan plan;
  m.memory.flush_changes(&plan.table);
  m.memory.index(a, counting(4));
  m.memory.index(b, counting(4));
  CHECK_EQ(m.memory.pool().num_free(), 18);
  m.memory.check_invariants(m.rows);
  plan = {};
  m.memory.flush_changes(&plan.table);
  CHECK_EQ(plan.table.index.size(), 2 * 2);  // 2 blocks of b, 2 units each
  CHECK_EQ(plan.table.unit[0], m.memory.pool().units(m.memory.tables().blocks(a)[0])[0]);
}

TEST(device_memory, rows_run_out_before_memory_does) {
  Memory m(config_of(20, /*num_rows=*/1));
  CHECK(m.seat(counting(2)) != kNone);
  CHECK_EQ(m.seat(counting(2, 100)), kNone);
  m.release(m.rows[0]);
  CHECK(m.seat(counting(2, 100)) != kNone);
}

// ---- forms ----

constexpr CacheForm kHiddenForm = {CacheKind::kHidden, 0};
constexpr CacheForm kInt8Form = {CacheKind::kInt8, 0};
CacheForm without_blocks(int32_t num_blocks) { return {CacheKind::kKv, num_blocks}; }

// Blocks of 2 tokens: 2 units as K and V, 1 as hidden states.
SchedulerConfig hidden_config(int32_t num_blocks) {
  SchedulerConfig config = config_of(num_blocks);
  config.hidden_units_per_group = 1;
  return config;
}

SchedulerConfig partial_config(int32_t num_blocks) {
  SchedulerConfig config = config_of(num_blocks);
  config.enable_prefix_caching = false;
  config.enable_partial_caching = true;
  return config;
}

TEST(device_memory, hidden_states_take_half_and_are_never_shared) {
  Memory m(hidden_config(4));  // 8 units
  const Row row = m.run(counting(9), kHiddenForm);
  CHECK_EQ(m.memory.num_held_units(row), 5);
  CHECK_EQ(m.memory.pool().num_free_units(), 3);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(9)), 0);
  m.release(row);
  CHECK_EQ(m.memory.pool().num_free_units(), 8);
}

TEST(device_memory, a_hidden_request_is_promised_hidden_blocks) {
  Memory m(hidden_config(3));                        // 6 units
  CHECK_EQ(m.seat(counting(9)), kNone);              // 5 blocks of 2
  const Row row = m.seat(counting(9), kHiddenForm);  // 5 blocks of 1
  CHECK(row != kNone);
  CHECK_EQ(m.memory.num_promised_units(), 5);
  CHECK(m.memory.grow(row, 4));
  CHECK_EQ(m.memory.num_promised_units(), 3);
  CHECK_EQ(m.memory.num_held_units(row), 2);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, who_is_kept_as_hidden_states_will_grow_by_hidden_blocks) {
  Memory m(hidden_config(4));                         // 8 units
  const Row row = m.run(counting(3), kHiddenForm);    // 2 of them
  CHECK_EQ(m.seat(counting(3)), kNone);               // 4 + headroom 2 + 1 > 6
  CHECK(m.seat(counting(5), kHiddenForm) != kNone);   // 3 + headroom 1 + 1 = 5
  CHECK_EQ(m.seat(counting(1), kHiddenForm), kNone);  // 1 + 3 promised + headroom 3 > 6
  m.memory.open("", counting(1), kHiddenForm);
  m.memory.withhold(row);
  CHECK(m.memory.fits(2));  // 1 + 3 + 2 <= 8
  m.memory.unwithhold(row);
  CHECK(!m.memory.fits(2));
  m.memory.close();
  BatchPlan plan;
  m.release(m.rows.back());
  CHECK(m.memory.reshape(row, {}, &plan.forms));      // 4 of 8
  CHECK_EQ(m.seat(counting(3), kHiddenForm), kNone);  // 2 + headroom 2 + 1 > 4
  CHECK(m.seat(counting(1), kHiddenForm) != kNone);   // 1 + 3 = 4
}

TEST(device_memory, hidden_states_may_follow_a_cached_prefix) {
  Memory m(hidden_config(10));
  m.release(m.run(counting(4)));  // 2 blocks cached
  CHECK_EQ(m.memory.open("", counting(7), kHiddenForm), 4);
  CHECK_EQ(m.memory.num_open_units(), 2);  // 2 more blocks of 1
  const Row row = m.memory.seat();
  m.rows.push_back(row);
  CHECK(m.memory.grow(row, 7));
  CHECK_EQ(m.memory.num_held_units(row), 2);
  CHECK(m.memory.pool().kind(m.memory.tables().blocks(row)[1]) == CacheKind::kKv);
  CHECK(m.memory.pool().kind(m.memory.tables().blocks(row)[2]) == CacheKind::kHidden);
  m.memory.check_invariants(m.rows);
  m.release(row);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(7)), 2);
}

TEST(device_memory, hidden_states_become_k_and_v_in_place) {
  Memory m(hidden_config(4));
  const Row row = m.run(counting(6), kHiddenForm);
  std::vector<UnitId> units;
  for (const BlockId block : m.memory.tables().blocks(row)) units.push_back(m.memory.pool().units(block)[0]);
  BatchPlan plan;
  m.memory.flush_changes(&plan.table);
  plan = {};
  CHECK(m.memory.reshape(row, {}, &plan.forms));
  m.memory.check_invariants(m.rows);
  CHECK(m.memory.form(row) == CacheForm{});
  CHECK_EQ(m.memory.num_held_units(row), 6);
  CHECK_EQ(plan.forms.projections.size(), 3);
  for (int32_t i = 0; i < 3; ++i) {
    CHECK_EQ(plan.forms.projections[i].row, row);
    CHECK_EQ(plan.forms.projections[i].block_index, i);
  }
  CHECK_EQ(plan.forms.projected_units, units);
  m.memory.flush_changes(&plan.table);
  CHECK_EQ(plan.table.index.size(), 3 * 2);  // every entry of the three blocks
  m.memory.index(row, counting(6));          // it may be shared from now on
  m.release(row);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(6)), 3);
}

TEST(device_memory, a_cached_prefix_is_not_projected) {
  Memory m(hidden_config(10));
  m.release(m.run(counting(4)));
  m.memory.open("", counting(7), kHiddenForm);
  const Row row = m.memory.seat();
  m.rows.push_back(row);
  CHECK(m.memory.grow(row, 7));
  BatchPlan plan;
  CHECK(m.memory.reshape(row, {}, &plan.forms));
  CHECK_EQ(plan.forms.projections.size(), 2);
  CHECK_EQ(plan.forms.projections[0].block_index, 2);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, short_memory_refuses_a_new_form_and_changes_nothing) {
  Memory m(hidden_config(4));  // 8 units
  const Row row = m.run(counting(9), kHiddenForm);
  BatchPlan plan;
  CHECK(!m.memory.reshape(row, {}, &plan.forms));  // 5 blocks of 2 units
  CHECK(plan.forms.projections.empty() && plan.forms.projected_units.empty());
  CHECK(m.memory.form(row) == kHiddenForm);
  CHECK_EQ(m.memory.pool().num_free_units(), 3);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, a_new_form_may_evict_what_nobody_runs) {
  Memory m(hidden_config(6));                       // 12 units
  m.release(m.run(counting(8, 100)));               // 4 blocks cached
  const Row row = m.run(counting(8), kHiddenForm);  // takes the 4 that are left
  BatchPlan plan;
  CHECK(m.memory.reshape(row, {}, &plan.forms));
  CHECK_EQ(m.memory.cache().num_evicted_blocks(), 2);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, k_and_v_never_become_hidden_states) {
  Memory m(hidden_config(4));
  const Row row = m.run(counting(3));
  BatchPlan plan;
  CHECK_THROWS(m.memory.reshape(row, kHiddenForm, &plan.forms), CoreError);
}

// Blocks of 2 tokens: 2 units as K and V, 1 in int8.
SchedulerConfig int8_config(int32_t num_blocks) {
  SchedulerConfig config = config_of(num_blocks);
  config.int8_units_per_group = 1;
  return config;
}

std::vector<UnitId> units_of(const Memory& m, Row row) {
  std::vector<UnitId> units;
  for (const BlockId block : m.memory.tables().blocks(row)) {
    const auto of_block = m.memory.pool().units(block);
    units.insert(units.end(), of_block.begin(), of_block.end());
  }
  return units;
}

TEST(device_memory, k_and_v_become_int8_in_place_and_take_half) {
  Memory m(int8_config(4));  // 8 units
  const Row row = m.run(counting(7));
  const std::vector<UnitId> units = units_of(m, row);
  BatchPlan plan;
  m.memory.flush_changes(&plan.table);
  plan = {};
  CHECK_EQ(m.memory.pool().num_free_units(), 0);
  CHECK(m.memory.reshape(row, kInt8Form, &plan.forms));
  m.memory.check_invariants(m.rows);
  CHECK(m.memory.form(row) == kInt8Form);
  CHECK_EQ(m.memory.num_held_units(row), 4);
  CHECK_EQ(m.memory.num_available_units(), 4);
  CHECK_EQ(plan.forms.roundings.size(), 4);
  CHECK_EQ(plan.forms.roundings[3].block_index, 3);
  CHECK_EQ(plan.forms.rounded_units, units);
  m.memory.flush_changes(&plan.table);
  CHECK_EQ(plan.table.index.size(), 4);  // one unit of each block
  CHECK(m.memory.grow(row, 9));          // by half a block
  CHECK_EQ(m.memory.num_held_units(row), 5);
  m.release(row);
  CHECK_EQ(m.memory.num_available_units(), 8);
}

TEST(device_memory, what_is_rounded_is_shared_with_nobody_and_what_was_cached_stays) {
  Memory m(int8_config(10));  // 20 units
  const Row other = m.run(counting(4));
  const Row row = m.run(counting(6));  // stands on its two blocks
  CHECK_EQ(m.memory.num_held_units(row), 2);
  BatchPlan plan;
  CHECK(m.memory.reshape(row, kInt8Form, &plan.forms));
  CHECK_EQ(m.memory.num_held_units(row), 3);  // copies of what is shared
  CHECK_EQ(plan.forms.roundings.size(), 3);
  m.memory.index(row, counting(6));
  m.memory.check_invariants(m.rows);
  m.release(row);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(6)), 3);  // as K and V, computed before
  m.release(other);
}

TEST(device_memory, who_comes_in_in_int8_gets_copies_of_what_is_cached) {
  Memory m(int8_config(10));
  m.release(m.run(counting(4)));  // 2 blocks cached
  CHECK_EQ(m.memory.open("", counting(7), kInt8Form), 4);
  CHECK_EQ(m.memory.num_open_units(), 4);  // all of its blocks
  BatchPlan plan;
  const Row row = m.memory.seat(&plan.forms);
  m.rows.push_back(row);
  CHECK_EQ(plan.forms.roundings.size(), 2);
  CHECK_EQ(m.memory.num_held_units(row), 2);
  CHECK_EQ(m.memory.num_promised_units(row), 2);
  CHECK(m.memory.grow(row, 7));
  CHECK_EQ(m.memory.num_promised_units(row), 0);
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, rounding_that_finds_no_memory_changes_nothing) {
  Memory m(int8_config(6));  // 12 units
  const Row other = m.run(counting(4));
  const Row row = m.run(counting(5));  // shares 2 of its 3 blocks
  CHECK(m.memory.grow(other, 10));     // nothing is free
  BatchPlan plan;
  CHECK(!m.memory.reshape(row, kInt8Form, &plan.forms));  // wants 3, has 2
  CHECK(plan.forms.roundings.empty());
  m.memory.check_invariants(m.rows);
  m.release(other);
  CHECK(m.memory.reshape(row, kInt8Form, &plan.forms));
  m.memory.check_invariants(m.rows);
  CHECK_THROWS(m.memory.reshape(row, kInt8Form, &plan.forms), CoreError);
}

TEST(device_memory, uncached_blocks_take_no_memory) {
  Memory m(partial_config(4));                            // 8 units
  CHECK_EQ(m.seat(counting(9)), kNone);                   // 5 blocks of 2
  const Row row = m.run(counting(9), without_blocks(2));  // 3 blocks of 2
  CHECK_EQ(m.memory.num_held_units(row), 6);
  CHECK_EQ(m.memory.tables().num_blocks(row), 5);
  CHECK_EQ(m.memory.tables().blocks(row)[1], kNone);
  CHECK(m.memory.tables().blocks(row)[2] != kNone);
  CHECK(m.memory.grow(row, 10));
  CHECK(m.memory.grow(row, 11));
  CHECK_EQ(m.memory.pool().num_free_units(), 0);
  m.release(row);
  CHECK_EQ(m.memory.pool().num_free_units(), 8);
}

TEST(device_memory, blocks_are_dropped_and_come_back) {
  Memory m(partial_config(6));
  const Row row = m.run(counting(9));
  CHECK_EQ(m.memory.num_held_units(row), 10);
  BatchPlan plan;
  m.memory.flush_changes(&plan.table);
  CHECK(m.memory.reshape(row, without_blocks(3), &plan.forms));
  CHECK_EQ(m.memory.num_held_units(row), 4);
  CHECK_EQ(m.memory.pool().num_free_units(), 8);
  m.memory.check_invariants(m.rows);
  CHECK(m.memory.reshape(row, without_blocks(1), &plan.forms));
  CHECK_EQ(m.memory.num_held_units(row), 8);
  CHECK_EQ(m.memory.tables().blocks(row)[0], kNone);
  CHECK(m.memory.tables().blocks(row)[1] != kNone);
  CHECK(plan.forms.projections.empty());  // they are computed again, not projected
  plan = {};
  m.memory.flush_changes(&plan.table);
  CHECK(plan.table.index.size() >= 2 * 2);  // the worker hears of the two that are there again
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, what_cannot_be_uncached_is_refused) {
  SchedulerConfig config = partial_config(8);
  Memory m(config);
  const Row row = m.run(counting(5));
  BatchPlan plan;
  CHECK_THROWS(m.memory.reshape(row, without_blocks(4), &plan.forms), CoreError);  // there are 3
}

TEST(device_memory, what_others_use_or_are_expected_to_stays_cached) {
  SchedulerConfig config = partial_config(12);
  config.enable_prefix_caching = true;
  BatchPlan plan;
  {
    Memory m(config);
    const Row first = m.run(counting(5));
    const Row second = m.run(counting(7));
    for (const Row row : {first, second}) CHECK(!m.memory.can_uncache(row));
    CHECK(!m.memory.reshape(first, without_blocks(1), &plan.forms));
    m.release(second);  // its last block is still there, and continues the first one's
    CHECK(!m.memory.can_uncache(first));
  }
  for (const bool is_leased : {true, false}) {
    Memory m(config);
    const Row row = m.run(counting(5));
    const auto change = [&](int32_t delta) {
      is_leased ? m.memory.add_lease("", counting(4), delta) : m.memory.add_pending("", counting(4), delta);
    };
    change(1);
    CHECK(!m.memory.can_uncache(row));
    change(-1);
    CHECK(m.memory.can_uncache(row));
  }
}

TEST(device_memory, blocks_that_are_its_own_leave_the_cache_and_enter_it_again) {
  SchedulerConfig config = partial_config(8);
  config.enable_prefix_caching = true;
  Memory m(config);
  const Row row = m.run(counting(9));
  CHECK_EQ(m.memory.num_indexed_blocks(row), 4);
  BatchPlan plan;
  CHECK(m.memory.reshape(row, without_blocks(2), &plan.forms));
  CHECK_EQ(m.memory.num_held_units(row), 6);
  CHECK_EQ(m.memory.cache().num_blocks(), 0);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(8)), 0);
  CHECK(!m.memory.can_index(row, 9));
  m.memory.check_invariants(m.rows);
  const Row other = m.run(counting(3));  // computes the first block for itself
  CHECK(m.memory.reshape(row, {}, &plan.forms));
  CHECK(m.memory.can_index(row, 9));
  m.memory.index(row, counting(9));
  m.memory.check_invariants(m.rows);
  CHECK_EQ(m.memory.num_cached_blocks("", counting(8)), 4);
  CHECK_EQ(m.memory.tables().blocks(row)[0], m.memory.tables().blocks(other)[0]);
  m.release(row);
  m.release(other);
}

TEST(device_memory, who_came_in_without_its_first_blocks_shares_them_once_it_has_them) {
  SchedulerConfig config = partial_config(8);
  config.enable_prefix_caching = true;
  Memory m(config);
  const Row row = m.run(counting(9), without_blocks(2));
  CHECK_EQ(m.memory.cache().num_blocks(), 0);
  BatchPlan plan;
  CHECK(m.memory.reshape(row, {}, &plan.forms));
  m.memory.index(row, counting(9));
  m.memory.check_invariants(m.rows);
  m.release(row);
  CHECK_EQ(m.memory.open("", counting(9)), 8);
  m.memory.close();
}

TEST(device_memory, available_memory_is_what_is_free_or_cached_for_nobody_who_runs) {
  Memory m(config_of(10));
  const Row row = m.run(counting(4));
  CHECK_EQ(m.memory.num_available_units(), 16);
  CHECK_EQ(m.memory.num_evictable_units(), 0);
  m.release(row);
  CHECK_EQ(m.memory.num_available_units(), 20);
  CHECK_EQ(m.memory.num_evictable_units(), 4);
}

}  // namespace
}  // namespace hocket
