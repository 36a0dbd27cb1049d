// What offline work joins the step: in order of arrival, or by plan search over the offline queue (Echo section 4.1).
//
// Thread safety: none. Allocation: only for more candidates than ever before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offline/plan_search.h"
#include "stages/composition.h"
#include "stages/step_builder.h"

namespace hocket {

class OfflineStage {
 public:
  OfflineStage(const SchedulerConfig& config, PlanObjective objective);

  // Starts a step. reserve: units that waiting requests must not take, favoured or not. What runs may use what it was
  // promised.
  void begin(const Snapshot& snapshot, int64_t reserve);

  // Favoured requests, those that run and then those that wait (class_order.h), as much of them as the step has room
  // for; the others may then lengthen it by kOthersShare. running: favoured ones, in order of admission. False if there
  // are none. What is left is too little for a search, which deals in whole chunks.
  bool advance_favoured(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder);

  // The others. Adds grants to the step that `builder` holds, within its budgets. running: offline requests that are
  // not favoured, in order of admission.
  void fill_in_order(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder);
  // REQUIRES: snapshot.offline is there.
  void search(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder, Composition* composition);

 private:
  // Whether the waiting request may be admitted: its whole memory leaves the reserve free, or nobody else does
  // anything.
  bool leaves_reserve(const Snapshot& snapshot, Slot slot, const StepBuilder& builder) const;
  // As much of its prompt as the step has room for; false if there is none.
  bool admit(const Snapshot& snapshot, Slot slot, StepBuilder* builder);

  double token_value(const LatencyModel& latency, int32_t context, int32_t remaining) const;
  bool is_being_computed(const Snapshot& snapshot, Slot slot) const;
  void prefer_oldest(const Snapshot& snapshot);
  void gather(const Snapshot& snapshot, std::span<const Slot> running, int64_t room);

  const SchedulerConfig config_;
  const PlanObjective objective_;
  PlanSearch search_;
  int64_t reserve_ = 0;  // units
  int64_t room_ = 0;     // units that are left beside it, and beside what was promised
  std::vector<PlanCandidate> candidates_;
  std::vector<Slot> slots_;    // of the candidates
  std::vector<Slot> leaders_;  // whose prompts are under way, or candidates
  std::vector<Slot> waiting_;  // scratch
};

// The waiting requests in three parts, each in order of arrival. REQUIRES: the policy's order is that of class_order.h.
std::span<const Slot> waiting_online(const Snapshot& snapshot);
std::span<const Slot> waiting_favoured(const Snapshot& snapshot);
std::span<const Slot> waiting_offline(const Snapshot& snapshot);

// Of the last part the first to arrive if it starves, or kNone. It is served before the stage's turn, and the stage
// leaves it out.
Slot starving_offline(const SchedulerConfig& config, const Snapshot& snapshot);

}  // namespace hocket
