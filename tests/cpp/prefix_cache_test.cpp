#include "memory/prefix_cache.h"

#include "base/check.h"
#include "memory/prefix_cache_check.h"
#include "prefix_cache_twin.h"
#include "testing.h"

namespace hocket {
namespace {

TEST(prefix_cache, finds_the_longest_prefix_in_complete_blocks) {
  Cache c;
  c.put({1, 2, 3, 4, 5, 6});
  CHECK_EQ(c.lookup({1, 2, 3, 4, 5, 6}), 6);
  CHECK_EQ(c.lookup({1, 2, 3, 4, 5}), 4);
  CHECK_EQ(c.lookup({1, 2, 3, 9, 5, 6}), 2);
  CHECK_EQ(c.lookup({1}), 0);
  CHECK_EQ(c.lookup({9, 9}), 0);
  CHECK_EQ(c.lookup({3, 4}), 0);
}

TEST(prefix_cache, a_hit_names_the_blocks_that_were_put) {
  Cache c;
  const auto blocks = c.put({1, 2, 3, 4, 5, 6});
  const User user = c.acquire({1, 2, 3, 4, 7, 8});
  CHECK_EQ(user.blocks, std::vector<BlockId>(blocks.begin(), blocks.begin() + 2));
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{user.node});
  c.cache.release(user.node);
  PrefixCacheCheck(c.cache).run({});
}

TEST(prefix_cache, salts_share_nothing) {
  Cache c;
  c.put({1, 2, 3, 4}, "tenant a");
  CHECK_EQ(c.lookup({1, 2, 3, 4}, "tenant a"), 4);
  CHECK_EQ(c.lookup({1, 2, 3, 4}, "tenant b"), 0);
  CHECK_EQ(c.lookup({1, 2, 3, 4}), 0);
  c.put({1, 2, 3, 4}, "tenant b");
  CHECK_EQ(c.cache.num_blocks(), 4);
  PrefixCacheCheck(c.cache).run({});
}

TEST(prefix_cache, branches_share_their_common_run) {
  Cache c;
  c.put({1, 2, 3, 4, 5, 6});
  c.put({1, 2, 3, 4, 7, 8});
  c.put({1, 2, 9, 9});
  CHECK_EQ(c.cache.num_blocks(), 5);
  CHECK_EQ(c.lookup({1, 2, 3, 4, 5, 6}), 6);
  CHECK_EQ(c.lookup({1, 2, 3, 4, 7, 8}), 6);
  CHECK_EQ(c.lookup({1, 2, 9, 9}), 4);
  PrefixCacheCheck(c.cache).run({});
}

TEST(prefix_cache, two_users_that_computed_the_same_block_share_one) {
  Cache c;
  User a = c.acquire({1, 2, 3, 4});
  User b = c.acquire({1, 2, 3, 4});
  CHECK_EQ(c.extend(&a, {1, 2, 3, 4}), 0);
  CHECK_EQ(c.extend(&b, {1, 2, 3, 4, 5, 6}), 2);
  CHECK_EQ(b.blocks[0], a.blocks[0]);
  CHECK_EQ(b.blocks[1], a.blocks[1]);
  CHECK_EQ(c.cache.num_blocks(), 3);
  CHECK_EQ(c.pool.num_free(), c.pool.num_blocks() - 3);
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{a.node, b.node});
}

TEST(prefix_cache, a_split_keeps_the_pins_of_longer_paths) {
  Cache c;
  User long_user = c.acquire({});
  c.extend(&long_user, {1, 2, 3, 4, 5, 6});
  const User short_user = c.acquire({1, 2, 3, 4, 9, 9});
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{long_user.node, short_user.node});
  CHECK_EQ(PrefixCacheCheck(c.cache).path_blocks(long_user.node), long_user.blocks);
  CHECK_EQ(PrefixCacheCheck(c.cache).path_blocks(short_user.node), short_user.blocks);
  CHECK_EQ(c.extend(&long_user, {7, 8}), 0);
  CHECK_EQ(c.lookup({1, 2, 3, 4, 5, 6, 7, 8}), 8);
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{long_user.node, short_user.node});
}

TEST(prefix_cache, a_shared_end_is_not_lengthened_in_place) {
  Cache c;
  User a = c.acquire({});
  c.extend(&a, {1, 2});
  User b = c.acquire({1, 2});
  c.extend(&a, {3, 4});
  CHECK_EQ(PrefixCacheCheck(c.cache).path_blocks(b.node), b.blocks);
  c.extend(&b, {5, 6});
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{a.node, b.node});
}

TEST(prefix_cache, pinned_blocks_are_not_evicted) {
  Cache c;
  User user = c.acquire({});
  c.extend(&user, {1, 2, 3, 4});
  c.put({1, 2, 9, 9});
  CHECK_EQ(c.cache.num_evictable_blocks(), 1);
  CHECK_EQ(c.cache.evict(10), 1);
  CHECK_EQ(c.cache.evict(10), 0);
  CHECK_EQ(c.lookup({1, 2, 3, 4}), 4);
  c.cache.release(user.node);
  CHECK_EQ(c.cache.evict(10), 2);
  CHECK_EQ(c.pool.num_free(), c.pool.num_blocks());
  PrefixCacheCheck(c.cache).run({});
}

TEST(prefix_cache, evicts_the_least_recently_released_first_from_its_end) {
  Cache c;
  c.put({1, 1, 2, 2});
  c.put({3, 3, 4, 4});
  c.cache.evict(1);
  CHECK_EQ(c.lookup({3, 3, 4, 4}), 4);
  CHECK_EQ(c.lookup({1, 1, 2, 2}), 2);  // and is now the most recent
  c.cache.evict(1);
  CHECK_EQ(c.lookup({3, 3, 4, 4}), 2);
  CHECK_EQ(c.lookup({1, 1, 2, 2}), 2);
  CHECK_EQ(c.cache.num_evicted_blocks(), 2);
}

TEST(prefix_cache, a_shared_prefix_outlives_its_branches) {
  Cache c;
  c.put({1, 1, 2, 2});
  c.put({1, 1, 3, 3});
  c.cache.evict(2);
  CHECK_EQ(c.lookup({1, 1, 2, 2}), 2);
}

TEST(prefix_cache, unpin_shows_what_could_be_evicted_and_repin_undoes_it) {
  Cache c;
  User user = c.acquire({});
  c.extend(&user, {1, 2, 3, 4});
  c.cache.unpin(user.node);
  CHECK_EQ(c.cache.num_evictable_blocks(), 2);
  c.cache.repin(user.node);
  CHECK_EQ(c.cache.num_evictable_blocks(), 0);
  PrefixCacheCheck(c.cache).run(std::vector<NodeId>{user.node});
}

TEST(prefix_cache, catches_a_pin_given_up_twice) {
  Cache c;
  User a = c.acquire({});
  c.extend(&a, {1, 2});
  c.cache.release(a.node);
  CHECK_THROWS(c.cache.unpin(a.node), CoreError);
}

TEST(prefix_cache, salts_leave_no_trace_when_their_blocks_are_gone) {
  Cache c;
  for (int i = 0; i < 1000; ++i) {
    c.put({1, 2}, "salt " + std::to_string(i));
    c.cache.evict(1);
  }
  CHECK_EQ(c.cache.num_blocks(), 0);
  PrefixCacheCheck(c.cache).run({});  // no roots left: a root of no use is a broken invariant
}

TEST(prefix_cache, num_cached_blocks_changes_nothing) {
  Cache c;
  c.put({1, 1, 2, 2, 3, 3});
  c.put({1, 1, 4, 4});
  CHECK_EQ(c.cache.num_cached_blocks("", Tokens{1, 1, 2, 2, 9, 9}), 2);
  CHECK_EQ(c.cache.num_cached_blocks("", Tokens{1, 1, 2, 2, 3}), 2);
  CHECK_EQ(c.cache.num_cached_blocks("", Tokens{9, 9}), 0);
  CHECK_EQ(c.cache.num_cached_blocks("another salt", Tokens{1, 1}), 0);
  c.cache.evict(2);
  CHECK_EQ(c.cache.num_cached_blocks("", Tokens{1, 1, 2, 2}), 1);
  CHECK_EQ(c.cache.num_cached_blocks("", Tokens{1, 1, 4, 4}), 2);
}

TEST(prefix_cache, agrees_with_a_dictionary_over_random_histories) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    TwinTest test(seed, {});
    for (int step = 0; step < 200; ++step) test.step();
  }
}

}  // namespace
}  // namespace hocket
