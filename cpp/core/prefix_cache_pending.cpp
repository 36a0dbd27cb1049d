// What pending prompts will use, and what is leased. A prompt is counted by the nodes of its cached path: when it comes
// and goes by add_pending(), and by those that are cached in between as extend() is told. A lease is counted by what
// was cached when it began.
//
// A caller that counts wrongly (it may work with hashes, and what a lease counted may have been evicted and cached
// again) makes eviction choose badly and nothing worse: here and in extend() a node's count is kept at least the sum of
// its children's, on which the order of eviction rests.

#include <algorithm>

#include "prefix_cache.h"

namespace hocket {

void PrefixCache::add_count(PathCount Node::* count, std::string_view salt, std::span<const int32_t> tokens,
                            int32_t delta) {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return;
  NodeId node = root->second;
  while (static_cast<int32_t>(tokens.size()) >= block_size_) {
    const NodeId child = descend(node, tokens);
    if (child == kNone) break;
    node = child;
    tokens = tokens.subspan(static_cast<size_t>(nodes_[node].num_blocks) * block_size_);
  }
  int32_t change_below = 0;
  for (; node != root->second; node = nodes_[node].parent) {
    PathCount& c = nodes_[node].*count;
    c.num_below += change_below;
    const int32_t num = std::max(c.num + delta, c.num_below);
    change_below = num - c.num;
    set_count(count, node, num);
  }
  (nodes_[node].*count).num_below += change_below;
}

// An unpinned node moves to the newest end of its class. REQUIRES: its unpinned ancestors move after it.
void PrefixCache::set_count(PathCount Node::* count, NodeId node, int32_t num) {
  Node& n = nodes_[node];
  if (n.num_users > 0) {
    (n.*count).num = num;
  } else if (is_task_aware_ || count == &Node::leases) {
    list_remove(node);
    (n.*count).num = num;
    list_append(node);
  } else {
    num_valuable_ -= is_valuable(n) ? n.num_blocks : 0;
    (n.*count).num = num;
    num_valuable_ += is_valuable(n) ? n.num_blocks : 0;
  }
}

int32_t PrefixCache::num_cached_blocks(std::string_view salt, std::span<const int32_t> tokens) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return 0;
  NodeId node = root->second;
  int32_t num_cached = 0;
  while (static_cast<int32_t>(tokens.size()) >= block_size_) {
    node = find_child(node, tokens.data());
    if (node == kNone) break;
    const Match match = match_run(node, tokens);
    num_cached += match.num_blocks;
    if (match.num_blocks < nodes_[node].num_blocks) break;
    tokens = tokens.subspan(static_cast<size_t>(match.num_blocks) * block_size_);
  }
  return num_cached;
}

}  // namespace hocket
