// The prefix cache as it is against prefix_cache.h, and its paths as they are: for checks and tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memory/prefix_cache.h"

namespace hocket {

class PrefixCacheCheck {
 public:
  // REQUIRES: `cache` outlives this and does not change meanwhile.
  explicit PrefixCacheCheck(const PrefixCache& cache);

  // Throws CoreError on the first broken invariant. `pins`: the node of every user, one entry per pin. O(blocks).
  void run(std::span<const NodeId> pins) const;

  // From the root to the end of `node`: the blocks, and what each counts. O(path).
  std::vector<BlockId> path_blocks(NodeId node) const;
  std::vector<int32_t> path_pending(NodeId node) const;
  std::vector<int32_t> path_leases(NodeId node) const;

 private:
  void check_node(NodeId node, std::vector<uint8_t>* seen_blocks) const;
  void check_value(NodeId node, int32_t num_pending_below, int32_t num_leases_below) const;
  void check_eviction_order() const;

  const PrefixCache& cache_;
  const std::vector<PrefixCache::Node>& nodes_;
  const std::vector<BlockId>& next_;
  const std::vector<BlockId>& prev_;
};

}  // namespace hocket
