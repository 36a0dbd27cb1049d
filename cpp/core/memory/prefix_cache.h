// The prefix cache: which complete blocks of tokens are in memory, found by content.
//
// A radix tree per salt. The salt is the key of the root and compared exactly, so tenants with different salts share
// nothing; below it, an edge is a run of complete blocks of token ids, compared token by token. A hash only finds the
// candidates: no collision can ever return another prompt's or another tenant's blocks.
//
//   root("salt") -- node [b0 b1 b2] --+-- node [b3]          each b holds block_size token ids and names
//                                     +-- node [b4 b5]       the block whose units hold their vectors
//
// A user (a running request) pins a node: that node and all its ancestors then stay in memory, and the blocks of its
// path are the first blocks of its block table. The node that a user pins always ends where the user's path ends. When
// a path must end inside a run, the run is split, and the lower part keeps the node's identity, so pins stay valid.
//
// Blocks on no pinned path are evictable, the least valuable class first (Echo section 4.2): what only offline requests
// have used, what an online request has used, what one pending offline prompt begins with, two, and so on. Within a
// class the least recently released comes first, a leaf's last block before the others; that a prompt begins or ceases
// to be pending counts as a release of what it would use. Without offline requests there is one class, so this is LRU.
//
// Above all these stands what is leased: somebody is expected to use it soon (announcements.h). A lease keeps
// nothing from being evicted; it is evicted last, and so taken back at once when there is nothing else. Leases have
// weights, and what has less of them goes first (Symphony section 3: the smallest sessions); four classes for every
// doubling, and among equals the order of the other classes.
//
// The unpinned nodes stand in one list per class (eviction_lists.h), and evicting one block is O(1), because the head
// of the lowest list that is not empty is a leaf. Proof: the descendants of an unpinned node are unpinned, so a child
// of that head would stand in a list. Not in a lower one: those are empty. Not in a higher one: by (1). Not in the
// same: by (2).
//
// (1) A child's class is at most its parent's. A class depends on three things only: whether an online request has used
//     the node, which is recorded on the whole path, how many pending prompts begin with its path, and the weight of
//     its leases, which both are kept at least the sum of the children's. What a caller says against that is cut off or
//     ignored.
// (2) In one list a node stands before its ancestors. Nodes enter at the newest end, and only in walks up a path to the
//     root (unpin, add_pending, add_lease): all unpinned ancestors of the node enter after it, in the same walk. Where
//     a run is split, its parts are neighbours in the list.
//
// A run is uniform: all its blocks count the same pending prompts and leases and have had the same users. Where that
// changes, the run is cut.
//
// The tree owns its blocks: extend() takes them over and evict() gives their units back to the pool.
//
// Cost: acquire(), extend(), add_pending(), add_lease() are linear in the tokens compared, pin and unpin in the depth
// of the path. Thread safety: none. Allocation: only when a salt is new, or when there are more roots than ever before.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "memory/block_pool.h"
#include "memory/eviction_lists.h"

namespace hocket {

class PrefixCache {
 public:
  // Not task-aware: one class for all, which is LRU; what is pending is counted all the same.
  // REQUIRES: `pool` outlives this; block_size >= 1.
  PrefixCache(BlockPool* pool, int32_t block_size, bool is_task_aware = true);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Finds the longest cached prefix of `tokens` in complete blocks under `salt`, pins its node and appends the blocks
  // of its path to *blocks. Always returns a node, the root if nothing matches. Caller must release() it.
  // is_online: the path counts as used by an online request from now on.
  NodeId acquire(std::string_view salt, std::span<const int32_t> tokens, std::vector<BlockId>* blocks,
                 bool is_online = true);

  struct Extension {
    NodeId node;           // pinned in place of the node given
    int32_t num_replaced;  // leading entries of `blocks` that now name blocks the tree already had
  };

  // Appends complete blocks to the path of a pinned node. Those that the tree already has are replaced in `blocks` by
  // the tree's, and the caller's go back to the pool: two requests that computed the same block share one from then on.
  // The others become the tree's.
  // pending[i]: pending prompts that begin with the path through block i, all that add_pending() was told; empty: none.
  // What exceeds the count of the block before (less its other continuations') is cut off.
  // REQUIRES: `node` is pinned by the caller; the caller owns `blocks`; tokens.size() == blocks.size() * block_size;
  // pending is empty or as long as blocks; is_online as in the caller's acquire().
  Extension extend(NodeId node, std::span<const int32_t> tokens, std::span<BlockId> blocks,
                   std::span<const uint32_t> pending = {}, bool is_online = true);

  // Gives up a pin. REQUIRES: the caller pinned `node`.
  void release(NodeId node);

  // Whether nobody but the one user of `node` has any block of its path, or is expected to: no other pin, no
  // continuation, no pending prompt, no lease. True for a root.
  bool is_own(NodeId node) const;
  // Takes the path's blocks out of the tree: they are the caller's again. Returns the root, pinned in place of `node`.
  // REQUIRES: is_own(node), and the caller pinned it.
  NodeId withdraw(NodeId node);

  // Gives up a pin for a moment, to see what could be evicted without it.
  // REQUIRES: repin() follows before anything else than the const methods and other unpin() and repin().
  void unpin(NodeId node);
  void repin(NodeId node);

  // A prompt begins (+1) or ceases (-1) to be pending: counted along its longest cached prefix in complete blocks. No
  // count falls below 0, nor below the sum of the counts that continue it.
  void add_pending(std::string_view salt, std::span<const int32_t> tokens, int32_t delta) {
    add_count(&Node::pending, salt, tokens, delta);
  }

  // The same for leases, delta being plus or minus the lease's weight. What is cached later than its lease is not
  // leased: lease it again. REQUIRES: all weights together are less than 2^31.
  void add_lease(std::string_view salt, std::span<const int32_t> tokens, int32_t delta) {
    add_count(&Node::leases, salt, tokens, delta);
  }

  // Complete blocks of the longest cached prefix of `tokens`. Changes nothing, also not what is evicted next.
  int32_t num_cached_blocks(std::string_view salt, std::span<const int32_t> tokens) const;

  // Drops up to `num_blocks` evictable blocks, the least valuable and least recently used first; returns how many.
  int32_t evict(int32_t num_blocks);

  int32_t num_blocks() const { return num_blocks_; }                 // in the tree
  int32_t num_evictable_blocks() const { return num_evictable_; }    // of these, on no pinned path
  int64_t num_evicted_blocks() const { return num_evicted_total_; }  // since construction
  // Of the evictable blocks, those that a pending prompt will use, or that are leased.
  int32_t num_valuable_evictable_blocks() const { return num_valuable_; }

 private:
  friend class PrefixCacheCheck;

  // Eviction classes, lowest first: offline only, online, by the number of pending prompts, exact up to a cap, then by
  // the weight of the leases, up to a cap.
  static constexpr int32_t kOfflineClass = 0;
  static constexpr int32_t kOnlineClass = 1;
  static constexpr int32_t kMaxPendingClass = 60;
  static constexpr int32_t kLeasedClass = kOnlineClass + kMaxPendingClass + 1;
  static constexpr int32_t kNumLeasedClasses = 66;
  static constexpr int32_t kNumClasses = kLeasedClass + kNumLeasedClasses;

  // How many of something go through a node, and through its children together.
  struct PathCount {
    int32_t num = 0;  // 0 for roots
    int32_t num_below = 0;
  };

  struct Node {
    NodeId parent = kNone;  // kNone for roots
    BlockId first_block = kNone;
    BlockId last_block = kNone;
    int32_t num_blocks = 0;    // length of the run; 0 only for roots
    int32_t num_users = 0;     // pins of this node and of its descendants
    int32_t num_children = 0;  // nodes
    uint32_t bucket = 0;       // of children_, for non-roots
    NodeId next_in_bucket = kNone;
    PathCount pending;  // prompts that begin with the path through the node
    PathCount leases;
    const std::string* salt = nullptr;  // key in roots_, for roots
    bool is_online = false;             // an online request has used it, and so its whole path
    bool is_live = false;
  };

  struct Match {
    BlockId last;
    int32_t num_blocks;
  };

  struct SaltHash {
    using is_transparent = void;
    size_t operator()(std::string_view salt) const { return std::hash<std::string_view>{}(salt); }
  };

  std::span<const int32_t> block_tokens(BlockId block) const {
    return {tokens_.data() + static_cast<size_t>(block) * block_size_, static_cast<size_t>(block_size_)};
  }
  bool same_tokens(BlockId block, const int32_t* tokens) const;
  uint32_t bucket_of(NodeId parent, const int32_t* tokens) const;

  NodeId root_of(std::string_view salt);
  NodeId find_child(NodeId parent, const int32_t* tokens) const;
  Match match_run(NodeId node, std::span<const int32_t> tokens) const;
  NodeId descend(NodeId parent, std::span<const int32_t> tokens);
  int32_t max_pending_below(NodeId node) const;
  void add_count(PathCount Node::* count, std::string_view salt, std::span<const int32_t> tokens, int32_t delta);
  NodeId new_node();
  NodeId new_child(NodeId parent, const int32_t* tokens, int32_t num_pending, bool is_online);
  NodeId split(NodeId node, BlockId last_of_upper, int32_t num_upper);
  size_t append_uniform(NodeId* node, std::span<const int32_t> tokens, std::span<const BlockId> blocks,
                        std::span<const uint32_t> pending, bool is_online);
  void append_run(NodeId node, std::span<const int32_t> tokens, std::span<const BlockId> blocks);
  int32_t shorten(NodeId leaf, int32_t max_blocks);
  void drop_node(NodeId node);
  void drop_root_if_unused(NodeId root);

  void add_user(NodeId node);
  void remove_user(NodeId node);
  void mark_online(NodeId node);
  void set_count(PathCount Node::* count, NodeId node, int32_t num);
  static bool is_valuable(const Node& node) { return node.pending.num > 0 || node.leases.num > 0; }
  void bucket_insert(NodeId node);
  void bucket_remove(NodeId node);
  int32_t class_of(const Node& node) const;
  static int32_t leased_class(int32_t weight);
  void begin_evictable(NodeId node);
  void end_evictable(NodeId node);

  BlockPool* const pool_;
  const int32_t block_size_;
  const bool is_task_aware_;

  // By block, for blocks in the tree.
  std::vector<int32_t> tokens_;  // [num_blocks][block_size]
  std::vector<BlockId> next_;    // in its run, towards the leaves
  std::vector<BlockId> prev_;

  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::vector<NodeId> children_;  // hash table over (parent, tokens of the first block): heads of chains
  std::unordered_map<std::string, NodeId, SaltHash, std::equal_to<>> roots_;

  EvictionLists evictable_{kNumClasses};  // all nodes without users, but for roots

  int32_t num_blocks_ = 0;
  int32_t num_evictable_ = 0;
  int32_t num_valuable_ = 0;
  int64_t num_evicted_total_ = 0;
};

}  // namespace hocket
