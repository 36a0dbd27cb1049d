// Who has a row: the policy's composition is carried out as far as tokens and memory reach. Requests are admitted, grow
// and give way.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "policies/policy.h"
#include "scheduler/forms.h"
#include "sessions/announcements.h"
#include "state/scheduler_state.h"
#include "transfers/restores.h"
#include "transfers/saves.h"

namespace hocket {

class Admission {
 public:
  // Who else hears of it when a request is seated or preempted.
  struct Parts {
    Announcements& announcements;
    Restores& restores;
    Saves& saves;
    Forms& forms;
  };

  Admission(SchedulerState* state, const Parts& parts);

  void begin_step();
  void carry_out(const Composition& composition);
  // The requests are taken in order, without time limits; the composition is overwritten. REQUIRES: there is work, and
  // no tokens were granted.
  void ensure_progress(Composition* composition);

 private:
  enum class Admitted : uint8_t { kYes, kNo, kRestoring };
  enum class StepKind : uint8_t { kAny, kPrefill, kDecode };

  void hand_out_grants(const Composition& composition);
  bool is_allowed(const Grant& grant) const;
  void grant_running(Slot slot, int32_t max_tokens);
  bool grow_by_preemption(Slot slot, int32_t num_tokens);
  void collect_victims(Slot needy);
  Slot take_victim();
  bool overtakes_preempted(Slot slot) const;
  Admitted admit(const Grant& grant);
  bool make_room(Slot slot);
  void seat(Slot slot, int32_t num_cached_tokens);
  void preempt(Slot slot);

  SchedulerState& state_;
  const SchedulerConfig& config_;
  const Policy& policy_;
  DeviceMemory& memory_;
  RequestTable& requests_;
  std::vector<Slot>& running_;
  BatchPlan& plan_;
  SchedulerCounters& counters_;
  const Parts parts_;

  std::vector<Slot> preempted_;  // by this schedule()
  StepKind step_kind_ = StepKind::kAny;
  std::vector<Slot> victims_;    // scratch
  std::vector<Slot> displaced_;  // scratch
};

}  // namespace hocket
