// A small prefix cache to play with, and its twin: a dictionary that is searched in full.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <ranges>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "memory/block_pool.h"
#include "memory/prefix_cache.h"
#include "memory/prefix_cache_check.h"
#include "testing.h"

namespace hocket {

using Tokens = std::vector<int32_t>;

inline constexpr int32_t kBlockSize = 2;

// A user of the cache: what it has pinned, and the blocks of its path.
struct User {
  NodeId node = kNone;
  std::string salt;
  Tokens tokens;
  std::vector<BlockId> blocks;
  bool is_online = true;
};

struct Cache {
  BlockPool pool{/*num_units=*/40, /*units_per_block=*/2};
  PrefixCache cache;

  explicit Cache(bool is_task_aware = true) : cache(&pool, kBlockSize, is_task_aware) {}

  User acquire(const Tokens& tokens, const std::string& salt = "", bool is_online = true) {
    User user{kNone, salt, {}, {}, is_online};
    user.node = cache.acquire(salt, tokens, &user.blocks, is_online);
    user.tokens.assign(tokens.begin(), tokens.begin() + std::ssize(user.blocks) * kBlockSize);
    return user;
  }

  // Computes `tokens` after the user's path in blocks of its own and offers them; returns how many the tree had.
  int32_t extend(User* user, const Tokens& tokens, const std::vector<uint32_t>& pending = {}) {
    std::vector<BlockId> blocks;
    for (size_t i = 0; i < tokens.size() / kBlockSize; ++i) blocks.push_back(pool.allocate());
    const auto [node, num_replaced] = cache.extend(user->node, tokens, blocks, pending, user->is_online);
    user->node = node;
    user->blocks.insert(user->blocks.end(), blocks.begin(), blocks.end());
    user->tokens.insert(user->tokens.end(), tokens.begin(), tokens.end());
    return num_replaced;
  }

  // Caches `tokens` and lets go of them.
  std::vector<BlockId> put(const Tokens& tokens, const std::string& salt = "", bool is_online = true) {
    User user = acquire(tokens, salt, is_online);
    extend(&user, Tokens(tokens.begin() + std::ssize(user.tokens), tokens.end()));
    cache.release(user.node);
    return user.blocks;
  }

  std::vector<BlockId> put_offline(const Tokens& tokens) { return put(tokens, "", /*is_online=*/false); }

  // How many tokens of `tokens` are cached, and uses them.
  size_t lookup(const Tokens& tokens, const std::string& salt = "") {
    const User user = acquire(tokens, salt);
    cache.release(user.node);
    return user.tokens.size();
  }
};

struct TwinOptions {
  bool is_task_aware = true;
  bool has_offline = false;  // offline requests and pending prompts beside the online requests
};

// A dictionary from (salt, prefix) to its block, and a scan for everything else.
struct Twin {
  struct Entry {
    BlockId block;
    int num_users;
    int64_t unpinned_at;
    bool is_online;
  };
  using Key = std::pair<std::string, Tokens>;

  const bool is_task_aware;
  std::map<Key, Entry> entries;
  std::map<Key, int> pending;  // how many prompts
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

  int num_pending(const Key& prefix) const {
    int count = 0;
    for (const auto& [prompt, num_prompts] : pending) {
      const bool is_shorter = prompt.second.size() < prefix.second.size() || prompt.first != prefix.first;
      if (!is_shorter &&
          std::ranges::equal(prefix.second, std::views::take(prompt.second, std::ssize(prefix.second)))) {
        count += num_prompts;
      }
    }
    return count;
  }

  std::vector<uint32_t> num_pending_on(const User& user, size_t first_block) const {
    std::vector<uint32_t> counts;
    for (size_t i = first_block; i < user.tokens.size() / kBlockSize; ++i) {
      counts.push_back(static_cast<uint32_t>(num_pending(prefix(user, i + 1))));
    }
    return counts;
  }

  void add_pending(const Key& prompt, int delta) {
    pending[prompt] += delta;
    if (pending[prompt] == 0) pending.erase(prompt);
    if (!is_task_aware) return;
    ++now;
    for (size_t i = 1; i <= find(prompt.first, prompt.second).size(); ++i) {
      Entry& entry = entries.at({prompt.first, Tokens(prompt.second.begin(), prompt.second.begin() + i * kBlockSize)});
      if (entry.num_users == 0) entry.unpinned_at = now;
    }
  }

  void pin(const User& user, int change) {
    ++now;
    for (size_t i = 1; i <= user.blocks.size(); ++i) {
      Entry& entry = entries.at(prefix(user, i));
      entry.num_users += change;
      entry.is_online |= user.is_online;
      if (entry.num_users == 0) entry.unpinned_at = now;
    }
  }

  // Echo section 4.2: what nobody waits for before the rest, then what no online request has used. Counts above 60 are
  // equal to the cache.
  double priority(const std::pair<const Key, Entry>& entry) const {
    if (!is_task_aware) return 0;
    const int rc = std::min(num_pending(entry.first), 60);
    return rc > 0 ? rc : entry.second.is_online ? 0.5 : 0;
  }

  // Least priority first, then oldest, then deeper.
  BlockId evict() {
    auto victim = entries.end();
    const auto rank = [this](auto e) {
      return std::tuple(priority(*e), e->second.unpinned_at, -std::ssize(e->first.second));
    };
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->second.num_users > 0) continue;
      if (victim == entries.end() || rank(it) < rank(victim)) victim = it;
    }
    if (victim == entries.end()) return kNone;
    const BlockId block = victim->second.block;
    entries.erase(victim);
    return block;
  }

  int num_evictable() const {
    return static_cast<int>(std::ranges::count_if(entries, [](const auto& e) { return e.second.num_users == 0; }));
  }

  int num_valuable_evictable() const {
    return static_cast<int>(std::ranges::count_if(
        entries, [this](const auto& e) { return e.second.num_users == 0 && num_pending(e.first) > 0; }));
  }
};

struct TwinTest : Cache {
  const TwinOptions options;
  Twin twin;
  std::vector<User> users;
  std::mt19937 random;

  TwinTest(unsigned seed, TwinOptions twin_options)
      : Cache(twin_options.is_task_aware), options(twin_options), twin{options.is_task_aware, {}, {}}, random(seed) {}

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); }

  Tokens random_tokens(int num_tokens) {
    Tokens tokens(num_tokens);
    for (int32_t& token : tokens) token = below(2);
    return tokens;
  }

  std::string random_salt() { return below(2) ? "a" : "b"; }

  void arrive() {
    const Tokens tokens = random_tokens(below(12));
    const std::string salt = random_salt();
    const auto expected = twin.find(salt, tokens);
    CHECK_EQ(cache.num_cached_blocks(salt, tokens), expected.size());
    users.push_back(acquire(tokens, salt, !options.has_offline || below(2) > 0));
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
    const User extended{kNone, user.salt, all, {}};
    const auto pending = options.has_offline ? twin.num_pending_on(extended, num_before) : std::vector<uint32_t>{};
    CHECK_EQ(extend(&user, tokens, pending), known.size() - num_before);
    CHECK_EQ(user.tokens, all);
    CHECK(std::equal(known.begin(), known.end(), user.blocks.begin()));
    for (size_t i = known.size(); i < user.blocks.size(); ++i) {
      twin.entries[Twin::prefix(user, i + 1)] = {user.blocks[i], 0, 0, false};
    }
    twin.pin(user, +1);
  }

  void leave() {
    std::swap(users[below(static_cast<int>(users.size()))], users.back());
    cache.release(users.back().node);
    twin.pin(users.back(), -1);
    users.pop_back();
  }

  void pend() {
    const Twin::Key prompt{random_salt(), random_tokens(below(12))};
    const int delta = below(6) == 0 ? 40 : 1;
    twin.add_pending(prompt, delta);
    cache.add_pending(prompt.first, prompt.second, delta);
  }

  void unpend() {
    const auto [prompt, num_prompts] = *std::next(twin.pending.begin(), below(static_cast<int>(twin.pending.size())));
    const int delta = -1 - below(num_prompts);
    twin.add_pending(prompt, delta);
    cache.add_pending(prompt.first, prompt.second, delta);
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
      CHECK_EQ(PrefixCacheCheck(cache).path_blocks(user.node), user.blocks);
      CHECK_EQ(PrefixCacheCheck(cache).path_pending(user.node), twin.num_pending_on(user, 0));
    }
    PrefixCacheCheck(cache).run(pins);
    CHECK_EQ(cache.num_blocks(), twin.entries.size());
    CHECK_EQ(cache.num_evictable_blocks(), twin.num_evictable());
    CHECK_EQ(cache.num_valuable_evictable_blocks(), twin.num_valuable_evictable());
    CHECK_EQ(pool.num_free() + cache.num_blocks(), pool.num_blocks());
  }

  // One random operation, and everything checked.
  void step() {
    const int choice = below(10);
    if (options.has_offline && below(4) == 0) {
      twin.pending.empty() || below(2) ? pend() : unpend();
    } else if (choice < 3 || users.empty()) {
      arrive();
    } else if (choice < 6 && pool.num_free() > 0) {
      compute();
    } else if (choice < 8) {
      leave();
    } else {
      evict();
    }
    check();
  }
};

}  // namespace hocket
