#include "machine_limits.h"

#include "cpu.h"
#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

float read_limit(const void* data, int64_t bytes) {
  constexpr int64_t kPiece = 256 * 1024;
  float total = 0;
  parallel_tasks(ceil_div(bytes, kPiece), [&](int64_t i) {
    const float* p = static_cast<const float*>(data) + i * kPiece / 4;
    const float* end = static_cast<const float*>(data) + min(bytes, (i + 1) * kPiece) / 4;
    Vec sums[8] = {};
    for (; p < end; p += 8 * kWidth) {
      for (int j = 0; j < 8; ++j) sums[j] += load(p + j * kWidth);
    }
    float piece = 0;
    for (int j = 0; j < 8; ++j) piece += sum(sums[j]);
    if (piece != piece) __atomic_store(&total, &piece, __ATOMIC_RELAXED);
  });
  return total;
}

int64_t arithmetic_limit(int64_t rounds) {
  constexpr int kChains = 10;
  parallel_tasks(num_threads(), [&](int64_t task) {
    Vec sums[kChains] = {};
    const Vec factor = splat(0.5f + static_cast<float>(task)), term = splat(1.0f);
    for (int64_t i = 0; i < rounds; ++i) {
      for (int j = 0; j < kChains; ++j) sums[j] = sums[j] * factor + term;
      asm volatile("");  // a round is a round
    }
    for (int j = 0; j < kChains; ++j) asm volatile("" ::"m"(sums[j]));
  });
  return rounds * num_threads() * kChains * kWidth * 2;
}

}  // namespace hocket::cpu::HOCKET_ISA
