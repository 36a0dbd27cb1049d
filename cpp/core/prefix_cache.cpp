// How nodes move. A node is created pinned, by the user that computed its blocks. When its last pin goes it enters the
// eviction list at the newest end, after its descendants, which were unpinned before it: remove_user() walks upwards
// from the node, so within one release the deeper nodes enter first. A pin takes it out again. Eviction shortens the
// run of the oldest node from its end and drops the node when the run is empty; its parent is then still in the list,
// further back, or pinned.

#include "prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "check.h"

namespace hocket {
namespace {

// Multiply-xorshift over pairs of tokens. Quality matters for chain lengths only, never for correctness.
uint64_t hash_tokens(uint64_t seed, const int32_t* tokens, int32_t num_tokens) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = (seed + 1) * kMultiplier;
  int32_t i = 0;
  for (; i + 2 <= num_tokens; i += 2) {
    uint64_t pair;
    std::memcpy(&pair, tokens + i, sizeof pair);
    hash = (hash ^ pair) * kMultiplier;
    hash ^= hash >> 32;
  }
  if (i < num_tokens) hash = (hash ^ static_cast<uint32_t>(tokens[i])) * kMultiplier;
  return hash ^ (hash >> 29);
}

}  // namespace

PrefixCache::PrefixCache(BlockPool* pool, int32_t block_size)
    : pool_(pool),
      block_size_(block_size),
      tokens_(static_cast<size_t>(pool->num_blocks()) * block_size),
      next_(pool->num_blocks(), kNone),
      prev_(pool->num_blocks(), kNone),
      children_(std::bit_ceil(static_cast<uint32_t>(2 * pool->num_blocks())), kNone) {
  nodes_.reserve(pool->num_blocks());
  free_nodes_.reserve(pool->num_blocks());
}

NodeId PrefixCache::acquire(std::string_view salt, std::span<const int32_t> tokens, std::vector<BlockId>* blocks) {
  NodeId node = root_of(salt);
  add_user(node);
  while (static_cast<int32_t>(tokens.size()) >= block_size_) {
    const NodeId child = descend(node, tokens);
    if (child == kNone) break;
    add_user(child);
    node = child;
    for (BlockId block = nodes_[node].first_block; block != kNone; block = next_[block]) blocks->push_back(block);
    tokens = tokens.subspan(static_cast<size_t>(nodes_[node].num_blocks) * block_size_);
  }
  return node;
}

PrefixCache::Extension PrefixCache::extend(NodeId node, std::span<const int32_t> tokens, std::span<BlockId> blocks) {
  Extension result{node, 0};
  while (!blocks.empty()) {
    const NodeId child = descend(result.node, tokens);
    if (child == kNone) break;
    add_user(child);
    result.node = child;
    const int32_t num_shared = nodes_[child].num_blocks;
    BlockId theirs = nodes_[child].first_block;
    for (int32_t i = 0; i < num_shared; ++i, theirs = next_[theirs]) {
      pool_->release(blocks[i]);
      blocks[i] = theirs;
    }
    result.num_replaced += num_shared;
    blocks = blocks.subspan(num_shared);
    tokens = tokens.subspan(static_cast<size_t>(num_shared) * block_size_);
  }
  if (blocks.empty()) return result;

  // Lengthening a run in place would move the end of everybody who pins it, and of its children.
  const Node& end = nodes_[result.node];
  const bool is_only_mine = end.parent != kNone && end.num_users == 1 && end.num_children == 0;
  if (!is_only_mine) result.node = new_child(result.node, tokens.data());
  append_run(result.node, tokens, blocks);
  return result;
}

void PrefixCache::release(NodeId node) {
  unpin(node);
  while (nodes_[node].parent != kNone) node = nodes_[node].parent;
  drop_root_if_unused(node);
}

void PrefixCache::unpin(NodeId node) {
  for (; node != kNone; node = nodes_[node].parent) remove_user(node);
}

void PrefixCache::repin(NodeId node) {
  for (; node != kNone; node = nodes_[node].parent) add_user(node);
}

int32_t PrefixCache::evict(int32_t num_blocks) {
  int32_t num_evicted = 0;
  for (; num_evicted < num_blocks && oldest_ != kNone; ++num_evicted) {
    Node& node = nodes_[oldest_];
    HOCKET_CHECK(node.num_children == 0 && node.num_users == 0, "the oldest unpinned node is not a leaf");
    const BlockId block = node.last_block;
    node.last_block = prev_[block];
    --node.num_blocks;
    --num_blocks_;
    --num_evictable_;
    pool_->release(block);
    if (node.last_block == kNone) {
      drop_node(oldest_);
    } else {
      next_[node.last_block] = kNone;
    }
  }
  num_evicted_total_ += num_evicted;
  return num_evicted;
}

// ---- finding ----

bool PrefixCache::same_tokens(BlockId block, const int32_t* tokens) const {
  return std::memcmp(block_tokens(block).data(), tokens, sizeof(int32_t) * block_size_) == 0;
}

uint32_t PrefixCache::bucket_of(NodeId parent, const int32_t* tokens) const {
  const uint64_t hash = hash_tokens(static_cast<uint64_t>(parent), tokens, block_size_);
  return static_cast<uint32_t>(hash) & static_cast<uint32_t>(children_.size() - 1);
}

NodeId PrefixCache::root_of(std::string_view salt) {
  if (const auto found = roots_.find(salt); found != roots_.end()) return found->second;
  const NodeId root = new_node();
  const auto inserted = roots_.emplace(std::string(salt), root).first;
  nodes_[root].salt = &inserted->first;  // keys do not move
  return root;
}

NodeId PrefixCache::find_child(NodeId parent, const int32_t* tokens) const {
  if (nodes_[parent].num_children == 0) return kNone;
  NodeId node = children_[bucket_of(parent, tokens)];
  while (node != kNone && !(nodes_[node].parent == parent && same_tokens(nodes_[node].first_block, tokens))) {
    node = nodes_[node].next_in_bucket;
  }
  return node;
}

// The child of `parent` whose whole run is a prefix of `tokens`, split off a longer run if need be, or kNone.
// REQUIRES: tokens.size() >= block_size.
NodeId PrefixCache::descend(NodeId parent, std::span<const int32_t> tokens) {
  const NodeId child = find_child(parent, tokens.data());
  if (child == kNone) return kNone;
  const int32_t max_blocks = static_cast<int32_t>(tokens.size()) / block_size_;
  BlockId last = nodes_[child].first_block;
  int32_t num_matched = 1;
  for (; num_matched < std::min(max_blocks, nodes_[child].num_blocks); ++num_matched) {
    const BlockId block = next_[last];
    if (!same_tokens(block, tokens.data() + static_cast<size_t>(num_matched) * block_size_)) break;
    last = block;
  }
  return num_matched == nodes_[child].num_blocks ? child : split(child, last, num_matched);
}

// ---- building ----

NodeId PrefixCache::new_node() {
  NodeId node;
  if (free_nodes_.empty()) {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  nodes_[node] = Node{};
  nodes_[node].is_live = true;
  return node;
}

// A child without blocks yet, pinned once.
NodeId PrefixCache::new_child(NodeId parent, const int32_t* tokens) {
  const NodeId child = new_node();
  nodes_[child].parent = parent;
  nodes_[child].num_users = 1;
  nodes_[child].bucket = bucket_of(parent, tokens);
  bucket_insert(child);
  ++nodes_[parent].num_children;
  return child;
}

// Cuts the run of `node` after its first num_upper blocks; `node` keeps the rest. Returns the new upper node.
NodeId PrefixCache::split(NodeId node, BlockId last_of_upper, int32_t num_upper) {
  const NodeId upper = new_node();
  Node& low = nodes_[node];
  Node& up = nodes_[upper];

  bucket_remove(node);
  up.parent = low.parent;
  up.first_block = low.first_block;
  up.last_block = last_of_upper;
  up.num_blocks = num_upper;
  up.num_users = low.num_users;
  up.num_children = 1;
  up.bucket = low.bucket;
  bucket_insert(upper);

  low.parent = upper;
  low.first_block = next_[last_of_upper];
  low.num_blocks -= num_upper;
  low.bucket = bucket_of(upper, block_tokens(low.first_block).data());
  bucket_insert(node);

  next_[last_of_upper] = kNone;
  prev_[low.first_block] = kNone;
  if (up.num_users == 0) list_insert(upper, /*older=*/node);
  return upper;
}

// REQUIRES: `node` is pinned, by the owner of `blocks` alone.
void PrefixCache::append_run(NodeId node, std::span<const int32_t> tokens, std::span<const BlockId> blocks) {
  Node& run = nodes_[node];
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockId block = blocks[i];
    std::copy_n(tokens.begin() + i * block_size_, block_size_,
                tokens_.begin() + static_cast<size_t>(block) * block_size_);
    prev_[block] = run.last_block;
    next_[block] = kNone;
    (run.last_block == kNone ? run.first_block : next_[run.last_block]) = block;
    run.last_block = block;
  }
  run.num_blocks += static_cast<int32_t>(blocks.size());
  num_blocks_ += static_cast<int32_t>(blocks.size());
}

// REQUIRES: no user, no child, no block.
void PrefixCache::drop_node(NodeId node) {
  const NodeId parent = nodes_[node].parent;
  list_remove(node);
  bucket_remove(node);
  nodes_[node].is_live = false;
  free_nodes_.push_back(node);
  --nodes_[parent].num_children;
  if (nodes_[parent].parent == kNone) drop_root_if_unused(parent);
}

void PrefixCache::drop_root_if_unused(NodeId root) {
  if (nodes_[root].num_users > 0 || nodes_[root].num_children > 0) return;
  roots_.erase(roots_.find(*nodes_[root].salt));
  nodes_[root].is_live = false;
  free_nodes_.push_back(root);
}

// ---- users and the eviction list ----

void PrefixCache::add_user(NodeId node) {
  Node& n = nodes_[node];
  if (n.num_users++ > 0 || n.parent == kNone) return;
  list_remove(node);
  num_evictable_ -= n.num_blocks;
}

void PrefixCache::remove_user(NodeId node) {
  Node& n = nodes_[node];
  HOCKET_CHECK(n.num_users > 0, "unpinned a node that nobody pins");
  if (--n.num_users > 0 || n.parent == kNone) return;
  list_insert(node, /*older=*/newest_);
  num_evictable_ += n.num_blocks;
}

void PrefixCache::bucket_insert(NodeId node) {
  NodeId& head = children_[nodes_[node].bucket];
  nodes_[node].next_in_bucket = head;
  head = node;
}

void PrefixCache::bucket_remove(NodeId node) {
  NodeId* link = &children_[nodes_[node].bucket];
  while (*link != node) link = &nodes_[*link].next_in_bucket;
  *link = nodes_[node].next_in_bucket;
}

// Inserts `node` just after `older`, or as the oldest if that is kNone.
void PrefixCache::list_insert(NodeId node, NodeId older) {
  Node& n = nodes_[node];
  n.older = older;
  n.newer = older == kNone ? oldest_ : nodes_[older].newer;
  (n.older == kNone ? oldest_ : nodes_[n.older].newer) = node;
  (n.newer == kNone ? newest_ : nodes_[n.newer].older) = node;
}

void PrefixCache::list_remove(NodeId node) {
  const Node& n = nodes_[node];
  (n.older == kNone ? oldest_ : nodes_[n.older].newer) = n.newer;
  (n.newer == kNone ? newest_ : nodes_[n.newer].older) = n.older;
}

}  // namespace hocket
