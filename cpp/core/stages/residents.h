// The candidates of a knapsack (knapsack.h), gathered from running and waiting requests.
//
// m_i, the units that a candidate needs after this step: all of its known tokens and the next one, but for the blocks
// that were cached when it was admitted, or when it began to wait, and those that it is left without. One that starves
// is counted whole: what it would find cached may be gone by now, and is taken from what is available if it is not.
//
// Thread safety: none. No allocation once as many live requests have been seen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/config.h"
#include "solvers/knapsack.h"
#include "stages/composition.h"

namespace hocket {

// Units that the request needs as KV, and in the engine's compact kind (the same where there is none, or nothing to
// gain, or no way back).
struct UnitsNeeded {
  int32_t kv;
  int32_t compact;
};
UnitsNeeded units_needed(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot);

// Whether the request has waited for longer than its class may without a token, or was admitted so and has not ended.
bool is_starving(const SchedulerConfig& config, const RequestTable& requests, Slot slot, double now);

// Whether the request has missed a target that it cannot make up for: its own last gap or first token included.
bool is_past_target(const RequestTable& requests, Slot slot, double now);

// Seconds to compute the request's known tokens again, from what the cache is believed to have.
double rebuild_seconds(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot);

class Residents {
 public:
  explicit Residents(const SchedulerConfig& config);

  void begin(const Snapshot& snapshot);
  // value: p_i in seconds. keep: seconds, for running ones. flags: of KnapsackCandidates, but for residence.
  void add(const Snapshot& snapshot, Slot slot, float value, float keep, uint8_t flags);
  // Of what was added since begin(). num_delayed: running and waiting requests, where not all of them are candidates.
  // The choices are valid until the next solve().
  KnapsackResult solve(int64_t capacity, int32_t num_delayed = 0);

  size_t size() const { return slots_.size(); }
  size_t capacity() const { return slots_.capacity(); }  // for arrays beside these
  Slot slot(size_t i) const { return slots_[i]; }
  float value(size_t i) const { return pending_[i]; }
  float density(size_t i) const { return pending_[i] / static_cast<float>(kv_units_[i]); }
  int32_t kv_units(size_t i) const { return kv_units_[i]; }
  uint8_t flags(size_t i) const { return flags_[i]; }
  // The candidate is placed before all others, whole: who has waited so long is served, not squeezed in.
  void set_must_schedule(size_t i) {
    flags_[i] |= KnapsackCandidates::kMustSchedule;
    compact_units_[i] = kv_units_[i];
  }

 private:
  void reserve(size_t num_live);

  const SchedulerConfig config_;
  Knapsack knapsack_;
  std::vector<Slot> slots_;
  std::vector<float> pending_;
  std::vector<float> keep_;
  std::vector<int32_t> kv_units_;
  std::vector<int32_t> compact_units_;
  std::vector<uint8_t> flags_;
};

}  // namespace hocket
