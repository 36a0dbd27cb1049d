// The order of policies that put online requests before offline ones, and both in order of arrival.
#pragma once

#include <tuple>
#include <vector>

#include "policy.h"
#include "residents.h"

namespace hocket {

inline bool precedes_by_class(const RequestTable& requests, Slot a, Slot b) {
  return std::tie(requests.request_class[a], requests.arrival_time[a], requests.sequence[a]) <
         std::tie(requests.request_class[b], requests.arrival_time[b], requests.sequence[b]);
}

// Whose wait has been too long once is among the online requests until it ends.
inline int32_t rank_of(const RequestTable& requests, Slot slot) {
  return requests.is_starved[slot] ? kOnlineClass : requests.request_class[slot];
}

// A waiting online request may displace offline ones, and so may one that starves. A running request takes from its own
// class and those below.
inline void victims_by_class(const SchedulerConfig& config, const Snapshot& snapshot, Slot needy,
                             std::vector<Slot>* victims) {
  const RequestTable& requests = snapshot.requests;
  const bool is_waiting = requests.state[needy] == RequestState::kWaiting;
  const bool is_first = is_waiting && is_starving(config, requests, needy, snapshot.now);
  const int32_t rank = is_first ? kOnlineClass : rank_of(requests, needy);
  for (const Slot slot : snapshot.running) {
    const int32_t other = rank_of(requests, slot);
    if (other > rank || (other == rank && !is_waiting)) victims->push_back(slot);
  }
}

// Of the tightest deadline: predictions are off by some percent.
inline constexpr double kSlackShare = 0.95;

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

}  // namespace hocket
