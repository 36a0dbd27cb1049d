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
// Blocks on no pinned path are evictable, least recently released first, a leaf's last block before the others. The
// unpinned nodes stand in one list ordered by the time they were unpinned, deeper nodes first; a node's descendants are
// therefore always before it, the head of the list is always a leaf, and evicting one block is O(1).
//
// The tree owns its blocks: extend() takes them over and evict() gives their units back to the pool.
//
// What later features need to know of a run (other tiers, pending offline users, leases) are fields of Node, summed
// along the path as num_users is, or an eviction list of their own.
//
// Cost: acquire() and extend() are linear in the tokens compared, pin and unpin in the depth of the path.
// Thread safety: none. Allocation: only when a salt is new, or when there are more roots than ever before.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_pool.h"
#include "ids.h"

namespace hocket {

class PrefixCache {
 public:
  // REQUIRES: `pool` outlives this; block_size >= 1.
  PrefixCache(BlockPool* pool, int32_t block_size);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Finds the longest cached prefix of `tokens` in complete blocks under `salt`, pins its node and appends the blocks
  // of its path to *blocks. Always returns a node, the root if nothing matches. Caller must release() it.
  NodeId acquire(std::string_view salt, std::span<const int32_t> tokens, std::vector<BlockId>* blocks);

  struct Extension {
    NodeId node;           // pinned in place of the node given
    int32_t num_replaced;  // leading entries of `blocks` that now name blocks the tree already had
  };

  // Appends complete blocks to the path of a pinned node. Those that the tree already has are replaced in `blocks` by
  // the tree's, and the caller's go back to the pool: two requests that computed the same block share one from then on.
  // The others become the tree's.
  // REQUIRES: `node` is pinned by the caller; the caller owns `blocks`; tokens.size() == blocks.size() * block_size.
  Extension extend(NodeId node, std::span<const int32_t> tokens, std::span<BlockId> blocks);

  // Gives up a pin. REQUIRES: the caller pinned `node`.
  void release(NodeId node);

  // Gives up a pin for a moment, to see what could be evicted without it.
  // REQUIRES: repin() follows before anything else than the const methods and other unpin() and repin().
  void unpin(NodeId node);
  void repin(NodeId node);

  // Drops up to `num_blocks` evictable blocks, least recently used first; returns how many.
  int32_t evict(int32_t num_blocks);

  int32_t num_blocks() const { return num_blocks_; }                 // in the tree
  int32_t num_evictable_blocks() const { return num_evictable_; }    // of these, on no pinned path
  int64_t num_evicted_blocks() const { return num_evicted_total_; }  // since construction

  // The blocks from the root to the end of `node`. For checks; O(path).
  std::vector<BlockId> path_blocks(NodeId node) const;

  // Throws CoreError on the first broken invariant. `pins`: the node of every user, one entry per pin. O(blocks).
  void check_invariants(std::span<const NodeId> pins) const;

 private:
  struct Node {
    NodeId parent = kNone;  // kNone for roots
    BlockId first_block = kNone;
    BlockId last_block = kNone;
    int32_t num_blocks = 0;    // length of the run; 0 only for roots
    int32_t num_users = 0;     // pins of this node and of its descendants
    int32_t num_children = 0;  // nodes
    uint32_t bucket = 0;       // of children_, for non-roots
    NodeId next_in_bucket = kNone;
    NodeId older = kNone;  // neighbours in the eviction list, if num_users == 0 and not a root
    NodeId newer = kNone;
    const std::string* salt = nullptr;  // key in roots_, for roots
    bool is_live = false;
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
  NodeId descend(NodeId parent, std::span<const int32_t> tokens);
  NodeId new_node();
  NodeId new_child(NodeId parent, const int32_t* tokens);
  NodeId split(NodeId node, BlockId last_of_upper, int32_t num_upper);
  void append_run(NodeId node, std::span<const int32_t> tokens, std::span<const BlockId> blocks);
  void drop_node(NodeId node);
  void drop_root_if_unused(NodeId root);

  void add_user(NodeId node);
  void remove_user(NodeId node);
  void bucket_insert(NodeId node);
  void bucket_remove(NodeId node);
  void list_insert(NodeId node, NodeId older);
  void list_remove(NodeId node);

  void check_node(NodeId node, std::vector<uint8_t>* seen_blocks) const;
  void check_eviction_list() const;

  BlockPool* const pool_;
  const int32_t block_size_;

  // By block, for blocks in the tree.
  std::vector<int32_t> tokens_;  // [num_blocks][block_size]
  std::vector<BlockId> next_;    // in its run, towards the leaves
  std::vector<BlockId> prev_;

  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::vector<NodeId> children_;  // hash table over (parent, tokens of the first block): heads of chains
  std::unordered_map<std::string, NodeId, SaltHash, std::equal_to<>> roots_;

  NodeId oldest_ = kNone;  // ends of the eviction list
  NodeId newest_ = kNone;

  int32_t num_blocks_ = 0;
  int32_t num_evictable_ = 0;
  int64_t num_evicted_total_ = 0;
};

}  // namespace hocket
