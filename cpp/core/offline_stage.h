// What offline work joins the step: in order of arrival, or by plan search over the offline queue (Echo section 4.1).
//
// Thread safety: none. Allocation: only for more candidates than ever before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan_search.h"
#include "policy.h"
#include "step_builder.h"

namespace hocket {

class OfflineStage {
 public:
  OfflineStage(const SchedulerConfig& config, PlanObjective objective);

  // Adds grants to the step that `builder` holds, within its budgets. running: offline requests, in order of admission.
  void fill_in_order(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder) const;
  // reserve: units that waiting requests must not take. What runs may use what it was promised. REQUIRES:
  // snapshot.offline is there.
  void search(const Snapshot& snapshot, std::span<const Slot> running, int64_t reserve, StepBuilder* builder,
              Composition* composition);

 private:
  double token_value(const LatencyModel& latency, int32_t context, int32_t remaining) const;
  void prefer_oldest(const Snapshot& snapshot);
  void gather(const Snapshot& snapshot, std::span<const Slot> running, int64_t room);

  const SchedulerConfig config_;
  const PlanObjective objective_;
  PlanSearch search_;
  std::vector<PlanCandidate> candidates_;
  std::vector<Slot> slots_;    // of the candidates
  std::vector<Slot> leaders_;  // whose prompts are under way, or candidates
  std::vector<Slot> waiting_;  // scratch
};

// The waiting offline requests, in order of arrival. REQUIRES: the policy's order puts offline requests last.
std::span<const Slot> waiting_offline(const Snapshot& snapshot);
std::span<const Slot> waiting_online(const Snapshot& snapshot);

// Of those the first to arrive if it starves, or kNone. It is served before the stage's turn, and the stage leaves it
// out.
Slot starving_offline(const SchedulerConfig& config, const Snapshot& snapshot);

}  // namespace hocket
