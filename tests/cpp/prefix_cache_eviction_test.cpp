// Which blocks go first: task-aware eviction (Echo section 4.2).

#include "base/check.h"
#include "memory/prefix_cache.h"
#include "memory/prefix_cache_check.h"
#include "prefix_cache_twin.h"
#include "testing.h"

namespace hocket {
namespace {

// Evicts everything, block by block; the order in which the given blocks went, by their place in `blocks`.
std::vector<size_t> eviction_order(Cache* c, const std::vector<BlockId>& blocks) {
  std::vector<size_t> order;
  while (c->cache.evict(1) > 0) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (c->pool.is_free(blocks[i]) && std::ranges::find(order, i) == order.end()) order.push_back(i);
    }
    PrefixCacheCheck(c->cache).run({});
  }
  return order;
}

TEST(prefix_cache_eviction, what_offline_requests_left_goes_before_what_online_requests_used) {
  Cache c;
  const BlockId online = c.put({1, 1})[0];
  const BlockId offline = c.put_offline({2, 2})[0];
  CHECK_EQ(eviction_order(&c, {online, offline}), (std::vector<size_t>{1, 0}));
}

TEST(prefix_cache_eviction, what_more_pending_prompts_begin_with_stays_longer) {
  Cache c;
  const BlockId twice = c.put_offline({1, 1})[0];
  const BlockId once = c.put_offline({2, 2})[0];
  const BlockId online = c.put({3, 3})[0];
  c.cache.add_pending("", Tokens{1, 1, 5, 5}, +1);
  c.cache.add_pending("", Tokens{1, 1, 6, 6}, +1);
  c.cache.add_pending("", Tokens{2, 2}, +1);
  CHECK_EQ(c.cache.num_valuable_evictable_blocks(), 2);
  CHECK_EQ(eviction_order(&c, {twice, once, online}), (std::vector<size_t>{2, 1, 0}));
}

TEST(prefix_cache_eviction, a_prompt_that_ends_inside_a_run_cuts_it) {
  Cache c;
  const auto blocks = c.put({1, 1, 2, 2, 3, 3});
  c.put({9, 9});
  c.cache.add_pending("", Tokens{1, 1, 2, 2, 3}, +1);
  const User user = c.acquire({1, 1, 2, 2, 3, 3});
  CHECK_EQ(PrefixCacheCheck(c.cache).path_pending(user.node), (std::vector<int32_t>{1, 1, 0}));
  c.cache.release(user.node);
  CHECK_EQ(eviction_order(&c, blocks), (std::vector<size_t>{2, 1, 0}));
}

TEST(prefix_cache_eviction, a_prompt_that_is_no_longer_pending_frees_what_it_kept) {
  Cache c;
  const BlockId first = c.put_offline({1, 1})[0];
  const BlockId second = c.put_offline({2, 2})[0];
  c.cache.add_pending("", Tokens{1, 1}, +1);
  c.cache.add_pending("", Tokens{1, 1}, -1);
  c.cache.add_pending("", Tokens{2, 2}, +1);
  CHECK_EQ(c.cache.num_valuable_evictable_blocks(), 1);
  CHECK_EQ(eviction_order(&c, {first, second}), (std::vector<size_t>{0, 1}));
}

TEST(prefix_cache_eviction, salts_are_pending_apart) {
  Cache c;
  c.put({1, 1}, "a");
  c.put({1, 1}, "b");
  c.cache.add_pending("b", Tokens{1, 1}, +1);
  c.cache.add_pending("unknown", Tokens{1, 1}, +1);
  CHECK_EQ(c.cache.num_valuable_evictable_blocks(), 1);
  c.cache.evict(1);
  CHECK_EQ(c.cache.num_cached_blocks("b", Tokens{1, 1}), 1);
}

TEST(prefix_cache_eviction, new_blocks_count_what_pends_already_and_runs_are_cut_where_it_changes) {
  Cache c;
  User user = c.acquire({}, "", /*is_online=*/false);
  c.extend(&user, {1, 1, 2, 2, 3, 3, 4, 4}, {3, 3, 1, 0});
  c.extend(&user, {5, 5});
  CHECK_EQ(PrefixCacheCheck(c.cache).path_pending(user.node), (std::vector<int32_t>{3, 3, 1, 0, 0}));
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{user.node});
  c.cache.release(user.node);
  CHECK_EQ(c.cache.num_valuable_evictable_blocks(), 3);
  CHECK_EQ(eviction_order(&c, user.blocks), (std::vector<size_t>{4, 3, 2, 1, 0}));
}

TEST(prefix_cache_eviction, an_offline_continuation_of_an_online_prefix_is_offline) {
  Cache c;
  c.put({1, 1});
  const auto offline = c.put_offline({1, 1, 2, 2});
  const auto online = c.put({1, 1, 3, 3});
  c.lookup({1, 1, 2, 2});  // ... until an online request uses it
  const auto other = c.put_offline({1, 1, 4, 4});
  CHECK_EQ(eviction_order(&c, {offline[0], offline[1], online[1], other[1]}), (std::vector<size_t>{3, 2, 1, 0}));
}

TEST(prefix_cache_eviction, counts_above_the_cap_are_equal) {
  Cache c;
  const BlockId many = c.put_offline({1, 1})[0];
  const BlockId enough = c.put_offline({2, 2})[0];
  const BlockId fewer = c.put_offline({3, 3})[0];
  c.cache.add_pending("", Tokens{1, 1}, +1000);
  c.cache.add_pending("", Tokens{2, 2}, +60);
  c.cache.add_pending("", Tokens{3, 3}, +59);
  CHECK_EQ(eviction_order(&c, {many, enough, fewer}), (std::vector<size_t>{2, 0, 1}));
}

TEST(prefix_cache_eviction, a_branch_that_reaches_the_cap_is_still_evicted_before_its_parent) {
  Cache c;
  const auto blocks = c.put_offline({1, 1, 2, 2});
  c.cache.add_pending("", Tokens{1, 1, 7, 7}, +100);
  c.cache.add_pending("", Tokens{1, 1, 2, 2}, +59);
  PrefixCacheCheck(c.cache).run({});
  c.cache.add_pending("", Tokens{1, 1, 2, 2}, +1);
  PrefixCacheCheck(c.cache).run({});
  CHECK_EQ(eviction_order(&c, blocks), (std::vector<size_t>{1, 0}));
}

TEST(prefix_cache_eviction, without_task_awareness_only_the_last_release_matters) {
  Cache c(/*is_task_aware=*/false);
  const BlockId pending = c.put_offline({1, 1})[0];
  const BlockId online = c.put({2, 2})[0];
  const BlockId offline = c.put_offline({3, 3})[0];
  c.cache.add_pending("", Tokens{1, 1}, +5);
  CHECK_EQ(c.cache.num_valuable_evictable_blocks(), 1);
  CHECK_EQ(eviction_order(&c, {pending, online, offline}), (std::vector<size_t>{0, 1, 2}));
}

TEST(prefix_cache_eviction, the_lightest_lease_goes_first_and_every_lease_after_all_else) {
  Cache c;
  const BlockId light = c.put_offline({1, 1})[0];
  const BlockId heavy = c.put_offline({2, 2})[0];
  const BlockId pending = c.put({3, 3})[0];
  const BlockId middle = c.put_offline({4, 4})[0];
  c.cache.add_lease("", Tokens{2, 2}, 1 << 20);
  c.cache.add_lease("", Tokens{4, 4}, 5);
  c.cache.add_lease("", Tokens{1, 1}, 4);
  c.cache.add_pending("", Tokens{3, 3}, +1000);
  CHECK_EQ(eviction_order(&c, {light, heavy, pending, middle}), (std::vector<size_t>{2, 0, 3, 1}));
}

TEST(prefix_cache_eviction, what_several_leases_share_weighs_as_much_as_they_do_together) {
  Cache c;
  const auto blocks = c.put({1, 1, 2, 2});
  const BlockId branch = c.put({1, 1, 3, 3})[1];
  const BlockId other = c.put({4, 4})[0];
  c.cache.add_lease("", Tokens{1, 1, 2, 2}, 10);
  c.cache.add_lease("", Tokens{1, 1, 3, 3}, 12);
  c.cache.add_lease("", Tokens{4, 4}, 16);
  CHECK_EQ(eviction_order(&c, {blocks[0], blocks[1], branch, other}), (std::vector<size_t>{1, 2, 3, 0}));
}

TEST(prefix_cache_eviction, catches_counts_that_do_not_match_the_blocks) {
  Cache c;
  User user = c.acquire({});
  CHECK_THROWS(c.extend(&user, {1, 1, 2, 2}, {1}), CoreError);
}

void follow_random_histories(TwinOptions options) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    TwinTest test(seed, options);
    for (int step = 0; step < 200; ++step) test.step();
  }
}

TEST(prefix_cache_eviction, agrees_with_a_scan_over_random_histories) {
  follow_random_histories({.is_task_aware = true, .has_offline = true});
}

TEST(prefix_cache_eviction, without_task_awareness_agrees_with_least_recently_released) {
  follow_random_histories({.is_task_aware = false, .has_offline = true});
}

// Counts that no prompts explain, in either direction, as after a collision of hashes.
TEST(prefix_cache_eviction, wrong_counts_break_nothing) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    TwinTest test(seed, {});
    Cache& c = test;
    for (int step = 0; step < 300; ++step) {
      const bool is_online = test.below(2) > 0;
      User user = c.acquire(test.random_tokens(test.below(12)), "", is_online);
      const int num_new = test.below(std::min(3, c.pool.num_free()) + 1);
      std::vector<uint32_t> counts(num_new);
      for (uint32_t& count : counts) count = static_cast<uint32_t>(test.below(4)) * 1'500'000'000u;
      user.is_online = test.below(2) > 0;
      c.extend(&user, test.random_tokens(kBlockSize * num_new), counts);
      c.cache.add_pending("", test.random_tokens(12), test.below(5) - 2);
      c.cache.add_lease("", test.random_tokens(12), 1000 * (test.below(5) - 2) + test.below(10));
      PrefixCacheCheck(c.cache).run(std::vector<NodeId>{user.node});
      c.cache.release(user.node);
      c.cache.evict(test.below(3));
      PrefixCacheCheck(c.cache).run({});
    }
  }
}

}  // namespace
}  // namespace hocket
