#include "scheduler_stats.h"

#include <algorithm>

#include "scheduler.h"

namespace hocket {

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.counters = counters_;
  for (const Slot slot : running_) ++stats.num_running[requests_.request_class[slot]];
  for (const Slot slot : waiting_) {
    ++stats.num_waiting[requests_.request_class[slot]];
    stats.num_waiting_tokens += requests_.num_tokens[slot];
  }
  for (const Slot slot : restoring_) ++stats.num_waiting[requests_.request_class[slot]];
  const BlockPool& pool = memory_.pool();
  stats.num_units = pool.unit_pool().num_units();
  stats.num_free_units = pool.unit_pool().num_free();
  stats.num_cached_units = int64_t{memory_.cache().num_evictable_blocks()} * pool.units_per_block();
  count_forms(&stats);
  stats.num_evicted_blocks = memory_.cache().num_evicted_blocks();
  stats.num_host_blocks = tiers_.index().num_slots();
  stats.num_free_host_blocks = tiers_.index().num_free_slots();
  stats.num_disk_blocks = tiers_.index().num_disk_blocks();
  stats.num_sessions = sessions_.size();
  stats.num_leases = num_leases_;
  stats.tiers = tiers_.counters();
  return stats;
}

void Scheduler::count_conversion(CacheForm from, CacheForm to) {
  const auto count = [&](Conversion conversion) { ++counters_.num_conversions[static_cast<size_t>(conversion)]; };
  if (from.kind != to.kind) count(Conversion::kHiddenToKv);
  if (to.num_uncached_blocks > from.num_uncached_blocks) count(Conversion::kKvToUncached);
  if (to.num_uncached_blocks < from.num_uncached_blocks) count(Conversion::kUncachedToKv);
}

// What is neither free nor hidden is K and V.
void Scheduler::count_forms(SchedulerStats* stats) const {
  constexpr auto kKv = static_cast<size_t>(CacheKind::kKv);
  constexpr auto kHidden = static_cast<size_t>(CacheKind::kHidden);
  stats->num_kind_tokens[kKv] = int64_t{memory_.cache().num_blocks()} * config_.block_size;
  for (const Slot slot : running_) {
    const Row row = requests_.row[slot];
    const CacheKind kind = memory_.form(row).kind;
    const int32_t num_uncached = num_uncached_tokens(slot);
    const int32_t num_indexed = memory_.num_indexed_blocks(row) * config_.block_size;
    stats->num_uncached_tokens += num_uncached;
    stats->num_kind_tokens[static_cast<size_t>(kind)] +=
        std::max(0, requests_.num_computed_tokens[slot] - num_indexed - num_uncached);
    if (kind == CacheKind::kHidden) stats->num_kind_units[kHidden] += memory_.num_held_units(row);
  }
  stats->num_kind_units[kKv] = stats->num_units - stats->num_free_units - stats->num_kind_units[kHidden];
}

}  // namespace hocket
