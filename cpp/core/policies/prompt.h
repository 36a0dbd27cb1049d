// In which order the united policy computes the prompts of online requests.
//
// Who starves first, the oldest before others. Then by priority; of equal priority, tenants that have been served less
// go before others, even late: who sends so many that always some are in time would keep them out. Then by deadline,
// those that would be late last. While memory is contended the densest come first instead: by deadline, everybody's
// would be missed by a little. Where there is neither a target nor contention, by when a first token is expected after
// so long a prompt (patience.h): a long one lets short ones that come a little later go before it. Equals in order of
// arrival.
//
// Pure functions; no allocation.
#pragma once

#include <algorithm>
#include <limits>
#include <tuple>

#include "policies/policy.h"
#include "requests/patience.h"
#include "stages/class_order.h"

namespace hocket {

struct Prompt {
  Slot slot;
  bool is_starving;
  int64_t priority;
  int32_t tenant_lead;
  bool is_late;
  double deadline;
  double expected;  // when the first token is, of who has no deadline
  CacheForm form;
  float density;  // answers per unit and step; 0 where nobody is weighed
  double arrival;
  uint64_t sequence;

  // Larger is first in what is on the other side.
  bool precedes(const Prompt& b) const {
    return std::tie(b.is_starving, priority, tenant_lead, is_late, b.density, deadline, expected, arrival, sequence) <
           std::tie(is_starving, b.priority, b.tenant_lead, b.is_late, density, b.deadline, b.expected, b.arrival,
                    b.sequence);
  }
};

// That what is left of the prompt takes, beside decodes.
inline double prompt_seconds(const Snapshot& snapshot, Slot slot) {
  const RequestTable& requests = snapshot.requests;
  const int32_t num_there = std::max(requests.num_cached_hint[slot], requests.num_computed_tokens[slot]);
  return snapshot.estimates.prefill_seconds(num_there, requests.num_tokens[slot] - num_there);
}

// That all of it takes that was not cached.
inline double alone_seconds(const Snapshot& snapshot, Slot slot) {
  const int32_t num_cached = snapshot.requests.num_cached_hint[slot];
  return snapshot.estimates.prefill_seconds(num_cached, snapshot.requests.num_tokens[slot] - num_cached);
}

// A prompt whose token would miss its deadline although the next step, whose decodes take decode_seconds, computed all
// of it. Served by deadline, one after the other would be on the point of it, and late by a little. A long prompt that
// can just come in time is none of them, so the margin is of the decodes only.
inline bool will_be_late(const Snapshot& snapshot, Slot slot, double decode_seconds) {
  const RequestTable& requests = snapshot.requests;
  const double deadline = requests.deadline(slot);
  if (requests.delays[slot].is_late || deadline < snapshot.now) return true;
  if (deadline == std::numeric_limits<double>::infinity()) return false;
  const double margin = snapshot.estimates.margin.value();
  return deadline < snapshot.now + margin * decode_seconds + prompt_seconds(snapshot, slot);
}

// Of those that starve the oldest goes first; where they take turns, who has waited longest.
inline double starving_since(const SchedulerConfig& config, const RequestTable& requests, Slot slot) {
  if (config.starving_turn_ms == std::numeric_limits<double>::infinity()) return requests.arrival_time[slot];
  return requests.row[slot] == kNone ? requests.pace[slot].last_token_time : requests.delays[slot].waited_since;
}

// form: in which its tokens are computed. decode_seconds: of the step.
inline Prompt prompt_of(const SchedulerConfig& config, const Snapshot& snapshot, Slot slot, double decode_seconds,
                        CacheForm form, float density) {
  const RequestTable& requests = snapshot.requests;
  const double arrival = requests.arrival_time[slot];
  const uint64_t sequence = requests.sequence[slot];
  if (is_starving(config, requests, slot, snapshot.now)) {
    return {slot, true, 0, 0, false, starving_since(config, requests, slot), 0.0, form, 0.0F, arrival, sequence};
  }
  const int64_t priority = online_priority(requests, slot);
  const int32_t lead = snapshot.tenants.lead(slot);
  const bool is_late = will_be_late(snapshot, slot, decode_seconds);
  const double expected = arrival + Patience::expected_seconds(snapshot.estimates, alone_seconds(snapshot, slot));
  return {slot, false, priority, lead, is_late, requests.deadline(slot), expected, form, density, arrival, sequence};
}

}  // namespace hocket
