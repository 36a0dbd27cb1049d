// Loops over the thread pool, for files that are compiled once per instruction set.
#pragma once

#include "simd.h"
#include "thread_pool.h"

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

}  // namespace hocket::cpu::HOCKET_ISA
