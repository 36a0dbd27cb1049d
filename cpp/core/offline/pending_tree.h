// Prompts that wait, as a radix tree over their blocks: which of them comes next if what is cached is to be reused?
//
// A path is one hash per complete block of a prompt, each hash covering everything before it (block_hashes.h), so equal
// hashes mean equal prefixes. A collision costs a scheduling decision its quality, never its correctness.
//
//   root -- node [h0 h1 h2] --+-- node [h3]     ...     a node: a run of blocks, the prompts that end with it,
//                             +-- node [h4 h5]          and how many prompts lie below it
//
// What is cached is known by hints: an upper bound, per node, of how far its run is cached. Hints rise when the pool is
// told (insert, note_cached) and fall when next() asks the cache itself and finds less: eviction tells nobody. Every
// node whose run is cached in part stands in a heap by depth, so the deepest match is its top.
//
// Invariants: no node without prompts below it; none but the root with one child and no prompt of its own; a hint lies
// in (start, end] or is 0.
//
// Cost: insert, remove, next and note_cached are linear in the nodes of the path, times log of the edge's length where
// a path ends inside an edge; a failed question to the cache costs one more round, at most once per eviction. collect()
// is linear in the picks and in the depth of the tree, times log of the picks where they are cached to many different
// places. Thread safety: none. Allocation: only while growing.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace hocket {

// What is in the prefix cache; implemented by the owner of the cache.
class CachedPrefixQuery {
 public:
  virtual ~CachedPrefixQuery() = default;
  // Complete blocks from the start of the request's prompt that are cached now.
  virtual int32_t num_cached_blocks(uint64_t request_id, std::span<const uint64_t> path) const = 0;
};

class PendingTree {
 public:
  using EntryId = int32_t;
  using Path = std::span<const uint64_t>;

  PendingTree();

  // num_cached: leading blocks of the path that are in the cache.
  EntryId insert(uint64_t request_id, Path path, int32_t num_cached);
  // REQUIRES: the entry was inserted and not removed.
  void remove(EntryId entry);

  // The entry whose prompt is cached deepest; of equals the one that shares most with `last`; if nothing is cached,
  // that one; if nothing is shared either, the oldest. kNone if the tree is empty.
  EntryId next(const CachedPrefixQuery& cache, Path last);
  // Appends up to max_entries picks to *out and leaves them in the tree: the first is next()'s answer, each further one
  // what next() could answer if those before it were removed and `last` were the one before it.
  void collect(int32_t max_entries, const CachedPrefixQuery& cache, Path last, std::vector<EntryId>* out);
  // Blocks that next()'s answer is believed to have in the cache, without asking it. An upper bound.
  int32_t deepest_hint() const { return heap_.empty() ? 0 : nodes_[heap_.front()].hint; }

  // The first num_blocks of the path are in the cache now.
  void note_cached(Path path, int32_t num_blocks);

  // counts[i] += prompts that begin with path[0..i]. REQUIRES: counts as long as the path.
  void add_reference_counts(Path path, std::span<uint32_t> counts) const;

  int32_t size() const { return nodes_[kRoot].num_below; }
  uint64_t request_id(EntryId entry) const { return entries_[entry].request_id; }
  Path path(EntryId entry) const { return entries_[entry].path; }

  // Throws CoreError on the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  static constexpr NodeId kRoot = 0;

  struct Entry {
    uint64_t request_id = 0;
    std::vector<uint64_t> path;
    NodeId node = kNone;  // where the path ends; kNone if free
    EntryId older = kNone;
    EntryId newer = kNone;
    EntryId next_at_node = kNone;
    EntryId prev_at_node = kNone;
    int64_t collected = 0;  // the last collection that picked it
  };

  struct Node {
    NodeId parent = kNone;
    int32_t start = 0;  // the run is path[start, end) of any prompt below
    int32_t end = 0;
    EntryId sample = kNone;  // one of the prompts below
    int32_t num_below = 0;
    int32_t hint = 0;             // blocks from the root believed cached, in (start, end]; 0: none of this run
    int32_t heap_index = kNone;   // place in heap_, if hint > 0
    EntryId first_entry = kNone;  // those that end here, in order of insertion
    EntryId last_entry = kNone;
    NodeId first_child = kNone;
    NodeId last_child = kNone;
    NodeId next_sibling = kNone;
    NodeId prev_sibling = kNone;
    int64_t exhausted = 0;  // the last collection that picked all below it
  };

  struct EdgeKey {
    NodeId parent;
    uint64_t first_hash;
    bool operator==(const EdgeKey&) const = default;
  };
  struct EdgeKeyHash {
    size_t operator()(const EdgeKey& key) const {
      return key.first_hash ^ (static_cast<uint64_t>(key.parent) * 0x9E3779B97F4A7C15ULL);
    }
  };

  // Where a path leaves the tree: `depth` blocks matched, the last of them in `node`, maybe inside its run.
  struct Position {
    NodeId node;
    int32_t depth;
  };
  Position find(Path path) const;
  int32_t common_depth(const Node& node, Path path) const;
  uint64_t first_hash(const Node& node) const { return entries_[node.sample].path[node.start]; }
  NodeId deepest_hinted_on(Path path) const;
  EntryId any_entry_below(NodeId node, Path close_to) const;
  bool is_cached_to_hint(NodeId node, EntryId entry, const CachedPrefixQuery& cache);

  struct Picks {
    std::vector<EntryId>* out;
    size_t max_size;
    bool is_full() const { return out->size() >= max_size; }
  };
  EntryId collect_cached(EntryId first, const CachedPrefixQuery& cache, Picks* picks);
  void collect_relatives(EntryId entry, NodeId top, Picks* picks);
  void collect_below(NodeId top, Picks* picks);
  void collect_entry(EntryId entry, Picks* picks);
  bool is_collected(EntryId entry) const { return entries_[entry].collected == collection_; }
  NodeId hinted_above(EntryId entry) const;
  NodeId top_level(EntryId entry) const;
  void advance_frontier();

  NodeId allocate_node();
  void free_node(NodeId node);
  NodeId new_leaf(NodeId parent, int32_t start, int32_t end, EntryId sample);
  NodeId split(NodeId node, int32_t at);
  void merge_with_only_child(NodeId node);
  void drop_leaf(NodeId node);
  void append_child(NodeId parent, NodeId child);
  void unlink_child(NodeId child);
  void replace_child(NodeId old_child, NodeId new_child);
  void attach(EntryId entry, NodeId node);
  void detach(EntryId entry);

  void raise_hints(NodeId node, int32_t depth);
  void lower_hints(NodeId node, int32_t depth);
  void set_hint(NodeId node, int32_t hint);
  void sift(int32_t index);
  void heap_place(int32_t index, NodeId node);

  void check_node(NodeId node) const;

  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::vector<Entry> entries_;
  std::vector<EntryId> free_entries_;
  std::unordered_map<EdgeKey, NodeId, EdgeKeyHash> edges_;
  std::vector<NodeId> heap_;       // nodes with a hint, deepest first
  std::vector<int32_t> frontier_;  // of the heap, while collecting: places whose parents were taken, deepest first
  int64_t collection_ = 0;         // collections so far
  EntryId oldest_ = kNone;
  EntryId newest_ = kNone;
};

}  // namespace hocket
