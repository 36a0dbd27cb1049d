// The scheduler and the host copies of uncached tokens: what is saved of a row that the prefix cache does not know, and
// what a step loads of it instead of recomputing it (copy_stage.h).
//
// What comes back to a row is loaded into its blocks during the step (Scheduler::StepLoad).
//
// Copies are named by their tokens, like all that the host has. Nothing waits for them: where one is missing, dropped,
// or on its way, the tokens are recomputed.

#include <algorithm>

#include "check.h"
#include "copy_stage.h"
#include "plan_features.h"
#include "scheduler.h"

namespace hocket {

// The request's complete blocks of K and V that the host was not offered yet.
void Scheduler::save_copies(Slot slot) {
  const Row row = requests_.row[slot];
  const CacheForm form = memory_.form(row);
  if (form.kind != CacheKind::kKv) return;
  auto& num_copied = requests_.num_copied_blocks[slot];
  const int32_t begin = std::max(num_copied, form.num_uncached_blocks);
  const int32_t end = requests_.num_computed_tokens[slot] / config_.block_size;
  if (end <= begin) return;
  const auto keys = update_keys(slot, requests_.num_computed_tokens[slot]);
  tiers_.save(keys.subspan(begin, end - begin), memory_.tables().blocks(row).subspan(begin, end - begin));
  num_copied = end;
}

bool Scheduler::has_copies(Slot slot, int32_t num_blocks) const {
  const auto keys = std::span<const BlockKey>(requests_.keys[slot]);
  if (config_.num_copy_blocks == 0 || std::ssize(keys) < num_blocks) return false;
  return tiers_.find(keys.first(num_blocks), 0).num_on_host == num_blocks;
}

// A request comes in without its first blocks: if the host has them, they are as good as computed.
void Scheduler::begin_behind_copies(Slot slot) {
  const int32_t num_blocks = memory_.form(requests_.row[slot]).num_uncached_blocks;
  const int32_t num_tokens = num_blocks * config_.block_size;
  if (num_tokens >= requests_.num_tokens[slot] || !has_copies(slot, num_blocks)) return;
  requests_.num_computed_tokens[slot] = requests_.num_unstored_tokens[slot] = num_tokens;
}

// The row has blocks for [num_uncached, end) again. If the host has these, they land while the step runs, like those of
// a request that is restored. Not beside projections: these may read the very units, before they are written.
void Scheduler::bring_back(Slot slot, int32_t end) {
  const int32_t begin = memory_.form(requests_.row[slot]).num_uncached_blocks;
  const bool is_stored = requests_.num_unstored_tokens[slot] == end * config_.block_size;
  if (is_stored && config_.hidden_units_per_group == 0 && has_copies(slot, end)) {
    tiers_.hold(std::span<const BlockKey>(requests_.keys[slot]).subspan(begin, end - begin));
    step_loads_.push_back({slot, begin, end, true});
    requests_.num_unstored_tokens[slot] = begin * config_.block_size;
  } else {
    requests_.num_copied_blocks[slot] = std::min(requests_.num_copied_blocks[slot], begin);
  }
}

// Who does not run in this step recomputes them in its next one.
void Scheduler::drop_idle_returns() {
  for (size_t i = step_loads_.size(); i-- > 0;) {
    const auto [slot, begin, end, is_return] = step_loads_[i];
    if (!is_return || requests_.num_scheduled_tokens[slot] > 0) continue;
    requests_.num_unstored_tokens[slot] = end * config_.block_size;
    requests_.num_copied_blocks[slot] = std::min(requests_.num_copied_blocks[slot], begin);
    drop_step_load(slot);
  }
}

// Which of the plan's uncached tokens are loaded: as many requests, in its order, as the buffers hold, or none.
void Scheduler::write_copies() {
  plan_.recomputed_layers.clear();
  plan_.copy_slots.clear();
  int32_t num_left = config_.num_copy_blocks;
  const auto slots = writer_.seq_slots();
  for (size_t s = 0; s < slots.size(); ++s) {
    const int32_t num_tokens = plan_.uncached_tokens[s];
    requests_.num_loaded_layers[slots[s]] = 0;
    if (num_tokens == 0) continue;
    const int32_t num_blocks = num_tokens / config_.block_size;
    if (num_blocks > num_left || !can_load(slots[s])) {
      counters_.num_recomputed_tokens += num_tokens;
      continue;
    }
    num_left -= num_blocks;
    copied_.push_back(slots[s]);
  }
  if (copied_.empty()) return;
  const int32_t num_tokens = (config_.num_copy_blocks - num_left) * config_.block_size;
  const BatchFeatures with = plan_features(plan_);
  const CopySplit split = split_layers(config_, estimates_, features_beside_copies(), with, num_tokens);
  if (split.recomputed_layers == config_.num_layers) {
    counters_.num_recomputed_tokens += num_tokens;
    copied_.clear();
    return;
  }
  counters_.num_loaded_tokens += num_tokens;
  plan_.recomputed_layers.assign(slots.size(), config_.num_layers);
  size_t next = 0;
  for (size_t s = 0; s < slots.size() && next < copied_.size(); ++s) {
    if (slots[s] != copied_[next]) continue;
    ++next;
    plan_.recomputed_layers[s] = split.recomputed_layers;
    requests_.num_loaded_layers[slots[s]] = config_.num_layers - split.recomputed_layers;
    const auto keys = std::span<const BlockKey>(requests_.keys[slots[s]]);
    const auto copies = keys.first(plan_.uncached_tokens[s] / config_.block_size);
    tiers_.hold(copies);
    for (const BlockKey& key : copies) plan_.copy_slots.push_back(tiers_.index().host_slot(tiers_.index().find(key)));
  }
}

// Not while its blocks come back: then the step writes what it recomputes there.
bool Scheduler::can_load(Slot slot) const {
  const int32_t num_unstored = requests_.num_unstored_tokens[slot];
  const int32_t num_blocks = memory_.form(requests_.row[slot]).num_uncached_blocks;
  return num_unstored == num_blocks * config_.block_size && has_copies(slot, num_blocks);
}

BatchFeatures Scheduler::features_beside_copies() const {
  BatchFeatures features = plan_features(plan_);
  for (const Slot slot : copied_) features.add_chunk(0, requests_.num_unstored_tokens[slot], -1);
  return features;
}

void Scheduler::let_go_of_copies() {
  if (!plan_.copy_slots.empty()) {
    for (const Slot slot : copied_) {
      const auto num_blocks = static_cast<size_t>(requests_.num_unstored_tokens[slot] / config_.block_size);
      tiers_.let_go(std::span<const BlockKey>(requests_.keys[slot]).first(num_blocks));
    }
  }
  copied_.clear();
}

}  // namespace hocket
