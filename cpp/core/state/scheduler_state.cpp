#include "state/scheduler_state.h"

#include <algorithm>

#include "base/check.h"

namespace hocket {
namespace {

const SchedulerConfig& validated(const SchedulerConfig& config) {
  config.validate();
  return config;
}

}  // namespace

SchedulerState::SchedulerState(const SchedulerConfig& config, const Estimates& estimates)
    : config(validated(config)),
      policy(make_policy(config)),
      estimates(estimates),
      output_forecast(config.length_quantile),
      memory(config, policy->has_task_aware_eviction()),
      tiers(config, &memory, estimates.unit_bytes) {
  if (policy->needs_offline_queue()) offline = std::make_unique<OfflineQueue>(this->config, &requests, &memory);
  this->estimates.margin.set_quantile(config.deadline_quantile);
  running.reserve(config.max_num_seqs);
}

Snapshot SchedulerState::snapshot() const {
  return {now,
          requests,
          tenants,
          running,
          waiting,
          memory,
          estimates,
          output_forecast,
          offline.get(),
          reserve_units(config, *policy, online_use),
          config.max_num_batched_tokens,
          config.num_copy_blocks > 0 ? &tiers : nullptr,
          offline_share.saved_seconds(now)};
}

void SchedulerState::enqueue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy->precedes(requests, a, b); };
  waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), slot, before), slot);
  if (is_queued_offline(slot)) offline->insert(slot);
  const auto known = requests.known_tokens(slot);
  const auto reusable = known.first(known.size() - 1);
  requests.num_cached_hint[slot] = memory.num_cached_blocks(requests.cache_salt[slot], reusable) * config.block_size;
}

void SchedulerState::dequeue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy->precedes(requests, a, b); };
  const auto place = std::lower_bound(waiting.begin(), waiting.end(), slot, before);
  HOCKET_CHECK(place != waiting.end() && *place == slot, "a waiting request is not in its place");
  waiting.erase(place);
  if (is_queued_offline(slot)) offline->take(slot);
}

std::span<const BlockKey> SchedulerState::update_keys(Slot slot, int32_t num_tokens) {
  auto& keys = requests.keys[slot];
  const BlockKey root = keys.empty() ? root_key(config.cache_fingerprint, requests.cache_salt[slot]) : BlockKey{};
  append_block_keys(root, requests.known_tokens(slot).first(num_tokens), config.block_size, &keys);
  return keys;
}

}  // namespace hocket
