// collect(): many picks at once, with marks in place of removals. What remains of next() is a walk.
//
// Cached prompts: nodes with a hint, deepest first. All that is below such a node and not yet collected is cached as
// far as the hint, because what is cached deeper came before. Then the rest: relatives of the last pick, then the
// oldest prompt and its relatives, and so on.
//
// Relatives are collected by climbing from a prompt: all below its node, then all below the node's parent, and so on.
// So each pick is a closest relative, among those that are left, of the pick before it. A node below which nothing is
// left is marked too and never entered again.

#include <algorithm>
#include <tuple>

#include "pending_tree.h"

namespace hocket {

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

}  // namespace hocket
