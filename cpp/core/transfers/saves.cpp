#include "transfers/saves.h"

#include "base/check.h"

namespace hocket {

Saves::Saves(SchedulerState* state)
    : config_(state->config),
      memory_(state->memory),
      requests_(state->requests),
      waiting_(state->waiting),
      plan_(state->plan),
      num_saved_units_(&state->requests) {}

// Rows with uncached tokens are not worth it.
void Saves::save(Slot slot) {
  if (config_.num_host_units == 0 || config_.preemption == "recompute") return;
  const Row row = requests_.row[slot];
  const int32_t num_tokens = requests_.num_computed_tokens[slot];
  if (num_tokens == 0 || requests_.num_recomputed_tokens[slot] > 0) return;
  const bool is_hidden = config_.preemption == "restore" || memory_.form(row).kind == CacheKind::kHidden;
  const CacheKind kind = is_hidden && config_.hidden_units_per_group > 0 ? CacheKind::kHidden : CacheKind::kKv;
  const int64_t num_units = int64_t{config_.blocks_for(num_tokens)} * memory_.pool().units_of(kind);
  if (num_host_units_ + num_units > config_.num_host_units) return;
  num_host_units_ += num_units;
  requests_.num_saved_tokens[slot] = num_tokens;
  num_saved_units_[slot] = num_units;
  plan_.transfers.push_back({requests_.id[slot], row, 0, num_tokens, num_units, true, kind});
}

// K and V cannot become hidden states, and what is recomputed in every step needs no copy.
bool Saves::can_resume(Slot slot, CacheForm form) const {
  const int32_t num_saved = requests_.num_saved_tokens[slot];
  if (num_saved == 0 || form.num_uncached_blocks > 0) return false;
  return form.kind == CacheKind::kKv || saved_kind(slot) == CacheKind::kHidden;
}

CacheKind Saves::saved_kind(Slot slot) const {
  const int64_t num_blocks = config_.blocks_for(requests_.num_saved_tokens[slot]);
  const bool is_kv = num_saved_units_[slot] == num_blocks * config_.units_per_block();
  return is_kv ? CacheKind::kKv : CacheKind::kHidden;
}

void Saves::resume(Slot slot) {
  const int32_t num_saved = requests_.num_saved_tokens[slot];
  const int32_t num_cached = requests_.num_computed_tokens[slot];
  const int64_t num_units = num_saved_units_[slot];
  if (num_saved > num_cached && memory_.grow(requests_.row[slot], num_saved)) {
    const CacheKind kind = saved_kind(slot);
    const int64_t num_moved = num_units - num_cached / config_.block_size * memory_.pool().units_of(kind);
    plan_.transfers.push_back({requests_.id[slot], requests_.row[slot], num_cached, num_saved, num_moved, false, kind});
    requests_.num_computed_tokens[slot] = num_saved;
  }
  drop(slot);
}

void Saves::drop(Slot slot) {
  num_host_units_ -= num_saved_units_[slot];
  requests_.num_saved_tokens[slot] = 0;
  num_saved_units_[slot] = 0;
}

void Saves::check_invariants() const {
  int64_t num_host_units = 0;
  for (const Slot slot : waiting_) num_host_units += num_saved_units_[slot];
  HOCKET_CHECK(num_host_units == num_host_units_, "units on the host differ from the saved requests'");
}

}  // namespace hocket
