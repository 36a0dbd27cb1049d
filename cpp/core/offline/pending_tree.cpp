#include "offline/pending_tree.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace hocket {

PendingTree::PendingTree() : nodes_(1) {}

// Looking

// Blocks of `path` that match the node's run and everything before it. All before node.start is known to match.
int32_t PendingTree::common_depth(const Node& node, Path path) const {
  const Path run = entries_[node.sample].path;
  int32_t low = node.start;
  int32_t high = std::min(node.end, static_cast<int32_t>(path.size()));
  if (high > low && path[high - 1] == run[high - 1]) return high;
  while (low < high) {  // a hash covers all before it: matches are a prefix
    const int32_t middle = low + (high - low) / 2;
    if (path[middle] == run[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

PendingTree::Position PendingTree::find(Path path) const {
  Position at{kRoot, 0};
  while (at.depth < static_cast<int32_t>(path.size())) {
    const auto edge = edges_.find({at.node, path[at.depth]});
    if (edge == edges_.end()) break;
    at = {edge->second, common_depth(nodes_[edge->second], path)};
    if (at.depth < nodes_[at.node].end) break;
  }
  return at;
}

void PendingTree::add_reference_counts(Path path, std::span<uint32_t> counts) const {
  const Position at = find(path);
  int32_t depth = at.depth;
  for (NodeId id = at.node; id != kRoot; id = nodes_[id].parent) {
    const Node& node = nodes_[id];
    for (int32_t i = node.start; i < depth; ++i) counts[i] += static_cast<uint32_t>(node.num_below);
    depth = node.start;
  }
}

PendingTree::EntryId PendingTree::next(const CachedPrefixQuery& cache, Path last) {
  if (size() == 0) return kNone;
  while (!heap_.empty()) {
    const NodeId related = deepest_hinted_on(last);
    const bool is_as_deep = related != kNone && nodes_[related].hint == nodes_[heap_.front()].hint;
    const NodeId node = is_as_deep ? related : heap_.front();
    const EntryId entry = any_entry_below(node, last);
    if (is_cached_to_hint(node, entry, cache)) return entry;
  }
  const Position at = find(last);
  return at.depth > 0 ? any_entry_below(at.node, last) : oldest_;
}

// Asks the cache about a prompt below the node; if less is cached, the hints know it then.
bool PendingTree::is_cached_to_hint(NodeId node, EntryId entry, const CachedPrefixQuery& cache) {
  const int32_t cached = cache.num_cached_blocks(entries_[entry].request_id, entries_[entry].path);
  if (cached >= nodes_[node].hint) return true;
  lower_hints(node, cached);
  return false;
}

// The deepest node with a hint whose cached run lies on the path; kNone if there is none.
NodeId PendingTree::deepest_hinted_on(Path path) const {
  const Position at = find(path);
  for (NodeId id = at.node; id != kRoot; id = nodes_[id].parent) {
    if (nodes_[id].hint > 0 && nodes_[id].hint <= at.depth) return id;
  }
  return kNone;
}

// The closest relative of a path below a node if the path goes through it, else any prompt below.
PendingTree::EntryId PendingTree::any_entry_below(NodeId node, Path close_to) const {
  const NodeId closest = find(close_to).node;
  for (NodeId id = closest; id != kNone; id = nodes_[id].parent) {
    if (id == node) return nodes_[closest].sample;
  }
  return nodes_[node].sample;
}

// Prompts

PendingTree::EntryId PendingTree::insert(uint64_t request_id, Path path, int32_t num_cached) {
  if (free_entries_.empty()) {
    free_entries_.push_back(static_cast<EntryId>(entries_.size()));
    entries_.emplace_back();
  }
  const EntryId id = free_entries_.back();
  free_entries_.pop_back();
  Entry& entry = entries_[id];
  entry.request_id = request_id;
  entry.path.assign(path.begin(), path.end());
  entry.older = newest_;
  entry.newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = id;
  newest_ = id;

  const auto length = static_cast<int32_t>(path.size());
  Position at = find(path);
  if (at.depth < nodes_[at.node].end) at.node = split(at.node, at.depth);
  if (at.depth < length) at.node = new_leaf(at.node, at.depth, length, id);
  attach(id, at.node);
  raise_hints(at.node, std::min(num_cached, length));
  return id;
}

void PendingTree::remove(EntryId id) {
  Entry& entry = entries_[id];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  const NodeId node = entry.node;
  detach(id);
  const NodeId parent = nodes_[node].parent;
  if (node != kRoot && nodes_[node].num_below == 0) drop_leaf(node);
  for (const NodeId candidate : {node, parent}) {
    if (candidate != kRoot && candidate != kNone) merge_with_only_child(candidate);
  }
  free_entries_.push_back(id);
}

void PendingTree::attach(EntryId id, NodeId at) {
  Node& node = nodes_[at];
  entries_[id].node = at;
  entries_[id].prev_at_node = node.last_entry;
  entries_[id].next_at_node = kNone;
  (node.last_entry == kNone ? node.first_entry : entries_[node.last_entry].next_at_node) = id;
  node.last_entry = id;
  for (NodeId above = at; above != kNone; above = nodes_[above].parent) {
    ++nodes_[above].num_below;
    if (nodes_[above].sample == kNone) nodes_[above].sample = id;
  }
}

// A node above may have named this entry as its sample: it then names another one that is still there.
void PendingTree::detach(EntryId id) {
  Entry& entry = entries_[id];
  Node& node = nodes_[entry.node];
  (entry.prev_at_node == kNone ? node.first_entry : entries_[entry.prev_at_node].next_at_node) = entry.next_at_node;
  (entry.next_at_node == kNone ? node.last_entry : entries_[entry.next_at_node].prev_at_node) = entry.prev_at_node;
  for (NodeId above = entry.node; above != kNone; above = nodes_[above].parent) {
    Node& n = nodes_[above];
    --n.num_below;
    if (n.sample != id || (above != kRoot && n.num_below == 0)) continue;
    n.sample = n.first_entry;
    for (NodeId child = n.first_child; n.sample == kNone && child != kNone; child = nodes_[child].next_sibling) {
      if (nodes_[child].num_below > 0) n.sample = nodes_[child].sample;
    }
  }
  entry.node = kNone;
}

// Nodes

NodeId PendingTree::allocate_node() {
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
    return static_cast<NodeId>(nodes_.size()) - 1;
  }
  const NodeId id = free_nodes_.back();
  free_nodes_.pop_back();
  nodes_[id] = {};
  return id;
}

NodeId PendingTree::new_leaf(NodeId parent, int32_t start, int32_t end, EntryId sample) {
  const NodeId id = allocate_node();
  nodes_[id].start = start;
  nodes_[id].end = end;
  nodes_[id].sample = sample;
  append_child(parent, id);
  edges_.emplace(EdgeKey{parent, first_hash(nodes_[id])}, id);
  return id;
}

// Cuts a run. The lower part keeps the node's identity, and so its children and entries. Returns the upper part.
NodeId PendingTree::split(NodeId lower_id, int32_t at) {
  const NodeId upper_id = allocate_node();
  Node& lower = nodes_[lower_id];
  Node& upper = nodes_[upper_id];
  upper.start = lower.start;
  upper.end = at;
  upper.sample = lower.sample;
  upper.num_below = lower.num_below;
  edges_[{lower.parent, first_hash(upper)}] = upper_id;
  replace_child(lower_id, upper_id);
  lower.start = at;
  append_child(upper_id, lower_id);
  edges_.emplace(EdgeKey{upper_id, first_hash(lower)}, lower_id);
  const int32_t hint = lower.hint;
  set_hint(lower_id, hint > at ? hint : 0);
  set_hint(upper_id, std::min(hint, at));
  return upper_id;
}

// Undoes a split that no prompt needs any more: the child takes over the node's run.
void PendingTree::merge_with_only_child(NodeId upper_id) {
  const Node& upper = nodes_[upper_id];
  if (upper.num_below == 0 || upper.first_entry != kNone || upper.first_child != upper.last_child) return;
  const NodeId lower_id = upper.first_child;
  Node& lower = nodes_[lower_id];
  edges_.erase({upper_id, first_hash(lower)});
  edges_[{upper.parent, first_hash(upper)}] = lower_id;
  const int32_t hint = lower.hint > 0 ? lower.hint : upper.hint;
  replace_child(upper_id, lower_id);
  lower.start = upper.start;
  set_hint(lower_id, hint);
  free_node(upper_id);
}

void PendingTree::drop_leaf(NodeId id) {
  edges_.erase({nodes_[id].parent, first_hash(nodes_[id])});
  unlink_child(id);
  free_node(id);
}

void PendingTree::free_node(NodeId id) {
  set_hint(id, 0);
  nodes_[id].num_below = 0;
  free_nodes_.push_back(id);
}

void PendingTree::append_child(NodeId parent_id, NodeId child_id) {
  Node& parent = nodes_[parent_id];
  Node& child = nodes_[child_id];
  child.parent = parent_id;
  child.next_sibling = kNone;
  child.prev_sibling = parent.last_child;
  (parent.last_child == kNone ? parent.first_child : nodes_[parent.last_child].next_sibling) = child_id;
  parent.last_child = child_id;
}

void PendingTree::unlink_child(NodeId child_id) {
  const Node& child = nodes_[child_id];
  Node& parent = nodes_[child.parent];
  (child.prev_sibling == kNone ? parent.first_child : nodes_[child.prev_sibling].next_sibling) = child.next_sibling;
  (child.next_sibling == kNone ? parent.last_child : nodes_[child.next_sibling].prev_sibling) = child.prev_sibling;
}

void PendingTree::replace_child(NodeId old_id, NodeId new_id) {
  const Node& old_child = nodes_[old_id];
  Node& parent = nodes_[old_child.parent];
  Node& child = nodes_[new_id];
  child.parent = old_child.parent;
  child.prev_sibling = old_child.prev_sibling;
  child.next_sibling = old_child.next_sibling;
  (child.prev_sibling == kNone ? parent.first_child : nodes_[child.prev_sibling].next_sibling) = new_id;
  (child.next_sibling == kNone ? parent.last_child : nodes_[child.next_sibling].prev_sibling) = new_id;
}

// Hints

void PendingTree::note_cached(Path path, int32_t num_blocks) {
  const Position at = find(path.first(std::min(static_cast<size_t>(num_blocks), path.size())));
  raise_hints(at.node, at.depth);
}

// `depth` blocks of the path to and through `node` are cached.
void PendingTree::raise_hints(NodeId id, int32_t depth) {
  for (; id != kRoot; id = nodes_[id].parent) {
    const int32_t hint = std::min(depth, nodes_[id].end);
    if (hint > nodes_[id].start && hint > nodes_[id].hint) set_hint(id, hint);
  }
}

// No more than `depth` blocks of the path to and through `node` are cached.
void PendingTree::lower_hints(NodeId id, int32_t depth) {
  for (; id != kRoot && nodes_[id].end > depth; id = nodes_[id].parent) {
    if (nodes_[id].hint > depth) set_hint(id, depth > nodes_[id].start ? depth : 0);
  }
}

void PendingTree::set_hint(NodeId id, int32_t hint) {
  Node& node = nodes_[id];
  node.hint = hint;
  if (hint > 0 && node.heap_index == kNone) {
    heap_.push_back(id);
    node.heap_index = static_cast<int32_t>(heap_.size()) - 1;
  }
  if (node.heap_index == kNone) return;
  if (hint > 0) {
    sift(node.heap_index);
    return;
  }
  const int32_t hole = node.heap_index;
  const NodeId moved = heap_.back();
  heap_.pop_back();
  node.heap_index = kNone;
  if (moved == id) return;
  heap_place(hole, moved);
  sift(hole);
}

void PendingTree::heap_place(int32_t index, NodeId id) {
  heap_[index] = id;
  nodes_[id].heap_index = index;
}

// Moves the node at `index` up or down to where it belongs.
void PendingTree::sift(int32_t index) {
  const NodeId id = heap_[index];
  const int32_t hint = nodes_[id].hint;
  while (index > 0 && nodes_[heap_[(index - 1) / 2]].hint < hint) {
    heap_place(index, heap_[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  const auto size = static_cast<int32_t>(heap_.size());
  for (int32_t child = 2 * index + 1; child < size; child = 2 * index + 1) {
    if (child + 1 < size && nodes_[heap_[child + 1]].hint > nodes_[heap_[child]].hint) ++child;
    if (nodes_[heap_[child]].hint <= hint) break;
    heap_place(index, heap_[child]);
    index = child;
  }
  heap_place(index, id);
}

// Collecting
//
// collect(): many picks at once, with marks in place of removals. What remains of next() is a walk.
//
// Cached prompts: nodes with a hint, deepest first. All that is below such a node and not yet collected is cached as
// far as the hint, because what is cached deeper came before. Then the rest: relatives of the last pick, then the
// oldest prompt and its relatives, and so on.
//
// Relatives are collected by climbing from a prompt: all below its node, then all below the node's parent, and so on.
// So each pick is a closest relative, among those that are left, of the pick before it. A node below which nothing is
// left is marked too and never entered again.

void PendingTree::collect(int32_t max_entries, const CachedPrefixQuery& cache, Path last, std::vector<EntryId>* out) {
  const EntryId first = max_entries > 0 ? next(cache, last) : kNone;
  if (first == kNone) return;
  ++collection_;
  Picks picks{out, out->size() + static_cast<size_t>(max_entries)};
  EntryId latest = collect_cached(first, cache, &picks);
  for (EntryId oldest = oldest_; !picks.is_full(); latest = oldest) {
    collect_relatives(latest, top_level(latest), &picks);
    while (oldest != kNone && is_collected(oldest)) oldest = entries_[oldest].newer;
    if (oldest == kNone) return;
  }
}

// Those that are cached, beginning with next()'s answer. Returns the last of them; `first` if nothing is cached.
PendingTree::EntryId PendingTree::collect_cached(EntryId first, const CachedPrefixQuery& cache, Picks* picks) {
  if (heap_.empty()) return first;
  NodeId node = entries_[first].node;
  while (nodes_[node].hint != deepest_hint()) node = nodes_[node].parent;
  collect_relatives(first, node, picks);
  frontier_.assign(1, 0);
  while (!picks->is_full() && !frontier_.empty()) {
    const EntryId latest = picks->out->back();
    node = heap_[frontier_.front()];
    if (nodes_[node].exhausted == collection_) {
      advance_frontier();
    } else if (const NodeId above = hinted_above(latest); above != kNone && nodes_[above].hint == nodes_[node].hint) {
      collect_relatives(latest, above, picks);  // cached: the latest pick is, and deeper
    } else if (is_cached_to_hint(node, nodes_[node].sample, cache)) {
      collect_relatives(nodes_[node].sample, node, picks);
    } else {
      frontier_.assign(1, 0);  // the heap has changed
    }
  }
  return picks->out->back();
}

// Takes away the node with the deepest hint; what may come next takes its place. The heap itself stays as it is.
void PendingTree::advance_frontier() {
  const auto is_later = [this](int32_t a, int32_t b) {
    return std::tuple(nodes_[heap_[a]].hint, b) < std::tuple(nodes_[heap_[b]].hint, a);
  };
  std::pop_heap(frontier_.begin(), frontier_.end(), is_later);
  const int32_t index = frontier_.back();
  frontier_.pop_back();
  for (const int32_t child : {2 * index + 1, 2 * index + 2}) {
    if (child >= static_cast<int32_t>(heap_.size())) break;
    frontier_.push_back(child);
    std::push_heap(frontier_.begin(), frontier_.end(), is_later);
  }
}

// The closest node above a prompt that has a hint and is not exhausted; kNone if there is none.
NodeId PendingTree::hinted_above(EntryId entry) const {
  NodeId node = entries_[entry].node;
  while (node != kNone && (nodes_[node].hint == 0 || nodes_[node].exhausted == collection_)) node = nodes_[node].parent;
  return node;
}

// The prompt, then its relatives below `top`, closest first. REQUIRES: the prompt lies below `top`.
void PendingTree::collect_relatives(EntryId entry, NodeId top, Picks* picks) {
  collect_entry(entry, picks);
  if (top == kRoot) return;  // no relative
  for (NodeId node = entries_[entry].node; !picks->is_full(); node = nodes_[node].parent) {
    collect_below(node, picks);
    if (node == top) return;
  }
}

// All below a node, every node before its children.
void PendingTree::collect_below(NodeId top, Picks* picks) {
  NodeId id = top;
  while (true) {
    const Node& node = nodes_[id];
    if (node.exhausted != collection_) {
      for (EntryId entry = node.first_entry; entry != kNone; entry = entries_[entry].next_at_node) {
        collect_entry(entry, picks);
      }
      if (picks->is_full()) return;
      if (node.first_child != kNone) {
        id = node.first_child;
        continue;
      }
    }
    for (nodes_[id].exhausted = collection_; id != top && nodes_[id].next_sibling == kNone;) {
      id = nodes_[id].parent;
      nodes_[id].exhausted = collection_;
    }
    if (id == top) return;
    id = nodes_[id].next_sibling;
  }
}

void PendingTree::collect_entry(EntryId entry, Picks* picks) {
  if (picks->is_full() || is_collected(entry)) return;
  entries_[entry].collected = collection_;
  picks->out->push_back(entry);
}

// The child of the root above a prompt; the root itself above an empty one.
NodeId PendingTree::top_level(EntryId entry) const {
  NodeId node = entries_[entry].node;
  while (node != kRoot && nodes_[node].parent != kRoot) node = nodes_[node].parent;
  return node;
}

// Checks

void PendingTree::check_invariants() const {
  size_t num_nodes = 0;
  std::vector<NodeId> open{kRoot};
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    check_node(id);
    ++num_nodes;
    for (NodeId child = nodes_[id].first_child; child != kNone; child = nodes_[child].next_sibling)
      open.push_back(child);
  }
  HOCKET_CHECK(num_nodes + free_nodes_.size() == nodes_.size(), "every node is in the tree or free");
  HOCKET_CHECK(edges_.size() + 1 == num_nodes, "every node but the root has one edge");
  int32_t num_entries = 0;
  for (EntryId id = oldest_; id != kNone; id = entries_[id].newer) ++num_entries;
  HOCKET_CHECK(num_entries == size(), "the list by age holds every prompt");
  for (size_t i = 0; i < heap_.size(); ++i) {
    const Node& node = nodes_[heap_[i]];
    HOCKET_CHECK(node.hint > 0 && node.heap_index == static_cast<int32_t>(i), "the heap holds the nodes with a hint");
    HOCKET_CHECK(i == 0 || nodes_[heap_[(i - 1) / 2]].hint >= node.hint, "the deepest stand first");
  }
}

void PendingTree::check_node(NodeId id) const {
  const Node& node = nodes_[id];
  int32_t num_below = 0;
  for (EntryId entry = node.first_entry; entry != kNone; entry = entries_[entry].next_at_node) {
    HOCKET_CHECK(entries_[entry].node == id, "an entry names its node");
    HOCKET_CHECK(static_cast<int32_t>(entries_[entry].path.size()) == node.end, "a path ends where its node does");
    ++num_below;
  }
  for (NodeId child = node.first_child; child != kNone; child = nodes_[child].next_sibling) {
    HOCKET_CHECK(nodes_[child].parent == id && nodes_[child].start == node.end, "a child begins where its parent ends");
    const auto edge = edges_.find({id, first_hash(nodes_[child])});
    HOCKET_CHECK(edge != edges_.end() && edge->second == child, "a child is found by its first hash");
    num_below += nodes_[child].num_below;
  }
  HOCKET_CHECK(num_below == node.num_below, "a node counts the prompts below it");
  HOCKET_CHECK((node.hint > 0) == (node.heap_index != kNone), "a node with a hint is in the heap");
  if (num_below > 0) {
    NodeId above = entries_[node.sample].node;
    while (above != id && above != kNone) above = nodes_[above].parent;
    HOCKET_CHECK(above == id, "a node's sample lies below it");
  }
  if (id == kRoot) return;
  HOCKET_CHECK(node.num_below > 0 && node.end > node.start, "no empty node");
  HOCKET_CHECK(node.first_entry != kNone || node.first_child != node.last_child, "no node that only lengthens an edge");
  HOCKET_CHECK(node.hint == 0 || (node.hint > node.start && node.hint <= node.end), "a hint lies in the node's run");
}

}  // namespace hocket
