#include "stages/residents.h"

#include <algorithm>

namespace hocket {
namespace {

// To build a token's cache again while nothing is known of times: who runs must have something for it, or equals would
// take turns.
constexpr double kUnknownTokenSeconds = 1e-4;

// Of what it takes to build a request's cache again, the part that rounding it to int8 is worth avoiding: who runs as K
// and V stays so before others come in as K and V.
constexpr double kPriceOfRounding = 0.02;

}  // namespace

UnitsNeeded units_needed(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot) {
  const RequestTable& requests = snapshot.requests;
  const int32_t num_blocks = requests.num_tokens[slot] / config.block_size + 1;
  const Row row = requests.row[slot];
  const bool is_whole = row == kNone && is_starving(config, requests, slot, snapshot.now);
  const int32_t num_hinted = is_whole ? 0 : requests.num_cached_hint[slot] / config.block_size;
  const int32_t num_shared = row == kNone ? num_hinted : snapshot.memory.num_shared_blocks(row);
  const int32_t num_uncached = row == kNone ? 0 : snapshot.memory.form(row).num_uncached_blocks;
  const int32_t num_own = std::max(1, num_blocks - num_shared - num_uncached);
  const int32_t kv = num_own * config.units_per_block();
  if (config.int8_units_per_group > 0) {
    const int32_t compact = num_blocks * config.compact_units_per_block();  // of what is shared a copy
    const bool is_rounded = row != kNone && snapshot.memory.form(row).kind == CacheKind::kInt8;
    return {is_rounded ? compact : kv, std::min(compact, kv)};
  }
  if (!config.has_kinds() || num_own == 1) return {kv, kv};
  return {kv, num_own * config.compact_units_per_block()};
}

bool is_starving(const SchedulerConfig& config, const RequestTable& requests, Slot slot, double now) {
  const bool is_online = requests.request_class[slot] == kOnlineClass;
  const double max_wait_ms = is_online ? config.max_wait_ms : config.max_offline_wait_ms;
  return requests.is_starved[slot] || requests.pending_seconds(slot, now) * 1000 > max_wait_ms;
}

bool is_past_target(const RequestTable& requests, Slot slot, double now) {
  return requests.delays[slot].is_late || now > requests.deadline(slot);
}

double rebuild_seconds(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot) {
  const RequestTable& requests = snapshot.requests;
  const double n = requests.num_computed_tokens[slot];
  const LatencyCoefficients& k = snapshot.estimates.latency.coefficients();
  double seconds = n * (k.prefill_token + k.prefill_pair * n);
  if (config.preemption != "recompute" && config.num_host_units > 0) {
    const auto num_blocks = static_cast<int64_t>(n / config.block_size + 1);
    seconds = snapshot.estimates.transfer_seconds(num_blocks * config.units_per_block());
  }
  return seconds > 0 ? seconds : n * kUnknownTokenSeconds;
}

Residents::Residents(const SchedulerConfig& config)
    : config_(config),
      knapsack_({.past_target_decay = std::max(config.past_target_decay, 1e-3),
                 .kept_share = config.int8_units_per_group > 0 ? 1.0 - kPriceOfRounding : 0.0}) {}

void Residents::begin(const Snapshot& snapshot) {
  const bool is_hidden = config_.hidden_units_per_group > 0;
  const double compact_token = is_hidden ? snapshot.estimates.latency.coefficients().hidden_token : 0.0;
  knapsack_.set_compact_seconds_per_unit(compact_token * config_.block_size / config_.units_per_block());
  for (auto* floats : {&pending_, &keep_}) floats->clear();
  for (auto* units : {&kv_units_, &compact_units_}) units->clear();
  slots_.clear();
  flags_.clear();
  reserve(snapshot.running.size() + snapshot.waiting.size());
}

// For all live requests: how many of them are candidates differs from step to step.
void Residents::reserve(size_t num_live) {
  if (num_live <= slots_.capacity()) return;
  const size_t n = std::max(num_live, 2 * slots_.capacity());
  for (auto* floats : {&pending_, &keep_}) floats->reserve(n);
  for (auto* units : {&kv_units_, &compact_units_}) units->reserve(n);
  slots_.reserve(n);
  flags_.reserve(n);
  knapsack_.reserve(n);
}

void Residents::add(const Snapshot& snapshot, Slot slot, float value, float keep, uint8_t flags) {
  const UnitsNeeded units = units_needed(config_, snapshot, slot);
  const Row row = snapshot.requests.row[slot];
  if (row != kNone) {
    const bool is_kv = snapshot.memory.form(row).kind == CacheKind::kKv;
    flags |= is_kv ? KnapsackCandidates::kResidentKv : KnapsackCandidates::kResidentCompact;
  }
  slots_.push_back(slot);
  pending_.push_back(std::max(0.0F, value));
  keep_.push_back(keep);
  kv_units_.push_back(units.kv);
  compact_units_.push_back(units.compact);
  flags_.push_back(flags);
  if (flags & KnapsackCandidates::kMustSchedule) set_must_schedule(size() - 1);
}

KnapsackResult Residents::solve(int64_t capacity, int32_t num_delayed) {
  return knapsack_.solve({pending_, kv_units_, compact_units_, flags_, keep_, num_delayed},
                         std::max<int64_t>(capacity, 0));
}

}  // namespace hocket
