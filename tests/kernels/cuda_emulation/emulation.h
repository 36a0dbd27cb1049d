// Runs CUDA kernels on the CPU, one thread block at a time, so that their logic is tested where there is no GPU.
//
// Each CUDA thread is a fiber. Fibers switch at collective operations only, block barriers and warp exchanges; between
// block barriers one warp after the other runs ahead at random. So a missing barrier shows, as data that is not there
// yet or not there any more. What it cannot show: speed, alignment faults, bank conflicts, races within a warp.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#undef __shared__
#define __shared__ static  // one block at a time
#define __launch_bounds__(...)

namespace emulation {

constexpr int kWarp = 32;

struct Barrier {
  int size = 0;
  int arrived = 0;
  int generation = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t slots[kWarp][16];  // what each lane shows the others
};

struct Fiber {
  ucontext_t context;  // to start it; it goes on by `resume`
  jmp_buf resume;
  bool is_started = false;
  std::vector<char> stack;
  bool is_done = false;
  uint3 thread_index;
  std::vector<std::function<void()>> copies;  // not yet done
  std::vector<size_t> groups;                 // sizes of the committed groups among them, oldest first
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  Barrier part_barriers[16];  // of some warps each
  std::vector<unsigned char> memory;
  std::function<void()> body;
  ucontext_t scheduler;
  jmp_buf resume_scheduler;
  int current = 0;
  int64_t progress = 0;  // grows when a fiber gets to a collective operation or past it
};

inline Block* block = nullptr;
inline uint3 block_index;
inline dim3 block_size;
inline dim3 grid_size;
inline std::mt19937 random{1234};

inline Fiber& fiber() { return block->fibers[static_cast<size_t>(block->current)]; }
inline int lane() { return block->current % kWarp; }
inline Warp& warp() { return block->warps[static_cast<size_t>(block->current / kWarp)]; }

// Switches by jumps: unlike swapcontext() they make no system call.
inline void yield() {
  if (_setjmp(fiber().resume) == 0) _longjmp(block->resume_scheduler, 1);
}

inline void run_until_yield(Fiber& f) {
  if (_setjmp(block->resume_scheduler) != 0) return;
  if (f.is_started) _longjmp(f.resume, 1);
  f.is_started = true;
  swapcontext(&block->scheduler, &f.context);
}

inline void wait(Barrier& barrier) {
  const int generation = barrier.generation;
  ++block->progress;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) yield();
  ++block->progress;
}

inline void sync_warps(int index, int num_threads) {
  Barrier& barrier = block->part_barriers[index];
  barrier.size = num_threads;
  wait(barrier);
}

// Shows `mine` to the warp and returns read(slots), evaluated when all lanes have shown theirs.
template <class T, class Read>
auto exchange(const T& mine, const Read& read) {
  static_assert(sizeof(T) <= sizeof(Warp::slots[0]));
  std::memcpy(warp().slots[lane()], &mine, sizeof(mine));
  wait(warp().barrier);
  const auto result = read([](int other) {
    T theirs;
    std::memcpy(&theirs, warp().slots[other], sizeof(theirs));
    return theirs;
  });
  wait(warp().barrier);
  return result;
}

inline void fiber_main() {
  block->body();
  fiber().is_done = true;
  for (;;) yield();
}

// Runs the fibers of the warp until each is done or at a collective operation that waits for others. True when all are.
inline bool run_warp(size_t index) {
  bool is_done = true;
  const size_t end = std::min(block->fibers.size(), (index + 1) * kWarp);
  for (size_t i = index * kWarp; i < end; ++i) {
    if (block->fibers[i].is_done) continue;
    block->current = static_cast<int>(i);
    run_until_yield(block->fibers[i]);
    is_done = is_done && block->fibers[i].is_done;
  }
  return is_done;
}

// Lets one warp at random run ahead of the others, from one collective operation to as far as the next block barrier.
inline void run_fibers() {
  std::vector<size_t> live(block->warps.size());
  for (size_t i = 0; i < live.size(); ++i) live[i] = i;
  while (!live.empty()) {
    const size_t pick = random() % live.size();
    for (int passes = 1 << random() % 10; passes > 0; --passes) {
      const int64_t before = block->progress;
      if (run_warp(live[pick])) {
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
        break;
      }
      if (block->progress == before) break;  // the whole warp waits for another
    }
  }
}

inline void run_block(const std::function<void()>& body, size_t memory_bytes) {
  static Block storage;
  block = &storage;
  const int num_threads = static_cast<int>(block_size.x * block_size.y * block_size.z);
  storage.body = body;
  storage.fibers.resize(static_cast<size_t>(num_threads));
  storage.warps.resize(static_cast<size_t>((num_threads + kWarp - 1) / kWarp));
  storage.memory.assign(memory_bytes, 0xff);  // NaN in every type
  storage.barrier = {num_threads, 0, 0};
  for (Barrier& b : storage.part_barriers) b = {};
  for (Warp& w : storage.warps) w.barrier = {kWarp, 0, 0};
  for (int i = 0; i < num_threads; ++i) {
    Fiber& f = storage.fibers[static_cast<size_t>(i)];
    const auto x = static_cast<unsigned>(i);
    f.thread_index = {x % block_size.x, x / block_size.x % block_size.y, x / block_size.x / block_size.y};
    f.is_started = f.is_done = false;
    f.stack.resize(64 * 1024);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
  }
  run_fibers();
}

inline void run_grid(dim3 grid, dim3 threads, size_t memory_bytes, const std::function<void()>& body) {
  block_size = threads;
  grid_size = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        run_block(body, memory_bytes);
      }
    }
  }
}

// An asynchronous copy may happen at any time between its start and the wait for it: here, at random, at either end.
inline void copy_async(void* to, const void* from, bool is_valid) {
  const auto copy = [=] {
    if (is_valid) {
      std::memcpy(to, from, 16);
    } else {
      std::memset(to, 0, 16);
    }
  };
  if (random() % 2 == 0) {
    copy();
  } else {
    fiber().copies.push_back(copy);
  }
}

inline void commit_copies() {
  size_t committed = 0;
  for (size_t n : fiber().groups) committed += n;
  fiber().groups.push_back(fiber().copies.size() - committed);
}

inline void wait_for_copies(size_t pending) {
  Fiber& f = fiber();
  while (f.groups.size() > pending) {
    for (size_t i = 0; i < f.groups.front(); ++i) f.copies[i]();
    f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<std::ptrdiff_t>(f.groups.front()));
    f.groups.erase(f.groups.begin());
  }
}

}  // namespace emulation

#define threadIdx (emulation::fiber().thread_index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)

using std::max;
using std::min;

inline void __syncwarp() { emulation::wait(emulation::warp().barrier); }
inline void __syncthreads() { emulation::wait(emulation::block->barrier); }

template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return emulation::exchange(x, [&](auto of) { return of(emulation::lane() ^ mask); });
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return emulation::exchange(x, [&](auto of) { return of(lane); });
}
template <class T>
T __shfl_up_sync(unsigned, T x, int offset) {
  const int from = emulation::lane() - offset;
  return emulation::exchange(x, [&](auto of) { return of(from < 0 ? emulation::lane() : from); });
}

inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
