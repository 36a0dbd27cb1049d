// Saves of preempted requests on the host, as K and V or as hidden states, of which each belongs to one request: how
// the papers' policies swap, in simulation. The host tier (restores.h) takes their place in a live engine.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cache_form.h"
#include "base/ids.h"
#include "requests/per_request.h"
#include "state/scheduler_state.h"

namespace hocket {

class Saves {
 public:
  explicit Saves(SchedulerState* state);

  // Copies what the request has computed to the host, if there is room. REQUIRES: it still has its row.
  void save(Slot slot);
  // Whether what was saved can be had in that form.
  bool can_resume(Slot slot, CacheForm form) const;
  // Brings back what was saved and is not in the prefix cache anyway. REQUIRES: the request has just been seated.
  void resume(Slot slot);
  void drop(Slot slot);

  // Throws CoreError if the units on the host are not those of the waiting requests.
  void check_invariants() const;

 private:
  CacheKind saved_kind(Slot slot) const;

  const SchedulerConfig& config_;
  DeviceMemory& memory_;
  RequestTable& requests_;
  const std::vector<Slot>& waiting_;
  BatchPlan& plan_;
  PerRequest<int64_t> num_saved_units_;  // that a waiting request's vectors take on the host
  int64_t num_host_units_ = 0;           // all of them
};

}  // namespace hocket
