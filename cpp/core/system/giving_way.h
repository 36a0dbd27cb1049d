// Who computes in the background rests where somebody else computes, too.
//
// A low share of the processor is not enough for Linux: whoever waits for its small share weighs on the queue's mean
// time, and who wakes up beside it (and has a message for a client) is not let in before the clock's next tick, 4 ms
// later. Who sleeps waits for nothing: between two turns of kTurnSeconds the thread rests for kRestSeconds, as long as
// one of the last kMemorySeconds has shown that its core was wanted: a turn that had less of it than kLeastShare, or a
// rest that ended late. On a core of its own it never rests.
//
// Thread safety: none; one thread at a time, and only its own times.
#pragma once

#include <cstdint>

namespace hocket {

class GivingWay {
 public:
  static constexpr double kTurnSeconds = 0.00025;
  static constexpr double kRestSeconds = 0.0025;
  static constexpr double kLateSeconds = 0.0003;
  static constexpr double kMemorySeconds = 0.05;
  static constexpr double kLeastShare = 0.8;

  // Both clocks in seconds: any monotonic one, and the thread's own processor time.
  void begin(double now, double cpu) {
    turn_began_ = now;
    turn_cpu_ = cpu;
  }

  // At the end of a turn: whether to rest before the next.
  bool must_rest(double now, double cpu) {
    if (cpu - turn_cpu_ < kLeastShare * (now - turn_began_)) wanted_at_ = now;
    begin(now, cpu);
    return now - wanted_at_ < kMemorySeconds;
  }

  // `ended`: the time when the rest that must_rest() asked for at `began` was over.
  void rested(double began, double ended, double cpu) {
    if (ended - began > kRestSeconds + kLateSeconds) wanted_at_ = ended;
    begin(ended, cpu);
    ++num_rests_;
  }

  int64_t num_rests() const { return num_rests_; }

 private:
  double turn_began_ = 0.0, turn_cpu_ = 0.0;
  double wanted_at_ = -kMemorySeconds;
  int64_t num_rests_ = 0;
};

}  // namespace hocket
