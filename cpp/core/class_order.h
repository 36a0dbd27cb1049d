// The order of policies that put online requests before offline ones, and both in order of arrival.
//
// Of the offline ones those with a priority below 0 are favoured: they go before the others, and displace them.
#pragma once

#include <tuple>
#include <vector>

#include "policy.h"
#include "residents.h"

namespace hocket {

inline bool is_favoured(const RequestTable& requests, Slot slot) {
  return requests.request_class[slot] == kOfflineClass && requests.priority[slot] < 0;
}

// 0: online, 1: favoured, 2: offline.
inline int32_t class_rank(const RequestTable& requests, Slot slot) {
  return requests.request_class[slot] == kOnlineClass ? 0 : 2 - is_favoured(requests, slot);
}

inline bool precedes_by_class(const RequestTable& requests, Slot a, Slot b) {
  return std::make_tuple(class_rank(requests, a), requests.arrival_time[a], requests.sequence[a]) <
         std::make_tuple(class_rank(requests, b), requests.arrival_time[b], requests.sequence[b]);
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
    const double left = requests.deadline(slot) - snapshot.now;
    if (left > 0 && left < slack) slack = left;
  }
  return slack;
}

// That the step may be predicted to take, so that it meets that deadline.
inline double seconds_before_deadline(const Snapshot& snapshot, std::span<const Slot> online) {
  return tightest_slack(snapshot, online) / snapshot.estimates.margin.value();
}

}  // namespace hocket
