#include "device_memory.h"

#include "check.h"
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
  Row seat(const Tokens& tokens) {
    memory.open("", tokens);
    if (!memory.fits(static_cast<int32_t>(rows.size()))) {
      memory.close();
      return kNone;
    }
    rows.push_back(memory.seat());
    return rows.back();
  }

  // Seats and computes all of `tokens`.
  Row run(const Tokens& tokens) {
    const Row row = seat(tokens);
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
  m.memory.restore(row);
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
  m.memory.restore(a);
  m.memory.restore(b);
  m.memory.close();
  m.memory.check_invariants(m.rows);
}

TEST(device_memory, a_duplicate_block_is_given_back_and_the_table_follows) {
  Memory m(config_of(20));
  const Row a = m.seat(counting(4));
  const Row b = m.seat(counting(4));
  for (const Row row : {a, b}) CHECK(m.memory.grow(row, 4));
  BatchPlan plan;
  m.memory.flush_changes(&plan);
  m.memory.index(a, counting(4));
  m.memory.index(b, counting(4));
  CHECK_EQ(m.memory.pool().num_free(), 18);
  m.memory.check_invariants(m.rows);
  plan = {};
  m.memory.flush_changes(&plan);
  CHECK_EQ(plan.block_table_index.size(), 2 * 2);  // 2 blocks of b, 2 units each
  CHECK_EQ(plan.block_table_unit[0], m.memory.pool().units(m.memory.tables().blocks(a)[0])[0]);
}

TEST(device_memory, rows_run_out_before_memory_does) {
  Memory m(config_of(20, /*num_rows=*/1));
  CHECK(m.seat(counting(2)) != kNone);
  CHECK_EQ(m.seat(counting(2, 100)), kNone);
  m.release(m.rows[0]);
  CHECK(m.seat(counting(2, 100)) != kNone);
}

}  // namespace
}  // namespace hocket
