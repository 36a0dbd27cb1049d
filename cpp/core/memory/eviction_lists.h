// In which order nodes are evicted: one list per class, the lowest class first, in a class the oldest first.
//
// Cost: every operation is O(1); first() looks at one bit per class. Allocation: in grow_to() only. Thread safety:
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace hocket {

class EvictionLists {
 public:
  explicit EvictionLists(int32_t num_classes);

  // Nodes below `num_nodes` have a place. Keeps who is listed.
  void grow_to(size_t num_nodes) {
    if (num_nodes > links_.size()) links_.resize(num_nodes);
  }
  void reserve(size_t num_nodes) { links_.reserve(num_nodes); }

  // As the newest of its class. REQUIRES: the node is in no list; 0 <= eviction_class < num_classes.
  void append(NodeId node, int32_t eviction_class);
  // As the next after `older`, in its class. REQUIRES: `older` is in a list, the node in none.
  void insert_after(NodeId older, NodeId node);
  // REQUIRES: the node is in a list.
  void remove(NodeId node);

  // Who is evicted next, or kNone.
  NodeId first() const;

  int32_t num_classes() const { return static_cast<int32_t>(lists_.size()); }
  NodeId oldest(int32_t eviction_class) const { return lists_[eviction_class].oldest; }
  // Of a node in a list: who comes after it, or kNone; and its class.
  NodeId newer(NodeId node) const { return links_[node].newer; }
  int32_t eviction_class(NodeId node) const { return links_[node].eviction_class; }

  // Throws CoreError on the first broken link. O(listed nodes).
  void check_invariants() const;

 private:
  struct Link {
    NodeId older = kNone;
    NodeId newer = kNone;
    int32_t eviction_class = 0;
  };

  struct List {
    NodeId oldest = kNone;
    NodeId newest = kNone;
  };

  static constexpr int32_t kWordBits = 64;

  void insert(NodeId node, NodeId older);
  uint64_t& word_of(int32_t eviction_class) { return filled_[eviction_class / kWordBits]; }
  static uint64_t bit_of(int32_t eviction_class) { return uint64_t{1} << eviction_class % kWordBits; }

  std::vector<Link> links_;       // by node
  std::vector<List> lists_;       // by class
  std::vector<uint64_t> filled_;  // bit c % kWordBits of word c / kWordBits: lists_[c] is not empty
};

}  // namespace hocket
