#include "transfers/host_copies.h"

#include <algorithm>

#include "offline/plan_features.h"
#include "stages/copy_stage.h"

namespace hocket {

HostCopies::HostCopies(SchedulerState* state, StepLoads* loads)
    : state_(*state),
      config_(state->config),
      estimates_(state->estimates),
      memory_(state->memory),
      requests_(state->requests),
      tiers_(state->tiers),
      loads_(*loads),
      plan_(state->plan),
      counters_(state->counters),
      num_copied_blocks_(&state->requests) {}

void HostCopies::offer(Slot slot) {
  const Row row = requests_.row[slot];
  const CacheForm form = memory_.form(row);
  const bool is_cached = form == CacheForm{} && config_.enable_prefix_caching;  // and saved from there
  if (form.kind != CacheKind::kKv || is_cached) return;
  auto& num_copied = num_copied_blocks_[slot];
  const int32_t begin = std::max(num_copied, form.num_uncached_blocks);
  const int32_t end = requests_.num_computed_tokens[slot] / config_.block_size;
  if (end <= begin) return;
  const auto keys = state_.update_keys(slot, requests_.num_computed_tokens[slot]);
  tiers_.save(keys.subspan(begin, end - begin), memory_.tables().blocks(row).subspan(begin, end - begin));
  num_copied = end;
}

void HostCopies::count_copies(Slot slot) {
  const int32_t num_blocks = memory_.form(requests_.row[slot]).num_uncached_blocks;
  if (num_blocks == 0) return;
  const int32_t num_tokens = num_blocks * config_.block_size;
  if (num_tokens >= requests_.num_tokens[slot] || !has_copies(slot, num_blocks)) return;
  requests_.num_computed_tokens[slot] = requests_.num_recomputed_tokens[slot] = num_tokens;
}

void HostCopies::on_preempted(Slot slot) {
  num_copied_blocks_[slot] = 0;
  requests_.num_loaded_layers[slot] = 0;
}

void HostCopies::bring_back(Slot slot, int32_t end) {
  const int32_t begin = memory_.form(requests_.row[slot]).num_uncached_blocks;
  const bool is_stored = requests_.num_recomputed_tokens[slot] == end * config_.block_size;
  if (is_stored && config_.hidden_units_per_group == 0 && has_copies(slot, end)) {
    loads_.add({slot, begin, end, true});
    requests_.num_recomputed_tokens[slot] = begin * config_.block_size;
  } else {
    num_copied_blocks_[slot] = std::min(num_copied_blocks_[slot], begin);
  }
}

void HostCopies::drop_idle_returns() {
  for (size_t i = loads_.size(); i-- > 0;) {
    const auto [slot, begin, end, is_return] = loads_[i];
    if (!is_return || requests_.num_scheduled_tokens[slot] > 0) continue;
    requests_.num_recomputed_tokens[slot] = end * config_.block_size;
    num_copied_blocks_[slot] = std::min(num_copied_blocks_[slot], begin);
    loads_.drop(slot);
  }
}

void HostCopies::write(std::span<const Slot> slots) {
  // The plan may have been written before, without the draft that it has now.
  counters_.num_recomputed_tokens -= num_recomputed_;
  counters_.num_loaded_tokens -= num_loaded_;
  release();
  choose(slots);
  counters_.num_recomputed_tokens += num_recomputed_;
  counters_.num_loaded_tokens += num_loaded_;
}

void HostCopies::choose(std::span<const Slot> slots) {
  plan_.forms.recomputed_layers.clear();
  plan_.forms.copy_slots.clear();
  int32_t num_left = config_.num_copy_blocks;
  for (size_t s = 0; s < slots.size(); ++s) {
    const int32_t num_tokens = plan_.forms.uncached_tokens[s];
    requests_.num_loaded_layers[slots[s]] = 0;
    if (num_tokens == 0) continue;
    const int32_t num_blocks = num_tokens / config_.block_size;
    if (num_blocks > num_left || !can_load(slots[s])) {
      num_recomputed_ += num_tokens;
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
    num_recomputed_ += num_tokens;
    copied_.clear();
    return;
  }
  num_loaded_ = num_tokens;
  plan_.forms.recomputed_layers.assign(slots.size(), config_.num_layers);
  size_t next = 0;
  for (size_t s = 0; s < slots.size() && next < copied_.size(); ++s) {
    if (slots[s] != copied_[next]) continue;
    ++next;
    plan_.forms.recomputed_layers[s] = split.recomputed_layers;
    requests_.num_loaded_layers[slots[s]] = config_.num_layers - split.recomputed_layers;
    const auto keys = std::span<const BlockKey>(requests_.keys[slots[s]]);
    const auto copies = keys.first(plan_.forms.uncached_tokens[s] / config_.block_size);
    tiers_.hold(copies);
    for (const BlockKey& key : copies)
      plan_.forms.copy_slots.push_back(tiers_.index().host_slot(tiers_.index().find(key)));
  }
}

void HostCopies::release() {
  if (!plan_.forms.copy_slots.empty()) {
    for (const Slot slot : copied_) {
      const auto num_blocks = static_cast<size_t>(requests_.num_recomputed_tokens[slot] / config_.block_size);
      tiers_.release(std::span<const BlockKey>(requests_.keys[slot]).first(num_blocks));
    }
  }
  copied_.clear();
  num_recomputed_ = num_loaded_ = 0;
}

bool HostCopies::has_copies(Slot slot, int32_t num_blocks) const {
  const auto keys = std::span<const BlockKey>(requests_.keys[slot]);
  if (config_.num_copy_blocks == 0 || std::ssize(keys) < num_blocks) return false;
  return tiers_.find(keys.first(num_blocks), 0).num_on_host == num_blocks;
}

// Not while its blocks come back: then the step writes what it recomputes there.
bool HostCopies::can_load(Slot slot) const {
  const int32_t num_recomputed = requests_.num_recomputed_tokens[slot];
  const int32_t num_blocks = memory_.form(requests_.row[slot]).num_uncached_blocks;
  return num_recomputed == num_blocks * config_.block_size && has_copies(slot, num_blocks);
}

BatchFeatures HostCopies::features_beside_copies() const {
  BatchFeatures features = plan_features(plan_);
  for (const Slot slot : copied_) features.add_chunk(0, requests_.num_recomputed_tokens[slot], -1);
  return features;
}

}  // namespace hocket
