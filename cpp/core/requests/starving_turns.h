// Online requests that are served because they had waited for long (is_starved) take turns: who was has had its turn
// once others have waited as long, it has got a token by it, and starving_turn_ms have gone by since it came in.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "base/config.h"
#include "base/ids.h"
#include "requests/request.h"

namespace hocket {

// It comes in now.
inline void begin_turn(RequestTable* requests, Slot slot, double now) {
  requests->delays[slot].seated_at = now;
  requests->delays[slot].waited_since = requests->pace[slot].last_token_time;
}

inline void end_turns(const SchedulerConfig& config, std::span<const Slot> running, std::span<const Slot> waiting,
                      double now, RequestTable* requests) {
  if (config.starving_turn_ms == std::numeric_limits<double>::infinity()) return;
  const auto waits_too_long = [&](Slot slot) {
    return requests->request_class[slot] == kOnlineClass &&
           requests->pending_seconds(slot, now) * 1000 > config.max_wait_ms;
  };
  if (std::ranges::none_of(waiting, waits_too_long)) return;
  for (const Slot slot : running) {
    const double seated_at = requests->delays[slot].seated_at;
    const bool has_served = requests->pace[slot].last_token_time > seated_at;
    const bool is_over = (now - seated_at) * 1000 > config.starving_turn_ms;
    if (requests->request_class[slot] == kOnlineClass && has_served && is_over) requests->is_starved[slot] = 0;
  }
}

}  // namespace hocket
