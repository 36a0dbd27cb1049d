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
  void begin(double now, double cpu);

  // At the end of a turn: whether to rest before the next.
  bool must_rest(double now, double cpu);

  // `ended`: the time when the rest that must_rest() asked for at `began` was over.
  void rested(double began, double ended, double cpu);

  int64_t num_rests() const { return num_rests_; }

 private:
  double turn_began_ = 0.0, turn_cpu_ = 0.0;
  double wanted_at_ = -kMemorySeconds;
  int64_t num_rests_ = 0;
};

// Of the calling thread, by SIGALRM, which comes while a library computes, too; what sleeps inside is woken by it.
// Returns false where the system has no timer for it. REQUIRES: the only thread that computes, and no other use of
// SIGALRM until end_giving_way().
bool begin_giving_way();
void end_giving_way();

// Since the process began.
int64_t num_rests();

}  // namespace hocket
