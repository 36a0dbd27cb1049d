// Saves of preempted requests on the host, as K and V or as hidden states, of which each belongs to one request: how
// the papers' policies swap, in simulation. The host tier (scheduler_tiers.cpp) takes their place in a live engine.

#include <algorithm>

#include "scheduler.h"

namespace hocket {

// Copies what the request has computed to the host, if there is room. Rows with uncached tokens are not worth it.
void Scheduler::save(Slot slot) {
  const Row row = requests_.row[slot];
  const int32_t num_tokens = requests_.num_computed_tokens[slot];
  if (num_tokens == 0 || config_.preemption == "recompute" || requests_.num_unstored_tokens[slot] > 0) return;
  const bool is_hidden = config_.preemption == "restore" || memory_.form(row).kind == CacheKind::kHidden;
  const CacheKind kind = is_hidden && config_.hidden_units_per_group > 0 ? CacheKind::kHidden : CacheKind::kKv;
  const int64_t num_units = int64_t{config_.blocks_for(num_tokens)} * memory_.pool().units_of(kind);
  if (num_host_units_ + num_units > config_.num_host_units) return;
  num_host_units_ += num_units;
  requests_.num_saved_tokens[slot] = num_tokens;
  requests_.num_saved_units[slot] = num_units;
  plan_.transfers.push_back({requests_.id[slot], row, 0, num_tokens, num_units, true, kind});
}

// K and V cannot become hidden states, and what is recomputed in every step needs no copy.
bool Scheduler::can_restore(Slot slot, CacheForm form) const {
  const int32_t num_saved = requests_.num_saved_tokens[slot];
  if (num_saved == 0 || form.num_uncached_blocks > 0) return false;
  return form.kind == CacheKind::kKv || saved_kind(slot) == CacheKind::kHidden;
}

CacheKind Scheduler::saved_kind(Slot slot) const {
  const int64_t num_blocks = config_.blocks_for(requests_.num_saved_tokens[slot]);
  const bool is_kv = requests_.num_saved_units[slot] == num_blocks * config_.units_per_block();
  return is_kv ? CacheKind::kKv : CacheKind::kHidden;
}

// Brings back what was saved and is not in the prefix cache anyway.
void Scheduler::restore(Slot slot) {
  const int32_t num_saved = requests_.num_saved_tokens[slot];
  const int32_t num_cached = requests_.num_computed_tokens[slot];
  const int64_t num_units = requests_.num_saved_units[slot];
  if (num_saved > num_cached && memory_.grow(requests_.row[slot], num_saved)) {
    const CacheKind kind = saved_kind(slot);
    const int64_t num_moved = num_units - num_cached / config_.block_size * memory_.pool().units_of(kind);
    plan_.transfers.push_back({requests_.id[slot], requests_.row[slot], num_cached, num_saved, num_moved, false, kind});
    requests_.num_computed_tokens[slot] = num_saved;
  }
  drop_saved(slot);
}

void Scheduler::drop_saved(Slot slot) {
  num_host_units_ -= requests_.num_saved_units[slot];
  requests_.num_saved_tokens[slot] = 0;
  requests_.num_saved_units[slot] = 0;
}

}  // namespace hocket
