// The waiting offline requests, as the plan search wants them: which would reuse most of what is cached?
//
// An OfflinePool over the slots of the request table, with the block hashes of every prompt, and the pending counts
// that the prefix cache's eviction goes by. The scheduler tells it who waits, who was admitted and what was computed.
//
// Thread safety: none. Allocation: when requests come; none per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/memory_view.h"
#include "offline/offline_pool.h"
#include "requests/request.h"

namespace hocket {

class OfflineQueue final : private CachedPrefixQuery {
 public:
  // REQUIRES: both outlive this.
  OfflineQueue(const SchedulerConfig& config, const RequestTable* requests, MemoryView* memory);

  // A request arrived; its prompt is hashed. Of any class: online requests compute blocks that offline ones may want.
  void add(Slot slot);
  // An offline request waits, or no longer.
  void insert(Slot slot);
  void take(Slot slot);

  // Pending offline prompts that begin with the request's prompt up to the end of each block in [begin, end); empty if
  // there are none. Valid until the next call.
  std::span<const uint32_t> pending_counts(Slot slot, int32_t begin, int32_t end);
  // The request's blocks [begin, end) are cached now, as those before them.
  void note_cached(Slot slot, int32_t begin, int32_t end);

  // Appends up to `max_slots` waiting requests: of each length bucket the ones that the cache favours, starting with
  // the bucket of the deepest match, then the one nearest to `num_tokens`.
  void candidates(int32_t num_tokens, int32_t max_slots, std::vector<Slot>* slots) const;
  // Whether `leader` computes, or is about to, the block of the request's prompt that follows the first
  // num_cached_tokens ones: then it will be cached soon.
  bool is_being_computed(Slot slot, int32_t num_cached_tokens, Slot leader) const;
  // Waiting prompts, the request's among them, that begin with its first block; 0 if it has no complete one.
  int32_t num_related(Slot slot) const;
  // Tokens of the request's prompt that are cached now.
  int32_t num_cached_tokens(Slot slot) const;

  int32_t size() const { return pool_.size(); }
  void check_invariants() const { pool_.check_invariants(); }

 private:
  int32_t num_cached_blocks(uint64_t slot, std::span<const uint64_t> path) const override;
  void count_pending(Slot slot, int32_t delta);

  const int32_t block_size_;
  const RequestTable& requests_;
  MemoryView& memory_;
  mutable OfflinePool pool_;                  // its hints are refreshed by asking
  std::vector<std::vector<uint64_t>> paths_;  // by slot
  std::vector<uint32_t> counts_;              // scratch
  mutable std::vector<uint64_t> picks_;       // scratch
};

}  // namespace hocket
