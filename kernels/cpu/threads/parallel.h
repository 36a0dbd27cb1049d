// Loops over the thread pool, for files that are compiled once per instruction set.
#pragma once

#include "cpu.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

// fn(i) for 0 <= i < num_tasks.
template <class Fn>
void parallel_tasks(int64_t num_tasks, const Fn& fn) {
  run_tasks(
      num_tasks, [](void* context, int64_t i) { (*static_cast<const Fn*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// fn(begin, end) over [0, n), in pieces whose work is worth handing to another thread. `cost` is the work of one index
// in float32 operations or elements moved, roughly.
template <class Fn>
void parallel_ranges(int64_t n, int64_t cost, const Fn& fn) {
  constexpr int64_t kWorthATask = 16384;  // some 2 us; handing over takes 0.2 to 0.5 us
  constexpr int64_t kMaxPieces = 64;
  const int64_t pieces = max<int64_t>(1, min(min(n, kMaxPieces), n * cost / kWorthATask));
  if (pieces == 1) {
    fn(int64_t{0}, n);
    return;
  }
  parallel_tasks(pieces, [&](int64_t i) { fn(n * i / pieces, n * (i + 1) / pieces); });
}

// fn(i) for 0 <= i < n. Each thread walks a stretch of its own in ascending order, for data that is best read on and
// on, and helps others when it has come to its end.
template <class Fn>
void parallel_stretches(int64_t n, const Fn& fn) {
  constexpr int64_t kMaxStretches = 64;
  struct alignas(64) Stretch {
    int64_t next;
    int64_t end;
  };
  Stretch stretches[kMaxStretches];
  const int64_t num_stretches = min(min<int64_t>(num_threads(), kMaxStretches), n);
  for (int64_t s = 0; s < num_stretches; ++s) {
    stretches[s] = {n * s / num_stretches, n * (s + 1) / num_stretches};
  }
  parallel_tasks(num_stretches, [&](int64_t own) {
    for (int64_t other = 0; other < num_stretches; ++other) {
      Stretch& stretch = stretches[(own + other) % num_stretches];
      while (__atomic_load_n(&stretch.next, __ATOMIC_RELAXED) < stretch.end) {
        const int64_t i = __atomic_fetch_add(&stretch.next, 1, __ATOMIC_RELAXED);
        if (i < stretch.end) fn(i);
      }
    }
  });
}

}  // namespace hocket::cpu::HOCKET_ISA
