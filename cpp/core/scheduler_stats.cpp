#include "scheduler_stats.h"

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
  stats.num_evicted_blocks = memory_.cache().num_evicted_blocks();
  stats.num_host_blocks = tiers_.index().num_slots();
  stats.num_free_host_blocks = tiers_.index().num_free_slots();
  stats.num_disk_blocks = tiers_.index().num_disk_blocks();
  stats.num_sessions = sessions_.size();
  stats.num_leases = num_leases_;
  stats.tiers = tiers_.counters();
  return stats;
}

}  // namespace hocket
