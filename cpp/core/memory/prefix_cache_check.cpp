#include "memory/prefix_cache_check.h"

#include <algorithm>

#include "base/check.h"

namespace hocket {

PrefixCacheCheck::PrefixCacheCheck(const PrefixCache& cache)
    : cache_(cache), nodes_(cache.nodes_), next_(cache.next_), prev_(cache.prev_) {}

std::vector<BlockId> PrefixCacheCheck::path_blocks(NodeId node) const {
  std::vector<NodeId> path;
  for (; node != kNone; node = nodes_[node].parent) path.push_back(node);
  std::vector<BlockId> blocks;
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    for (BlockId block = nodes_[*it].first_block; block != kNone; block = next_[block]) blocks.push_back(block);
  }
  return blocks;
}

std::vector<int32_t> PrefixCacheCheck::path_pending(NodeId node) const {
  std::vector<int32_t> counts;
  for (; nodes_[node].parent != kNone; node = nodes_[node].parent) {
    counts.insert(counts.begin(), static_cast<size_t>(nodes_[node].num_blocks), nodes_[node].pending.num);
  }
  return counts;
}

std::vector<int32_t> PrefixCacheCheck::path_leases(NodeId node) const {
  std::vector<int32_t> counts;
  for (; nodes_[node].parent != kNone; node = nodes_[node].parent) {
    counts.insert(counts.begin(), static_cast<size_t>(nodes_[node].num_blocks), nodes_[node].leases.num);
  }
  return counts;
}

void PrefixCacheCheck::run(std::span<const NodeId> pins) const {
  const size_t num_nodes = nodes_.size();
  std::vector<int32_t> num_users(num_nodes, 0);
  std::vector<int32_t> num_children(num_nodes, 0);
  std::vector<int32_t> num_pending_below(num_nodes, 0);
  std::vector<int32_t> num_leases_below(num_nodes, 0);
  std::vector<uint8_t> seen_blocks(next_.size(), 0);
  for (NodeId node : pins) {
    for (; node != kNone; node = nodes_[node].parent) ++num_users[node];
  }

  int32_t num_in_tree = 0;
  int32_t num_unpinned = 0;
  int32_t num_valuable = 0;
  size_t num_live = 0;
  size_t num_roots = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(num_nodes); ++id) {
    const PrefixCache::Node& node = nodes_[id];
    if (!node.is_live) continue;
    check_node(id, &seen_blocks);
    ++num_live;
    num_roots += node.parent == kNone;
    num_in_tree += node.num_blocks;
    if (node.num_users == 0) num_unpinned += node.num_blocks;
    if (node.num_users == 0 && PrefixCache::is_valuable(node)) num_valuable += node.num_blocks;
    if (node.parent == kNone) continue;
    ++num_children[node.parent];
    num_pending_below[node.parent] += node.pending.num;
    num_leases_below[node.parent] += node.leases.num;
  }
  for (size_t id = 0; id < num_nodes; ++id) {
    if (!nodes_[id].is_live) continue;
    HOCKET_CHECK(nodes_[id].num_users == num_users[id], "a node's user count differs from its pins");
    HOCKET_CHECK(nodes_[id].num_children == num_children[id], "a node's child count differs from its children");
    check_value(static_cast<NodeId>(id), num_pending_below[id], num_leases_below[id]);
  }
  HOCKET_CHECK(num_in_tree == cache_.num_blocks_ && num_unpinned == cache_.num_evictable_,
               "block counts differ from the tree's");
  HOCKET_CHECK(num_valuable == cache_.num_valuable_, "the count of valuable blocks differs from the tree's");
  HOCKET_CHECK(num_roots == cache_.roots_.size(), "roots differ from the salts");
  HOCKET_CHECK(num_live + cache_.free_nodes_.size() == num_nodes, "nodes are lost");
  cache_.evictable_.check_invariants();
  check_eviction_order();
}

void PrefixCacheCheck::check_node(NodeId id, std::vector<uint8_t>* seen_blocks) const {
  const PrefixCache::Node& node = nodes_[id];
  if (node.parent == kNone) {
    const auto root = cache_.roots_.find(*node.salt);
    HOCKET_CHECK(root != cache_.roots_.end() && root->second == id && node.num_blocks == 0, "a root is not its salt's");
    HOCKET_CHECK(node.num_users > 0 || node.num_children > 0, "a root is of no use");
    return;
  }
  HOCKET_CHECK(nodes_[node.parent].is_live, "a node's parent is gone");
  HOCKET_CHECK(node.num_users <= nodes_[node.parent].num_users, "a node has more users than its parent");
  HOCKET_CHECK(cache_.find_child(node.parent, cache_.block_tokens(node.first_block).data()) == id,
               "a node is not found");

  int32_t length = 0;
  BlockId last = kNone;
  for (BlockId block = node.first_block; block != kNone; last = block, block = next_[block], ++length) {
    HOCKET_CHECK(!(*seen_blocks)[block] && !cache_.pool_->is_free(block),
                 "a cached block is free or twice in the tree");
    HOCKET_CHECK(prev_[block] == last, "a run's links differ");
    (*seen_blocks)[block] = 1;
  }
  HOCKET_CHECK(length == node.num_blocks && length > 0 && last == node.last_block, "a run's length is wrong");
}

// What decides the class, and that it never rises with depth: statement (1) of prefix_cache.h.
void PrefixCacheCheck::check_value(NodeId id, int32_t num_pending_below, int32_t num_leases_below) const {
  const PrefixCache::Node& node = nodes_[id];
  HOCKET_CHECK(node.pending.num_below == num_pending_below, "the pending prompts of a node's children are miscounted");
  HOCKET_CHECK(node.leases.num_below == num_leases_below, "the leases of a node's children are miscounted");
  if (node.parent == kNone) return;
  HOCKET_CHECK(node.pending.num >= num_pending_below, "a node counts fewer pending prompts than its children");
  HOCKET_CHECK(node.leases.num >= num_leases_below, "a node counts fewer leases than its children");
  HOCKET_CHECK(!node.is_online || nodes_[node.parent].is_online, "a node is online and its parent is not");
  HOCKET_CHECK(nodes_[node.parent].parent == kNone || cache_.class_of(node) <= cache_.class_of(nodes_[node.parent]),
               "a node has a higher class than its parent");
}

// A list holds unpinned nodes of its class, and none before its children: statement (2) of prefix_cache.h.
void PrefixCacheCheck::check_eviction_order() const {
  const EvictionLists& lists = cache_.evictable_;
  std::vector<uint8_t> passed(nodes_.size(), 0);
  int32_t num_listed = 0;
  for (int32_t c = 0; c < lists.num_classes(); ++c) {
    for (NodeId id = lists.oldest(c); id != kNone; id = lists.newer(id)) {
      const PrefixCache::Node& node = nodes_[id];
      HOCKET_CHECK(node.is_live && node.parent != kNone && node.num_users == 0, "an eviction list holds a wrong node");
      HOCKET_CHECK(cache_.class_of(node) == c, "a node is in the list of another class");
      HOCKET_CHECK(!passed[id] && !passed[node.parent], "a node is evicted before its child");
      passed[id] = 1;
      num_listed += node.num_blocks;
    }
  }
  HOCKET_CHECK(num_listed == cache_.num_evictable_, "the eviction lists are incomplete");
}

}  // namespace hocket
