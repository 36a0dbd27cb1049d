#include "form_stage.h"

#include <algorithm>

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);

// Seconds by which recomputing so many tokens lengthens the step.
double seconds_added(StepBuilder* builder, int32_t num_tokens) {
  const double before = builder->seconds();
  builder->batch()->add_chunk(0, num_tokens);
  const double after = builder->seconds();
  builder->batch()->remove_chunk(0, num_tokens);
  return after - before;
}

// The densest of those that were left out, wait, and are neither late nor owed a place; choices.size() if there is
// none.
size_t densest_left_out(const Snapshot& snapshot, const Residents& residents, std::span<const uint8_t> choices) {
  constexpr uint8_t kOthers = KnapsackCandidates::kPastTarget | KnapsackCandidates::kMustSchedule;
  size_t best = choices.size();
  for (size_t i = 0; i < choices.size(); ++i) {
    const bool is_left_out = choices[i] == kSkip && snapshot.requests.row[residents.slot(i)] == kNone;
    if (!is_left_out || (residents.flags(i) & kOthers)) continue;
    if (best == choices.size() || residents.density(i) > residents.density(best)) best = i;
  }
  return best;
}

// Blocks that a running request could give up.
int32_t num_to_give(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot) {
  const Row row = snapshot.requests.row[slot];
  const CacheForm form = snapshot.memory.form(row);
  const bool is_decoding = snapshot.requests.num_uncomputed_tokens(slot) == 1;
  if (!is_decoding || form.kind != CacheKind::kKv || snapshot.memory.num_indexed_blocks(row) > 0) return 0;
  return std::max(0, snapshot.requests.num_computed_tokens[slot] / config.block_size - form.num_uncached_blocks);
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

SqueezedIn squeeze_in(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                      std::span<const uint8_t> choices, int64_t num_free_units, double max_seconds,
                      StepBuilder* builder, Composition* composition) {
  const size_t best = densest_left_out(snapshot, residents, choices);
  if (best == choices.size()) return {};
  const int64_t num_missing = residents.kv_units(best) - num_free_units;
  const int64_t num_blocks = (num_missing + config.units_per_block() - 1) / config.units_per_block();
  const int32_t num_complete = snapshot.requests.num_tokens[residents.slot(best)] / config.block_size;
  const auto num_own = static_cast<int32_t>(std::min<int64_t>(num_blocks, num_complete));
  if (num_own <= 0 || !can_give(config, snapshot, num_blocks - num_own)) return {};
  const double added = seconds_added(builder, static_cast<int32_t>(num_blocks) * config.block_size);
  const bool is_known = added > 0;
  const bool pays = residents.value(best) > added * static_cast<double>(choices.size());
  if (!is_known || !pays || builder->seconds() + added > max_seconds) return {};
  give(config, snapshot, num_blocks - num_own, composition);
  return {best, num_own};
}

void restore_forms(const SchedulerConfig& config, const Snapshot& snapshot, int64_t num_spare_units,
                   Composition* composition) {
  const DeviceMemory& memory = snapshot.memory;
  for (const Slot slot : snapshot.running) {
    const Row row = snapshot.requests.row[slot];
    const CacheForm form = memory.form(row);
    if (form == CacheForm{}) continue;
    if (form.kind == CacheKind::kHidden) {
      const int32_t num_own = memory.tables().num_blocks(row) - memory.num_shared_blocks(row);
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
