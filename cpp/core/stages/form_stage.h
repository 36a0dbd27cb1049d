// Forms of cache beside what the knapsack decides (residents.h): who comes in without its first tokens while memory
// binds, and what becomes K and V again once there is room.
//
// Squeezing in. A request that the knapsack has left out for want of some blocks may be admitted without as many of its
// first ones, and if these are not enough, running requests give up theirs; the tokens are recomputed in every step. As
// for hidden states in the knapsack, its value must exceed what that costs everybody: N times the predicted seconds by
// which it lengthens a step; less where the host has copies (copy_stage.h). The densest request is tried, one in a
// step, once the b/r solver (residency_stage.h) has found one more worth it: it weighs a ratio for all, this the blocks
// of one request.
//
// Pure functions; no allocation.
#pragma once

#include "stages/composition.h"
#include "stages/residents.h"
#include "stages/step_builder.h"

namespace hocket {

struct SqueezedIn {
  size_t candidate = 0;
  int32_t num_uncached_blocks = 0;                   // 0: nobody
  RatioReason reason = RatioReason::kNobodyMayLack;  // of that
};

// Whether the candidate was left out, waits, may do without its first blocks, and is neither late nor owed a place.
bool may_lack_blocks(const Snapshot& snapshot, const Residents& residents, std::span<const uint8_t> choices, size_t i);

// choices: of residents.solve(). num_free_units: that the chosen leave, less what must stay free. The step under
// construction has the decodes, and may take max_seconds. What running requests give up is added to the composition.
SqueezedIn squeeze_in(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                      std::span<const uint8_t> choices, int64_t num_free_units, double max_seconds,
                      StepBuilder* builder, Composition* composition);

// Running requests of other forms get K and V back in up to num_spare_units, in order of admission.
void restore_forms(const SchedulerConfig& config, const Snapshot& snapshot, int64_t num_spare_units,
                   Composition* composition);

}  // namespace hocket
