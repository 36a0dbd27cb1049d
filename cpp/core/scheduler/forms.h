// In which form running requests are kept (cache_form.h): changes of form, what a plan says of forms, and their counts.
// Forms other than K and V, and host copies of what is uncached (host_copies.h), are known here and nowhere else in the
// scheduler: it only says what happens to requests, in its own words.
#pragma once

#include <cstdint>
#include <span>

#include "base/cache_form.h"
#include "base/ids.h"
#include "policies/policy.h"
#include "state/scheduler_state.h"
#include "transfers/host_copies.h"
#include "transfers/step_loads.h"

namespace hocket {

class Forms {
 public:
  Forms(SchedulerState* state, StepLoads* loads);

  void begin_step() {
    plan_.projections.clear();
    plan_.projected_units.clear();
    plan_.roundings.clear();
    plan_.rounded_units.clear();
  }
  void reshape(const Reshape& change);
  // Grants are handed out: the plan will have nobody else but drafts.
  void end_admission() { copies_.drop_idle_returns(); }
  void end_step() { copies_.release(); }

  void on_seated(Slot slot) {
    copies_.on_seated(slot);
    if (memory_.form(requests_.row[slot]).kind == CacheKind::kInt8) count(Conversion::kToInt8);
  }
  // REQUIRES: the request still has its row.
  void on_preempted(Slot slot) {
    plan_.drop_changes(requests_.row[slot]);
    requests_.num_recomputed_tokens[slot] = 0;
    copies_.on_preempted(slot);
  }
  // What the step computed of the request is counted. is_sound: it may be copied.
  void on_computed(Slot slot, bool is_sound) {
    auto& num_recomputed = requests_.num_recomputed_tokens[slot];
    if (num_recomputed > 0 || memory_.has_forms()) num_recomputed = num_uncached_tokens(slot);
    if (is_sound) copies_.on_computed(slot);
  }
  // The plan's arrays about forms, for its sequences in order.
  void write(std::span<const Slot> slots);
  // Fills in what of the stats is by form. REQUIRES: num_units and num_free_units are there.
  void count(SchedulerStats* stats) const;

 private:
  // Whether a sequence's tokens are not all there as K and V, and read from there.
  bool has_any(std::span<const Slot> slots) const;
  // Computed tokens that are not cached. REQUIRES: the request runs.
  int32_t num_uncached_tokens(Slot slot) const;
  void count(Conversion conversion) { ++counters_.num_conversions[static_cast<size_t>(conversion)]; }
  void count_conversion(CacheForm from, CacheForm to);

  const SchedulerConfig& config_;
  DeviceMemory& memory_;
  RequestTable& requests_;
  const std::vector<Slot>& running_;
  HostCopies copies_;
  FormPlan& plan_;
  SchedulerCounters& counters_;
};

}  // namespace hocket
