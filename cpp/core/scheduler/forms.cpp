#include "scheduler/forms.h"

#include <algorithm>

namespace hocket {

Forms::Forms(SchedulerState* state, StepLoads* loads)
    : config_(state->config),
      memory_(state->memory),
      requests_(state->requests),
      running_(state->running),
      copies_(state, loads),
      plan_(state->plan.forms),
      counters_(state->counters) {}

void Forms::reshape(const Reshape& change) {
  const Slot slot = change.slot;
  if (requests_.state[slot] != RequestState::kRunning) return;
  const Row row = requests_.row[slot];
  const CacheForm before = memory_.form(row);
  if (!memory_.reshape(row, change.form, &plan_)) return;
  count_conversion(before, change.form);
  auto& num_recomputed = requests_.num_recomputed_tokens[slot];
  num_recomputed = std::max(num_recomputed, num_uncached_tokens(slot));
  const int32_t num_before = before.num_uncached_blocks;
  if (change.form.num_uncached_blocks < num_before) copies_.bring_back(slot, num_before);
}

void Forms::write(std::span<const Slot> slots) {
  plan_.cache_kinds.clear();
  plan_.uncached_tokens.clear();
  plan_.hidden_tokens.clear();
  plan_.missing_tokens.clear();
  plan_.uncached_token_ids.clear();
  if (!has_any(slots)) slots = {};
  for (const Slot slot : slots) {
    const Row row = requests_.row[slot];
    const CacheForm form = memory_.form(row);
    const int32_t begin = requests_.num_computed_tokens[slot];
    const int32_t num_shared = memory_.num_indexed_blocks(row) * config_.block_size;
    plan_.cache_kinds.push_back(static_cast<int32_t>(form.kind));
    if (!config_.has_forms()) continue;
    plan_.uncached_tokens.push_back(requests_.num_recomputed_tokens[slot]);
    plan_.hidden_tokens.push_back(form.kind == CacheKind::kHidden ? std::max(0, begin - num_shared) : 0);
    plan_.missing_tokens.push_back(form.num_uncached_blocks * config_.block_size);
    if (requests_.num_recomputed_tokens[slot] == 0) continue;
    const auto recomputed = requests_.known_tokens(slot).first(requests_.num_recomputed_tokens[slot]);
    plan_.uncached_token_ids.insert(plan_.uncached_token_ids.end(), recomputed.begin(), recomputed.end());
  }
  if (config_.enable_partial_caching) copies_.write(slots);
}

// Who has all its blocks again may have tokens yet to be recomputed into them.
bool Forms::has_any(std::span<const Slot> slots) const {
  if (memory_.has_forms()) return true;
  return config_.enable_partial_caching &&
         std::ranges::any_of(slots, [&](Slot slot) { return requests_.num_recomputed_tokens[slot] > 0; });
}

int32_t Forms::num_uncached_tokens(Slot slot) const {
  const int32_t num_uncached = memory_.form(requests_.row[slot]).num_uncached_blocks * config_.block_size;
  return std::min(num_uncached, requests_.num_computed_tokens[slot]);
}

void Forms::count_conversion(CacheForm from, CacheForm to) {
  if (from.kind != to.kind) count(to.kind == CacheKind::kInt8 ? Conversion::kToInt8 : Conversion::kHiddenToKv);
  if (to.num_uncached_blocks > from.num_uncached_blocks) count(Conversion::kKvToUncached);
  if (to.num_uncached_blocks < from.num_uncached_blocks) count(Conversion::kUncachedToKv);
}

// What is neither free nor of a compact kind is K and V.
void Forms::count(SchedulerStats* stats) const {
  constexpr auto kKv = static_cast<size_t>(CacheKind::kKv);
  stats->num_kind_tokens[kKv] = int64_t{memory_.cache().num_blocks()} * config_.block_size;
  int64_t num_compact_units = 0;
  for (const Slot slot : running_) {
    const Row row = requests_.row[slot];
    const CacheKind kind = memory_.form(row).kind;
    const int32_t num_uncached = num_uncached_tokens(slot);
    const int32_t num_indexed = memory_.num_indexed_blocks(row) * config_.block_size;
    stats->num_uncached_tokens += num_uncached;
    stats->num_kind_tokens[static_cast<size_t>(kind)] +=
        std::max(0, requests_.num_computed_tokens[slot] - num_indexed - num_uncached);
    if (kind != CacheKind::kKv) num_compact_units += memory_.num_held_units(row);
  }
  stats->num_kind_units[static_cast<size_t>(config_.compact_kind())] = num_compact_units;
  stats->num_kind_units[kKv] = stats->num_units - stats->num_free_units - num_compact_units;
}

}  // namespace hocket
