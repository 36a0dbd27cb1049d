// How nodes move. A node is created pinned, by the user that computed its blocks. When its last pin goes it enters the
// eviction list of its class at the newest end, after its descendants, which were unpinned before it: remove_user()
// walks upwards from the node, so within one release the deeper nodes enter first. A pin takes it out again, and
// add_pending() moves an unpinned path to the newest ends of its new classes. Eviction shortens the run of the oldest
// node of the lowest class from its end and drops the node when the run is empty; its parent is then still in a list,
// further back or higher, or pinned.

#include "memory/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

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

PrefixCache::PrefixCache(BlockPool* pool, int32_t block_size, bool is_task_aware)
    : pool_(pool),
      block_size_(block_size),
      is_task_aware_(is_task_aware),
      tokens_(static_cast<size_t>(pool->num_blocks()) * block_size),
      next_(pool->num_blocks(), kNone),
      prev_(pool->num_blocks(), kNone),
      children_(std::bit_ceil(static_cast<uint32_t>(2 * pool->num_blocks())), kNone) {
  nodes_.reserve(pool->num_blocks());
  free_nodes_.reserve(pool->num_blocks());
  evictable_.reserve(pool->num_blocks());
}

NodeId PrefixCache::acquire(std::string_view salt, std::span<const int32_t> tokens, std::vector<BlockId>* blocks,
                            bool is_online) {
  NodeId node = root_of(salt);
  add_user(node);
  if (is_online) mark_online(node);
  while (static_cast<int32_t>(tokens.size()) >= block_size_) {
    const NodeId child = descend(node, tokens);
    if (child == kNone) break;
    add_user(child);
    if (is_online) mark_online(child);
    node = child;
    for (BlockId block = nodes_[node].first_block; block != kNone; block = next_[block]) blocks->push_back(block);
    tokens = tokens.subspan(static_cast<size_t>(nodes_[node].num_blocks) * block_size_);
  }
  return node;
}

PrefixCache::Extension PrefixCache::extend(NodeId node, std::span<const int32_t> tokens, std::span<BlockId> blocks,
                                           std::span<const uint32_t> pending, bool is_online) {
  HOCKET_CHECK(pending.empty() || pending.size() == blocks.size(), "pending counts do not match the blocks");
  Extension result{node, 0};
  while (!blocks.empty()) {
    const NodeId child = descend(result.node, tokens);
    if (child == kNone) break;
    add_user(child);
    if (is_online) mark_online(child);
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
    if (!pending.empty()) pending = pending.subspan(num_shared);
  }
  while (!blocks.empty()) {
    const size_t num_appended = append_uniform(&result.node, tokens, blocks, pending, is_online);
    blocks = blocks.subspan(num_appended);
    tokens = tokens.subspan(num_appended * block_size_);
    if (!pending.empty()) pending = pending.subspan(num_appended);
  }
  return result;
}

void PrefixCache::release(NodeId node) {
  unpin(node);
  while (nodes_[node].parent != kNone) node = nodes_[node].parent;
  drop_root_if_unused(node);
}

bool PrefixCache::is_own(NodeId node) const {
  int32_t num_children = 0;
  for (; nodes_[node].parent != kNone; node = nodes_[node].parent, num_children = 1) {
    const Node& n = nodes_[node];
    if (n.num_users != 1 || n.num_children != num_children || is_valuable(n)) return false;
  }
  return true;
}

NodeId PrefixCache::withdraw(NodeId node) {
  HOCKET_CHECK(is_own(node), "blocks are withdrawn that others use");
  while (nodes_[node].parent != kNone) {
    const NodeId parent = nodes_[node].parent;
    remove_user(node);
    num_blocks_ -= nodes_[node].num_blocks;
    num_evictable_ -= nodes_[node].num_blocks;
    nodes_[node].num_blocks = 0;
    drop_node(node);
    node = parent;
  }
  return node;
}

void PrefixCache::unpin(NodeId node) {
  for (; node != kNone; node = nodes_[node].parent) remove_user(node);
}

void PrefixCache::repin(NodeId node) {
  for (; node != kNone; node = nodes_[node].parent) add_user(node);
}

int32_t PrefixCache::evict(int32_t num_blocks) {
  int32_t num_evicted = 0;
  while (num_evicted < num_blocks) {
    const NodeId node = evictable_.first();
    if (node == kNone) break;
    num_evicted += shorten(node, num_blocks - num_evicted);
  }
  num_evicted_total_ += num_evicted;
  return num_evicted;
}

// Drops up to `max_blocks` blocks from the end of an unpinned leaf, and the leaf with its last; returns how many.
int32_t PrefixCache::shorten(NodeId leaf, int32_t max_blocks) {
  Node& node = nodes_[leaf];
  HOCKET_CHECK(node.num_children == 0 && node.num_users == 0, "the least valuable unpinned node is not a leaf");
  const int32_t num_dropped = std::min(max_blocks, node.num_blocks);
  for (int32_t i = 0; i < num_dropped; ++i) {
    pool_->release(node.last_block);
    node.last_block = prev_[node.last_block];
  }
  node.num_blocks -= num_dropped;
  num_blocks_ -= num_dropped;
  num_evictable_ -= num_dropped;
  if (is_valuable(node)) num_valuable_ -= num_dropped;
  if (node.last_block == kNone) {
    drop_node(leaf);
  } else {
    next_[node.last_block] = kNone;
  }
  return num_dropped;
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

// How much of the run of `node` `tokens` begins with. REQUIRES: they begin with its first block.
PrefixCache::Match PrefixCache::match_run(NodeId node, std::span<const int32_t> tokens) const {
  const int32_t max_blocks = std::min(static_cast<int32_t>(tokens.size()) / block_size_, nodes_[node].num_blocks);
  Match match{nodes_[node].first_block, 1};
  for (; match.num_blocks < max_blocks; ++match.num_blocks) {
    const BlockId block = next_[match.last];
    if (!same_tokens(block, tokens.data() + static_cast<size_t>(match.num_blocks) * block_size_)) break;
    match.last = block;
  }
  return match;
}

// The child of `parent` whose whole run is a prefix of `tokens`, split off a longer run if need be, or kNone.
// REQUIRES: tokens.size() >= block_size.
NodeId PrefixCache::descend(NodeId parent, std::span<const int32_t> tokens) {
  const NodeId child = find_child(parent, tokens.data());
  if (child == kNone) return kNone;
  const Match match = match_run(child, tokens);
  return match.num_blocks == nodes_[child].num_blocks ? child : split(child, match.last, match.num_blocks);
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

// ---- building ----

NodeId PrefixCache::new_node() {
  NodeId node;
  if (free_nodes_.empty()) {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    evictable_.grow_to(nodes_.size());
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  nodes_[node] = Node{};
  nodes_[node].is_live = true;
  return node;
}

// A child without blocks yet, pinned once.
NodeId PrefixCache::new_child(NodeId parent, const int32_t* tokens, int32_t num_pending, bool is_online) {
  const NodeId child = new_node();
  nodes_[child].parent = parent;
  nodes_[child].num_users = 1;
  nodes_[child].pending.num = num_pending;
  nodes_[child].is_online = is_online;
  nodes_[child].bucket = bucket_of(parent, tokens);
  bucket_insert(child);
  ++nodes_[parent].num_children;
  nodes_[parent].pending.num_below += num_pending;
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
  up.pending = {low.pending.num, low.pending.num};
  up.leases = {low.leases.num, low.leases.num};
  up.is_online = low.is_online;
  up.bucket = low.bucket;
  bucket_insert(upper);

  low.parent = upper;
  low.first_block = next_[last_of_upper];
  low.num_blocks -= num_upper;
  low.bucket = bucket_of(upper, block_tokens(low.first_block).data());
  bucket_insert(node);

  next_[last_of_upper] = kNone;
  prev_[low.first_block] = kNone;
  if (up.num_users > 0) return upper;
  evictable_.insert_after(node, upper);
  return upper;
}

// Appends the leading blocks that count the same pending prompts below *node, which becomes the end; returns how many.
// Lengthening a run in place would move the end of everybody who pins it, and of its children.
size_t PrefixCache::append_uniform(NodeId* node, std::span<const int32_t> tokens, std::span<const BlockId> blocks,
                                   std::span<const uint32_t> pending, bool is_online) {
  const Node& end = nodes_[*node];
  const auto limit = static_cast<uint32_t>(max_pending_below(*node));
  const auto count = [&](size_t i) { return static_cast<int32_t>(std::min(pending[i], limit)); };
  const int32_t num_pending = pending.empty() ? 0 : count(0);
  size_t num_uniform = pending.empty() ? blocks.size() : 1;
  while (num_uniform < blocks.size() && count(num_uniform) == num_pending) ++num_uniform;

  is_online = is_online && end.is_online;
  const bool is_only_mine = end.parent != kNone && end.num_users == 1 && end.num_children == 0;
  const bool is_alike = end.pending.num == num_pending && end.leases.num == 0 && end.is_online == is_online;
  if (!is_only_mine || !is_alike) *node = new_child(*node, tokens.data(), num_pending, is_online);
  append_run(*node, tokens, blocks.first(num_uniform));
  return num_uniform;
}

// Pending prompts that a new child of `node` can count. A root counts none itself and has room for all.
int32_t PrefixCache::max_pending_below(NodeId node) const {
  constexpr int32_t kAll = 1 << 30;  // far from overflow
  const Node& n = nodes_[node];
  return std::max(0, (n.parent == kNone ? kAll : n.pending.num) - n.pending.num_below);
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
  end_evictable(node);
  bucket_remove(node);
  nodes_[node].is_live = false;
  free_nodes_.push_back(node);
  --nodes_[parent].num_children;
  nodes_[parent].pending.num_below -= nodes_[node].pending.num;
  nodes_[parent].leases.num_below -= nodes_[node].leases.num;
  if (nodes_[parent].parent == kNone) drop_root_if_unused(parent);
}

void PrefixCache::drop_root_if_unused(NodeId root) {
  if (nodes_[root].num_users > 0 || nodes_[root].num_children > 0) return;
  roots_.erase(roots_.find(*nodes_[root].salt));
  nodes_[root].is_live = false;
  free_nodes_.push_back(root);
}

// ---- users ----

void PrefixCache::add_user(NodeId node) {
  Node& n = nodes_[node];
  if (n.num_users++ > 0 || n.parent == kNone) return;
  end_evictable(node);
}

void PrefixCache::remove_user(NodeId node) {
  Node& n = nodes_[node];
  HOCKET_CHECK(n.num_users > 0, "unpinned a node that nobody pins");
  if (--n.num_users > 0 || n.parent == kNone) return;
  begin_evictable(node);
}

// REQUIRES: `node` is pinned: its class may change. Ignored below a node that is not online.
void PrefixCache::mark_online(NodeId node) {
  Node& n = nodes_[node];
  n.is_online |= n.parent == kNone || nodes_[n.parent].is_online;
}

// ---- counts ----
//
// What pending prompts will use, and what is leased. A prompt is counted by the nodes of its cached path: when it comes
// and goes by add_pending(), and by those that are cached in between as extend() is told. A lease is counted by what
// was cached when it began.
//
// A caller that counts wrongly (it may work with hashes, and what a lease counted may have been evicted and cached
// again) makes eviction choose badly and nothing worse: here and in extend() a node's count is kept at least the sum of
// its children's, on which the order of eviction rests.

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
    end_evictable(node);
    (n.*count).num = num;
    begin_evictable(node);
  } else {
    num_valuable_ -= is_valuable(n) ? n.num_blocks : 0;
    (n.*count).num = num;
    num_valuable_ += is_valuable(n) ? n.num_blocks : 0;
  }
}

// ---- hash chains and who is evictable ----

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

int32_t PrefixCache::class_of(const Node& node) const {
  if (node.leases.num > 0) return kLeasedClass + leased_class(node.leases.num);
  if (!is_task_aware_) return kOfflineClass;
  if (node.pending.num > 0) return kOnlineClass + std::min(node.pending.num, kMaxPendingClass);
  return node.is_online ? kOnlineClass : kOfflineClass;
}

// The octave of the weight, and the two bits after its first: it never falls as the weight grows.
int32_t PrefixCache::leased_class(int32_t weight) {
  const auto bits = static_cast<uint64_t>(weight) << 2;
  const int32_t octave = std::bit_width(bits) - 3;
  const auto quarter = static_cast<int32_t>(bits >> octave & 3);
  return std::min(4 * octave + quarter, kNumLeasedClasses - 1);
}

// As the newest of its class.
void PrefixCache::begin_evictable(NodeId node) {
  const Node& n = nodes_[node];
  evictable_.append(node, class_of(n));
  num_evictable_ += n.num_blocks;
  if (is_valuable(n)) num_valuable_ += n.num_blocks;
}

void PrefixCache::end_evictable(NodeId node) {
  const Node& n = nodes_[node];
  evictable_.remove(node);
  num_evictable_ -= n.num_blocks;
  if (is_valuable(n)) num_valuable_ -= n.num_blocks;
}

}  // namespace hocket
