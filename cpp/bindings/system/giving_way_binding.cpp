// Turns and rests of the calling thread, by SIGALRM, which comes while a library computes, too.
#include <sys/time.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "bindings.h"
#include "system/giving_way.h"

namespace hocket {
namespace {

GivingWay giving_way;  // of the process: what a signal's handler can reach

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double now() { return seconds(CLOCK_MONOTONIC); }
double cpu() { return seconds(CLOCK_THREAD_CPUTIME_ID); }

// Calls only what a handler may call: clock_gettime and nanosleep.
void end_turn(int) {
  const int error = errno;
  const double began = now();
  if (giving_way.must_rest(began, cpu())) {
    const timespec rest{0, static_cast<long>(1e9 * GivingWay::kRestSeconds)};
    nanosleep(&rest, nullptr);
    giving_way.rested(began, now(), cpu());
  }
  errno = error;
}

bool set_timer(double period_seconds) {
  const suseconds_t period = static_cast<suseconds_t>(1e6 * period_seconds);
  const itimerval timer{{0, period}, {0, period}};
  return setitimer(ITIMER_REAL, &timer, nullptr) == 0;
}

bool begin_giving_way() {
  struct sigaction action{};
  action.sa_handler = end_turn;
  action.sa_flags = SA_RESTART;
  giving_way.begin(now(), cpu());
  return sigaction(SIGALRM, &action, nullptr) == 0 && set_timer(GivingWay::kTurnSeconds);
}

}  // namespace

void bind_system(pybind11::module_& module) {
  module.def("begin_giving_way", &begin_giving_way);
  module.def("end_giving_way", [] { set_timer(0.0); });
  module.def("num_rests", [] { return giving_way.num_rests(); });
}

}  // namespace hocket
