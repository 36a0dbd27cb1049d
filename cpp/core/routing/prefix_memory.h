// Which nodes have computed which beginnings of prompts, as far as this gateway remembers.
//
// A prompt is a chain of keys, one per so many tokens; each key stands for all tokens up to its end
// (schedcore/routing). An entry names the nodes that were sent such a prompt, and where each node's token clock stood
// then: what a node has computed since is what its cache has had to take in, so a node whose clock has moved on by more
// than its cache holds has probably dropped it. Beginnings that many nodes have (a system prompt) get a set of all
// nodes in place of a few names. Bounded by entries; who is used longest ago goes.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "routing/lru_map.h"

namespace hocket {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixMemory {
 public:
  static constexpr size_t kMaxNamed = 4;  // holders of an entry, before it has a set

  struct Holder {
    NodeId node = kNoNode;
    double clock = 0.0;  // the node's, in tokens, when it was last sent the prefix
  };
  struct Entry {
    std::array<Holder, kMaxNamed> named;              // the first ones are in use
    std::unique_ptr<std::vector<uint64_t>> everyone;  // a bit per node; null while few have it

    bool is_held_by(NodeId node) const;
    const Holder* find(NodeId node) const;
  };

  explicit PrefixMemory(size_t max_entries) : max_entries_(max_entries) {}

  size_t size() const { return entries_.size(); }

  // Entries of the leading keys, up to the first that nobody is known to hold. Valid until the next change.
  void lookup(std::span<const uint64_t> keys, std::vector<const Entry*>& found) const;

  // The node has been sent a prompt with these keys.
  void note(std::span<const uint64_t> keys, NodeId node, double clock);

  // Nothing is known to be there any more. O(entries): for the death of a node.
  void forget(NodeId node);

 private:
  static void add(Entry& entry, NodeId node, double clock);

  size_t max_entries_;
  LruMap<Entry> entries_;
};

}  // namespace hocket
