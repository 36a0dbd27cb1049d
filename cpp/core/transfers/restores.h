// The scheduler and the tiers: when a waiting request is restored instead of computed, and what becomes of it.
//
// A request may be restored twice while it waits (Tiers::kMaxRestores). Between its restore and its admission the
// blocks are leased: evicted last, and never in anybody's way.
//
// The second way leads through the step itself where nobody is kept waiting by that: where the copies take no longer
// than the step would anyway, or there is nobody else. Then the request is admitted as if its blocks were there. They
// are its row's own until the step is over, and join the prefix cache like what the step computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cache_form.h"
#include "base/ids.h"
#include "requests/per_request.h"
#include "sessions/announcements.h"
#include "state/scheduler_state.h"
#include "transfers/step_loads.h"

namespace hocket {

class Restores {
 public:
  struct Choice {
    RestoreWay way = RestoreWay::kNone;
    int32_t begin = 0;  // blocks
    int32_t end = 0;
  };

  Restores(SchedulerState* state, Announcements* announcements, StepLoads* loads);

  // Online requests at the head of the waiting list are restored as soon as they fit, before the policy gives their
  // tokens a place in the step, or offered to the policy with what they could load during the step.
  void before_policy();

  // What is best for a waiting request that would be kept in that form; and how it is begun. Other forms than K and V
  // are never restored.
  Choice choose(Slot slot, CacheForm form = {});
  // Whether blocks that are cached by now land during the step only.
  bool lands_in_step() const { return loads_.num_blocks() > 0; }
  void begin_fetch(Slot slot, const Choice& choice);
  // num_open_units: what the request needs beside what is cached; kept for it until it is back in the waiting list.
  void begin_load(Slot slot, const Choice& choice, int32_t num_open_units);
  bool can_overlap(Slot slot, const Choice& choice) const;
  // REQUIRES: the request has just been seated.
  void begin_step_load(Slot slot, const Choice& choice);
  // The load is counted for the request, which waits for copy_seconds of it.
  void note_load(Slot slot, const Choice& choice, double copy_seconds);

  void on_seated(Slot slot);
  void on_preempted(Slot slot);
  void on_ended(Slot slot) { drop_lease(slot); }
  // A request that is restored is given up.
  void forget(Slot slot) { std::erase(restoring_, slot); }
  // At the first admission: where the cached tokens were found.
  void count_hits(Slot slot, int32_t num_cached_tokens);

  // Moves of earlier plans have been carried out, or failed.
  void complete(std::span<const int32_t> done, std::span<const int32_t> failed);

  std::span<const Slot> restoring() const { return restoring_; }

 private:
  struct OfRequest {
    uint8_t num_restores = 0;        // since it began to wait
    int32_t num_leased_tokens = 0;   // of a waiting request, restored for it and leased until it is admitted
    int32_t num_loaded_tokens = 0;   // that came from the host before its first admission
    int32_t num_fetched_tokens = 0;  // that came from the disk to the host before
    double seconds_saved = 0.0;      // predicted, by those
  };

  bool is_faster(int32_t num_tokens, int32_t num_cached_blocks, const Tiers::Extent& extent) const;
  bool is_worth_waiting(const Tiers::Extent& extent, int32_t begin, int32_t num_blocks) const;
  double seconds_with(Slot slot, int32_t num_computed) const;
  void begin_waiting(Slot slot);
  void end(Slot slot);
  void drop_lease(Slot slot);

  SchedulerState& state_;
  const SchedulerConfig& config_;
  const Estimates& estimates_;
  DeviceMemory& memory_;
  Tiers& tiers_;
  RequestTable& requests_;
  SchedulerCounters& counters_;
  Announcements& announcements_;
  StepLoads& loads_;

  PerRequest<OfRequest> of_;
  std::vector<Slot> restoring_;
  std::vector<Slot> candidates_;        // scratch
  std::vector<RestoreOwner> restored_;  // scratch
};

}  // namespace hocket
