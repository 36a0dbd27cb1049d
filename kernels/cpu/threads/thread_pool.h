// The threads of the CPU kernels.
//
// Workers wait for the next job by spinning for some tens of microseconds, the gap between two kernels of one step,
// then sleep. Tasks are handed out one by one, so a thread that the operating system takes away delays one task only.
//
// Compiled once for the baseline; the files that are compiled per instruction set may include this header because it
// defines no function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hocket::cpu {

using TaskBody = void (*)(void* context, int64_t task);

// Runs body(context, i) for 0 <= i < num_tasks, each once, and returns when all are done. Tasks start in descending
// order, so the one that takes longest is best the last. The caller takes part.
// Runs on the caller alone where the pool is busy, has one thread or there is one task.
void run_tasks(int64_t num_tasks, TaskBody body, void* context);

// Memory of this thread that is kept between calls: at least `bytes`, aligned to 64, contents undefined. Valid until
// the thread asks for the same one again.
enum class Scratch : int { kPlan, kShared, kPartial, kItem, kActivations, kStep, kSums };
constexpr int kNumScratches = 7;
void* scratch(Scratch which, size_t bytes);

}  // namespace hocket::cpu
