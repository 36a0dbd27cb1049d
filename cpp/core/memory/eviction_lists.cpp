#include "memory/eviction_lists.h"

#include <bit>

#include "base/check.h"

namespace hocket {

EvictionLists::EvictionLists(int32_t num_classes)
    : lists_(num_classes), filled_((num_classes + kWordBits - 1) / kWordBits, 0) {}

void EvictionLists::append(NodeId node, int32_t eviction_class) {
  links_[node].eviction_class = eviction_class;
  insert(node, lists_[eviction_class].newest);
  word_of(eviction_class) |= bit_of(eviction_class);
}

void EvictionLists::insert_after(NodeId older, NodeId node) {
  links_[node].eviction_class = links_[older].eviction_class;
  insert(node, older);
}

// Just after `older`, or as the oldest if that is kNone.
void EvictionLists::insert(NodeId node, NodeId older) {
  Link& link = links_[node];
  List& list = lists_[link.eviction_class];
  link.older = older;
  link.newer = older == kNone ? list.oldest : links_[older].newer;
  (link.older == kNone ? list.oldest : links_[link.older].newer) = node;
  (link.newer == kNone ? list.newest : links_[link.newer].older) = node;
}

void EvictionLists::remove(NodeId node) {
  const Link& link = links_[node];
  List& list = lists_[link.eviction_class];
  (link.older == kNone ? list.oldest : links_[link.older].newer) = link.newer;
  (link.newer == kNone ? list.newest : links_[link.newer].older) = link.older;
  if (list.oldest == kNone) word_of(link.eviction_class) &= ~bit_of(link.eviction_class);
}

NodeId EvictionLists::first() const {
  for (size_t i = 0; i < filled_.size(); ++i) {
    if (filled_[i] != 0) return lists_[i * kWordBits + std::countr_zero(filled_[i])].oldest;
  }
  return kNone;
}

void EvictionLists::check_invariants() const {
  for (int32_t c = 0; c < num_classes(); ++c) {
    NodeId last = kNone;
    for (NodeId node = lists_[c].oldest; node != kNone; last = node, node = links_[node].newer) {
      HOCKET_CHECK(links_[node].eviction_class == c, "a node is in the list of another class");
      HOCKET_CHECK(links_[node].older == last, "an eviction list's links differ");
    }
    HOCKET_CHECK(last == lists_[c].newest, "an eviction list's end is wrong");
    const bool is_filled = (filled_[c / kWordBits] & bit_of(c)) != 0;
    HOCKET_CHECK(is_filled == (lists_[c].oldest != kNone), "a list is filled and not known so");
  }
}

}  // namespace hocket
