#include "prefix_cache.h"

#include <algorithm>
#include <map>
#include <random>

#include "check.h"
#include "testing.h"

namespace hocket {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kBlockSize = 2;

// A user of the cache: what it has pinned, and the blocks of its path.
struct User {
  NodeId node = kNone;
  std::string salt;
  Tokens tokens;
  std::vector<BlockId> blocks;
};

struct Cache {
  BlockPool pool{/*num_units=*/40, /*units_per_block=*/2};
  PrefixCache cache{&pool, kBlockSize};

  User acquire(const Tokens& tokens, const std::string& salt = "") {
    User user{kNone, salt, {}, {}};
    user.node = cache.acquire(salt, tokens, &user.blocks);
    user.tokens.assign(tokens.begin(), tokens.begin() + std::ssize(user.blocks) * kBlockSize);
    return user;
  }

  // Computes `tokens` after the user's path in blocks of its own and offers them; returns how many the tree had.
  int32_t extend(User* user, const Tokens& tokens) {
    std::vector<BlockId> blocks;
    for (size_t i = 0; i < tokens.size() / kBlockSize; ++i) blocks.push_back(pool.allocate());
    const auto [node, num_replaced] = cache.extend(user->node, tokens, blocks);
    user->node = node;
    user->blocks.insert(user->blocks.end(), blocks.begin(), blocks.end());
    user->tokens.insert(user->tokens.end(), tokens.begin(), tokens.end());
    return num_replaced;
  }

  // Caches `tokens` and lets go of them.
  std::vector<BlockId> put(const Tokens& tokens, const std::string& salt = "") {
    User user = acquire(tokens, salt);
    extend(&user, Tokens(tokens.begin() + std::ssize(user.tokens), tokens.end()));
    cache.release(user.node);
    return user.blocks;
  }

  // How many tokens of `tokens` are cached.
  size_t lookup(const Tokens& tokens, const std::string& salt = "") {
    const User user = acquire(tokens, salt);
    cache.release(user.node);
    return user.tokens.size();
  }
};

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
  c.cache.check_invariants(std::vector<NodeId>{user.node});
  c.cache.release(user.node);
  c.cache.check_invariants({});
}

TEST(prefix_cache, salts_share_nothing) {
  Cache c;
  c.put({1, 2, 3, 4}, "tenant a");
  CHECK_EQ(c.lookup({1, 2, 3, 4}, "tenant a"), 4);
  CHECK_EQ(c.lookup({1, 2, 3, 4}, "tenant b"), 0);
  CHECK_EQ(c.lookup({1, 2, 3, 4}), 0);
  c.put({1, 2, 3, 4}, "tenant b");
  CHECK_EQ(c.cache.num_blocks(), 4);
  c.cache.check_invariants({});
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
  c.cache.check_invariants({});
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
  c.cache.check_invariants(std::vector<NodeId>{a.node, b.node});
}

TEST(prefix_cache, a_split_keeps_the_pins_of_longer_paths) {
  Cache c;
  User long_user = c.acquire({});
  c.extend(&long_user, {1, 2, 3, 4, 5, 6});
  const User short_user = c.acquire({1, 2, 3, 4, 9, 9});
  c.cache.check_invariants(std::vector<NodeId>{long_user.node, short_user.node});
  CHECK_EQ(c.cache.path_blocks(long_user.node), long_user.blocks);
  CHECK_EQ(c.cache.path_blocks(short_user.node), short_user.blocks);
  CHECK_EQ(c.extend(&long_user, {7, 8}), 0);
  CHECK_EQ(c.lookup({1, 2, 3, 4, 5, 6, 7, 8}), 8);
  c.cache.check_invariants(std::vector<NodeId>{long_user.node, short_user.node});
}

TEST(prefix_cache, a_shared_end_is_not_lengthened_in_place) {
  Cache c;
  User a = c.acquire({});
  c.extend(&a, {1, 2});
  User b = c.acquire({1, 2});
  c.extend(&a, {3, 4});
  CHECK_EQ(c.cache.path_blocks(b.node), b.blocks);
  c.extend(&b, {5, 6});
  c.cache.check_invariants(std::vector<NodeId>{a.node, b.node});
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
  c.cache.check_invariants({});
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
  c.cache.check_invariants(std::vector<NodeId>{user.node});
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
  c.cache.check_invariants({});  // no roots left: a root of no use is a broken invariant
}

// A dictionary from (salt, prefix) to its block, and a scan for everything else.
struct Twin {
  struct Entry {
    BlockId block;
    int num_users;
    int64_t unpinned_at;
  };
  using Key = std::pair<std::string, Tokens>;

  std::map<Key, Entry> entries;
  int64_t now = 0;

  static Key prefix(const User& user, size_t num_blocks) {
    return {user.salt, Tokens(user.tokens.begin(), user.tokens.begin() + num_blocks * kBlockSize)};
  }

  std::vector<BlockId> find(const std::string& salt, const Tokens& tokens) const {
    std::vector<BlockId> blocks;
    for (size_t end = kBlockSize; end <= tokens.size(); end += kBlockSize) {
      const auto found = entries.find({salt, Tokens(tokens.begin(), tokens.begin() + end)});
      if (found == entries.end()) break;
      blocks.push_back(found->second.block);
    }
    return blocks;
  }

  void pin(const User& user, int change) {
    ++now;
    for (size_t i = 1; i <= user.blocks.size(); ++i) {
      Entry& entry = entries.at(prefix(user, i));
      entry.num_users += change;
      if (entry.num_users == 0) entry.unpinned_at = now;
    }
  }

  // Oldest first, deeper first.
  BlockId evict() {
    auto oldest = entries.end();
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->second.num_users > 0) continue;
      const auto age = [](auto e) { return std::pair(e->second.unpinned_at, -std::ssize(e->first.second)); };
      if (oldest == entries.end() || age(it) < age(oldest)) oldest = it;
    }
    if (oldest == entries.end()) return kNone;
    const BlockId block = oldest->second.block;
    entries.erase(oldest);
    return block;
  }

  int num_evictable() const {
    return static_cast<int>(std::ranges::count_if(entries, [](const auto& e) { return e.second.num_users == 0; }));
  }
};

struct TwinTest : Cache {
  Twin twin;
  std::vector<User> users;
  std::mt19937 random;

  explicit TwinTest(unsigned seed) : random(seed) {}

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); }

  Tokens random_tokens(int num_tokens) {
    Tokens tokens(num_tokens);
    for (int32_t& token : tokens) token = below(2);
    return tokens;
  }

  void arrive() {
    const Tokens tokens = random_tokens(below(12));
    const std::string salt = below(2) ? "a" : "b";
    const auto expected = twin.find(salt, tokens);
    users.push_back(acquire(tokens, salt));
    CHECK_EQ(users.back().blocks, expected);
    twin.pin(users.back(), +1);
  }

  void compute() {
    User& user = users[below(static_cast<int>(users.size()))];
    const Tokens tokens = random_tokens(kBlockSize * (1 + below(std::min(3, pool.num_free()))));
    Tokens all = user.tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    const auto known = twin.find(user.salt, all);
    const size_t num_before = user.blocks.size();
    twin.pin(user, -1);
    CHECK_EQ(extend(&user, tokens), known.size() - num_before);
    CHECK_EQ(user.tokens, all);
    CHECK(std::equal(known.begin(), known.end(), user.blocks.begin()));
    for (size_t i = known.size(); i < user.blocks.size(); ++i) {
      twin.entries[Twin::prefix(user, i + 1)] = {user.blocks[i], 0, 0};
    }
    twin.pin(user, +1);
  }

  void leave() {
    std::swap(users[below(static_cast<int>(users.size()))], users.back());
    cache.release(users.back().node);
    twin.pin(users.back(), -1);
    users.pop_back();
  }

  void evict() {
    const int num_blocks = 1 + below(3);
    std::vector<BlockId> expected;
    for (int i = 0; i < num_blocks; ++i) {
      if (const BlockId block = twin.evict(); block != kNone) expected.push_back(block);
    }
    CHECK_EQ(cache.evict(num_blocks), expected.size());
    for (const BlockId block : expected) CHECK(pool.is_free(block));
  }

  void check() {
    std::vector<NodeId> pins;
    for (const User& user : users) {
      pins.push_back(user.node);
      CHECK_EQ(cache.path_blocks(user.node), user.blocks);
    }
    cache.check_invariants(pins);
    CHECK_EQ(cache.num_blocks(), twin.entries.size());
    CHECK_EQ(cache.num_evictable_blocks(), twin.num_evictable());
    CHECK_EQ(pool.num_free() + cache.num_blocks(), pool.num_blocks());
  }
};

TEST(prefix_cache, agrees_with_a_dictionary_over_random_histories) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    TwinTest test(seed);
    for (int step = 0; step < 200; ++step) {
      const int choice = test.below(10);
      if (choice < 3 || test.users.empty()) {
        test.arrive();
      } else if (choice < 6 && test.pool.num_free() > 0) {
        test.compute();
      } else if (choice < 8) {
        test.leave();
      } else {
        test.evict();
      }
      test.check();
    }
  }
}

}  // namespace
}  // namespace hocket
