#include "stages/form_stage.h"

#include <algorithm>

#include "stages/copy_stage.h"

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);

// Tokens that a step will do without, from then on.
struct Uncached {
  int32_t num_recomputed = 0;
  int32_t num_on_host = 0;
};

Uncached uncached(const SchedulerConfig& config, const Snapshot& snapshot, Slot candidate, int32_t num_own,
                  std::span<const Reshape> given) {
  Uncached sum;
  int32_t num_places = config.num_copy_blocks;
  for (const Slot slot : snapshot.running)
    num_places -= snapshot.requests.num_recomputed_tokens[slot] / config.block_size;
  const auto add = [&](Slot slot, int32_t num_before, int32_t num_after) {
    const bool has_places = num_after - num_before <= num_places;
    const bool is_on_host = has_places && num_blocks_on_host(snapshot, slot) >= num_after;
    num_places -= is_on_host ? num_after - num_before : 0;
    (is_on_host ? sum.num_on_host : sum.num_recomputed) += (num_after - num_before) * config.block_size;
  };
  if (num_own > 0) add(candidate, 0, num_own);
  for (const Reshape& change : given) {
    const int32_t num_before = snapshot.memory.form(snapshot.requests.row[change.slot]).num_uncached_blocks;
    add(change.slot, num_before, change.form.num_uncached_blocks);
  }
  return sum;
}

// Seconds by which they lengthen the step.
double seconds_added(const SchedulerConfig& config, const Snapshot& snapshot, Uncached tokens, StepBuilder* builder) {
  const double before = builder->seconds();
  LatencyBatch& batch = *builder->batch();
  if (tokens.num_recomputed > 0) batch.add_chunk(0, tokens.num_recomputed);
  double after = builder->seconds();
  if (tokens.num_on_host > 0) {
    const BatchFeatures without = batch.features();
    BatchFeatures with = without;
    with.add_chunk(0, tokens.num_on_host);
    const double alone = snapshot.estimates.latency.predict(without);
    after += split_layers(config, snapshot.estimates, without, with, tokens.num_on_host).seconds - alone;
  }
  if (tokens.num_recomputed > 0) batch.remove_chunk(0, tokens.num_recomputed);
  return after - before;
}

// The densest of those that may come in without their first blocks; choices.size() if there is none.
size_t densest_left_out(const Snapshot& snapshot, const Residents& residents, std::span<const uint8_t> choices) {
  size_t best = choices.size();
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!may_lack_blocks(snapshot, residents, choices, i)) continue;
    if (best == choices.size() || residents.density(i) > residents.density(best)) best = i;
  }
  return best;
}

// Blocks that a running request could give up.
int32_t num_to_give(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot) {
  const Row row = snapshot.requests.row[slot];
  const CacheForm form = snapshot.memory.form(row);
  const bool is_decoding = snapshot.requests.num_uncomputed_tokens(slot) == 1;
  if (!is_decoding || form.kind != CacheKind::kKv || !snapshot.memory.can_uncache(row)) return 0;
  const int32_t num_complete = snapshot.requests.num_computed_tokens[slot] / config.block_size;
  return std::max(0, std::min(num_complete, config.max_uncached_blocks()) - form.num_uncached_blocks);
}

bool can_give(const SchedulerConfig& config, const Snapshot& snapshot, int64_t num_blocks) {
  for (const Slot slot : snapshot.running) {
    if (num_blocks <= 0) break;
    num_blocks -= num_to_give(config, snapshot, slot);
  }
  return num_blocks <= 0;
}

void give(const SchedulerConfig& config, const Snapshot& snapshot, int64_t num_blocks, Composition* composition) {
  for (const Slot slot : snapshot.running) {
    const auto num_given = static_cast<int32_t>(std::min<int64_t>(num_blocks, num_to_give(config, snapshot, slot)));
    if (num_given <= 0) continue;
    num_blocks -= num_given;
    const int32_t num_before = snapshot.memory.form(snapshot.requests.row[slot]).num_uncached_blocks;
    composition->reshapes.push_back({slot, {CacheKind::kKv, num_before + num_given}});
  }
}

}  // namespace

bool may_lack_blocks(const Snapshot& snapshot, const Residents& residents, std::span<const uint8_t> choices, size_t i) {
  constexpr uint8_t kOthers = KnapsackCandidates::kPastTarget | KnapsackCandidates::kMustSchedule;
  const Slot slot = residents.slot(i);
  const bool is_left_out = choices[i] == kSkip && snapshot.requests.row[slot] == kNone;
  const bool is_shared = snapshot.requests.num_cached_hint[slot] > 0;  // it would give up what it shares
  return is_left_out && !is_shared && !(residents.flags(i) & kOthers);
}

SqueezedIn squeeze_in(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                      std::span<const uint8_t> choices, int64_t num_free_units, double max_seconds,
                      StepBuilder* builder, Composition* composition) {
  const size_t best = densest_left_out(snapshot, residents, choices);
  if (best == choices.size()) return {};
  const int64_t num_missing = residents.kv_units(best) - num_free_units;
  const int64_t num_blocks = (num_missing + config.units_per_block() - 1) / config.units_per_block();
  const int32_t num_complete = snapshot.requests.num_tokens[residents.slot(best)] / config.block_size;
  const int32_t num_dispensable = std::min(num_complete, config.max_uncached_blocks());
  const auto num_own = static_cast<int32_t>(std::min<int64_t>(num_blocks, num_dispensable));
  if (num_own <= 0 || !can_give(config, snapshot, num_blocks - num_own)) return {best, 0, RatioReason::kTooFewBlocks};
  const size_t num_reshapes = composition->reshapes.size();
  give(config, snapshot, num_blocks - num_own, composition);
  const auto given = std::span<const Reshape>(composition->reshapes).subspan(num_reshapes);
  const Uncached tokens = uncached(config, snapshot, residents.slot(best), num_own, given);
  const double added = seconds_added(config, snapshot, tokens, builder);
  const bool pays = added > 0 && residents.value(best) > added * static_cast<double>(choices.size());
  if (pays && builder->seconds() + added <= max_seconds) return {best, num_own, RatioReason::kRecomputes};
  composition->reshapes.resize(num_reshapes);
  return {best, 0, pays ? RatioReason::kTargets : RatioReason::kCostsMore};
}

void restore_forms(const SchedulerConfig& config, const Snapshot& snapshot, int64_t num_spare_units,
                   Composition* composition) {
  const MemoryView& memory = snapshot.memory;
  for (const Slot slot : snapshot.running) {
    const Row row = snapshot.requests.row[slot];
    const CacheForm form = memory.form(row);
    if (form == CacheForm{}) continue;
    if (form.kind == CacheKind::kHidden) {
      const int32_t num_own = memory.num_blocks(row) - memory.num_shared_blocks(row);
      const int64_t num_more = int64_t{num_own} * (config.units_per_block() - config.hidden_units_per_block());
      if (num_more > num_spare_units) continue;
      num_spare_units -= num_more;
      composition->reshapes.push_back({slot, {}});
    } else {
      const int64_t num_back = std::min<int64_t>(form.num_uncached_blocks, num_spare_units / config.units_per_block());
      if (num_back <= 0) continue;
      num_spare_units -= num_back * config.units_per_block();
      const auto num_left = static_cast<int32_t>(form.num_uncached_blocks - num_back);
      composition->reshapes.push_back({slot, {CacheKind::kKv, num_left}});
    }
  }
}

}  // namespace hocket
