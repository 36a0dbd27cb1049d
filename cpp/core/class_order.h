// The order of policies that put online requests before offline ones, and both in order of arrival.
#pragma once

#include <tuple>
#include <vector>

#include "policy.h"

namespace hocket {

inline bool precedes_by_class(const RequestTable& requests, Slot a, Slot b) {
  return std::tie(requests.request_class[a], requests.arrival_time[a], requests.sequence[a]) <
         std::tie(requests.request_class[b], requests.arrival_time[b], requests.sequence[b]);
}

// A waiting online request may displace offline ones. A running request takes from its own class and those below.
inline void victims_by_class(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) {
  const RequestTable& requests = snapshot.requests;
  const bool is_waiting = requests.state[needy] == RequestState::kWaiting;
  for (const Slot slot : snapshot.running) {
    const bool is_below = requests.request_class[slot] > requests.request_class[needy];
    const bool is_equal = requests.request_class[slot] == requests.request_class[needy];
    if (is_below || (is_equal && !is_waiting)) victims->push_back(slot);
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
