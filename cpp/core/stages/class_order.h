// The order of policies that put online requests before offline ones, and both in order of arrival.
//
// Online requests of a smaller priority number go before the others; it is part of that order, and nobody is displaced
// for it. Of the offline ones those with a priority below 0 are favoured: they go before the others, and displace them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "requests/patience.h"
#include "stages/composition.h"
#include "stages/idle_share.h"
#include "stages/residents.h"

namespace hocket {

inline bool is_favoured(const RequestTable& requests, Slot slot) {
  return requests.request_class[slot] == kOfflineClass && requests.priority[slot] < 0;
}

// 0: online, 1: favoured, 2: offline.
inline int32_t class_rank(const RequestTable& requests, Slot slot) {
  return requests.request_class[slot] == kOnlineClass ? 0 : 2 - is_favoured(requests, slot);
}

// Of an online request: smaller goes first. Among offline ones only favour counts.
inline int64_t online_priority(const RequestTable& requests, Slot slot) {
  return requests.request_class[slot] == kOnlineClass ? requests.priority[slot] : 0;
}

// By how much an answer of that priority is worth more than that of an equal: twice per step of priority, between an
// eighth and eight times.
inline float priority_weight(int64_t priority) {
  constexpr int64_t kMost = 3;
  return std::ldexp(1.0F, static_cast<int>(std::clamp(-priority, -kMost, kMost)));
}

// By how much a request counts more that somebody reads, without a target by which its gaps would be weighed: who takes
// its place waits less, and it stops in the middle of a sentence for as long as memory is short. More than priority or
// a tenant's lead alone (8), less than both.
inline float reader_weight(const RequestTable& requests, Slot slot) {
  constexpr float kReader = 16.0F;
  const bool is_read = requests.num_output_tokens(slot) > 0;
  return is_read && requests.deadline(slot) == std::numeric_limits<double>::infinity() ? kReader : 1.0F;
}

inline bool precedes_by_class(const RequestTable& requests, Slot a, Slot b) {
  const auto place = [&](Slot slot) {
    return std::make_tuple(class_rank(requests, slot), online_priority(requests, slot), requests.arrival_time[slot],
                           requests.sequence[slot]);
  };
  return place(a) < place(b);
}

// Whose wait has been too long once is among the online requests until it ends.
inline constexpr int32_t kOnlineRank = 0;
inline int32_t rank_of(const RequestTable& requests, Slot slot) {
  return requests.is_starved[slot] ? kOnlineRank : class_rank(requests, slot);
}

// A waiting request may displace those of lower rank; one that starves counts as online. A running request takes from
// its own rank and those below.
inline void victims_by_class(const SchedulerConfig& config, const Snapshot& snapshot, Slot needy,
                             std::vector<Slot>* victims) {
  const RequestTable& requests = snapshot.requests;
  const bool is_waiting = requests.state[needy] == RequestState::kWaiting;
  const bool is_first = is_waiting && is_starving(config, requests, needy, snapshot.now);
  const int32_t rank = is_first ? kOnlineRank : rank_of(requests, needy);
  for (const Slot slot : snapshot.running) {
    const int32_t other = rank_of(requests, slot);
    if (other > rank || (other == rank && !is_waiting)) victims->push_back(slot);
  }
}

// Seconds until the tightest deadline among running online requests that decode and can still meet it; infinite
// without one.
inline double tightest_slack(const Snapshot& snapshot, std::span<const Slot> online) {
  const RequestTable& requests = snapshot.requests;
  double slack = std::numeric_limits<double>::infinity();
  for (const Slot slot : online) {
    if (requests.num_uncomputed_tokens(slot) > 1) continue;
    for (const double deadline : {requests.gap_deadline(slot), requests.cumulative_deadline(slot)}) {
      const double left = deadline - snapshot.now;
      if (left > 0 && left < slack) slack = left;
    }
  }
  return slack;
}

// That the step may be predicted to take, so that it meets that deadline.
inline double seconds_before_deadline(const Snapshot& snapshot, std::span<const Slot> online) {
  return tightest_slack(snapshot, online) / snapshot.estimates.margin.value();
}

// Between two tokens of who reads along without a target; 0: nothing is known of step times.
inline double promised_itl_seconds(const SchedulerConfig& config, const Estimates& estimates) {
  if (config.max_decode_step_ms > 0) return config.max_decode_step_ms / 1000;
  return estimates.knows_latency() ? estimates.itl_seconds(config.max_num_seqs) : 0.0;
}

// To which prompts may stretch a step with these online decodes: where somebody reads along without a target, no prompt
// takes the whole step away. Infinite where nobody does, or nothing is known of step times. decode_seconds: that the
// decodes of the step take; infinite: as many as are usual. patience: with whose prompts they are.
inline double seconds_beside_readers(const SchedulerConfig& config, const Snapshot& snapshot,
                                     std::span<const Slot> decoding, double decode_seconds, const Patience& patience) {
  const RequestTable& requests = snapshot.requests;
  const bool any_without_target = std::ranges::any_of(decoding, [&](Slot slot) {
    return requests.request_class[slot] == kOnlineClass &&
           requests.deadline(slot) == std::numeric_limits<double>::infinity();
  });
  if (!any_without_target) return std::numeric_limits<double>::infinity();
  if (config.max_decode_step_ms > 0) return config.max_decode_step_ms / 1000;
  const Estimates& estimates = snapshot.estimates;
  const double stretch = patience.stretch(std::ssize(decoding));
  const auto step_seconds = [&](double leniency) {
    return estimates.step_seconds(config.max_num_seqs, decode_seconds, stretch, leniency);
  };
  return patience.seconds(step_seconds(1.0), step_seconds(patience.leniency()),
                          estimates.itl_seconds(config.max_num_seqs), decode_seconds);
}
inline double seconds_beside_readers(const SchedulerConfig& config, const Snapshot& snapshot,
                                     std::span<const Slot> decoding) {
  const double usual = std::numeric_limits<double>::infinity();
  return seconds_beside_readers(config, snapshot, decoding, usual, Patience(snapshot.estimates));
}

// To which offline work may stretch a step: whoever arrives waits for its end. Of no option it is half of what prompts
// may beside readers, so that it grows with the machine's steps and not beyond what a first token should wait; and all
// of that where nobody is online.
inline double offline_step_seconds(const SchedulerConfig& config, const Estimates& estimates, bool is_beside_online) {
  constexpr double kLeast = 0.05, kMost = 0.1;
  if (config.max_offline_step_ms > 0) return config.max_offline_step_ms / 1000;
  return is_beside_online ? std::clamp(estimates.itl_seconds(config.max_num_seqs) / 2, kLeast, kMost) : kMost;
}

inline bool any_online(const RequestTable& requests, std::span<const Slot> slots) {
  return std::ranges::any_of(slots, [&](Slot slot) { return requests.request_class[slot] == kOnlineClass; });
}

// What offline work may make of a step that takes `seconds` with these grants of online requests. A target says how
// much people shall feel of others' work; without one, who decodes and who waits for the first token feel next to
// nothing.
inline IdleRoom room_beside_online(const Snapshot& snapshot, std::span<const Grant> online, double seconds) {
  const RequestTable& requests = snapshot.requests;
  const bool any_without_target = std::ranges::any_of(online, [&](const Grant& grant) {
    const bool is_online = requests.request_class[grant.slot] == kOnlineClass;
    return is_online && requests.deadline(grant.slot) == std::numeric_limits<double>::infinity();
  });
  if (!any_without_target) return {};
  int32_t num_tokens = 0;
  for (const Grant& grant : online) num_tokens += grant.max_tokens;
  return IdleShare::room_beside(seconds, num_tokens, snapshot.idle_seconds);
}

}  // namespace hocket
