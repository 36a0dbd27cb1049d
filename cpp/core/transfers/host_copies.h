// The scheduler and the host copies of uncached tokens: what is saved of a row that the prefix cache does not know, and
// what a step loads of it instead of recomputing it (copy_stage.h).
//
// What comes back to a row is loaded into its blocks during the step (step_loads.h).
//
// Copies are named by their tokens, like all that the host has. Nothing waits for them: where one is missing, dropped,
// or on its way, the tokens are recomputed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "estimates/latency_model.h"
#include "requests/per_request.h"
#include "state/scheduler_state.h"
#include "transfers/step_loads.h"

namespace hocket {

class HostCopies {
 public:
  HostCopies(SchedulerState* state, StepLoads* loads);

  // What a step has computed of the request: its complete blocks of K and V that the host was not offered yet.
  void on_computed(Slot slot) {
    if (config_.num_copy_blocks > 0) offer(slot);
  }
  // If a request comes in without its first blocks and the host has them, they are as good as computed.
  void on_seated(Slot slot) {
    if (config_.num_copy_blocks > 0) count_copies(slot);
  }
  void on_preempted(Slot slot);
  // The row has blocks for [num_uncached, end) again. If the host has these, they land while the step runs, like those
  // of a request that is restored. Not beside projections: these may read the very units, before they are written.
  void bring_back(Slot slot, int32_t end);

  // Who does not run in this step recomputes them in its next one.
  void drop_idle_returns();
  // Which of the plan's uncached tokens are loaded: as many requests, in its order, as the buffers hold, or none. Anew
  // each time that the plan is written.
  void write(std::span<const Slot> slots);
  // The step that loaded them is over.
  void release();

 private:
  void choose(std::span<const Slot> slots);
  void offer(Slot slot);
  void count_copies(Slot slot);
  bool has_copies(Slot slot, int32_t num_blocks) const;
  bool can_load(Slot slot) const;
  BatchFeatures features_beside_copies() const;

  SchedulerState& state_;
  const SchedulerConfig& config_;
  const Estimates& estimates_;
  const DeviceMemory& memory_;
  RequestTable& requests_;
  Tiers& tiers_;
  StepLoads& loads_;
  BatchPlan& plan_;
  SchedulerCounters& counters_;
  PerRequest<int32_t> num_copied_blocks_;  // complete ones that the host was offered; not those before an uncached
  std::vector<Slot> copied_;               // whose uncached tokens the open plan loads
  int64_t num_recomputed_ = 0;             // tokens of the open plan, by way
  int64_t num_loaded_ = 0;
};

}  // namespace hocket
