// Online requests that are served because they had waited for long (is_starved) take turns: who was has had its turn
// once others have waited as long, and it has decoded for starving_turn_ms, and kTimesComputing times as long as its
// tokens were computed before that: who comes in again brings its whole prompt to be computed, and would leave with a
// token for it.
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

constexpr double kTimesComputing = 4.0;  // at most a fifth of a turn goes to what had been computed before

// It comes in now.
inline void begin_turn(RequestTable* requests, Slot slot, double now) {
  requests->delays[slot].seated_at = now;
  requests->delays[slot].unserved_until = now;
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
    if (requests->request_class[slot] != kOnlineClass) continue;
    Delays& of = requests->delays[slot];
    if (requests->pace[slot].last_token_time <= of.seated_at) {
      of.unserved_until = now;
      continue;
    }
    const double computing = of.unserved_until - of.seated_at;
    const double turn = std::max(config.starving_turn_ms / 1000, kTimesComputing * computing);
    if (now - of.unserved_until > turn) requests->is_starved[slot] = 0;
  }
}

}  // namespace hocket
