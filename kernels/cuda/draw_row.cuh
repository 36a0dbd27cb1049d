// One block and one row of logits: reductions over the row, and the threshold that a filter sets.
//
// Likelier tokens have larger logits, so a filter is a threshold on logits, found without a sort: their bits, in the
// order of the integers, are narrowed to an eighth by each pass over the row, which counts and weighs what seven pivots
// keep. Only what the lowest pivot keeps costs more than a comparison. Every sum has one fixed order, so that a row's
// token depends on nothing else.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

namespace hocket::cuda {

constexpr int kDrawThreads = 512;
constexpr int kDrawWarps = kDrawThreads / 32;
constexpr int kPivots = 7;

// An integer that grows with x.
__device__ inline int order_of(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

template <class T>
__device__ T warp_sum(T x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

struct LogitRow {
  const float* logits;
  int size;
  float scale;  // 1 / temperature
  float top;    // the largest logit
  float bottom;

  __device__ float weight(float logit) const { return expf((logit - top) * scale); }

  // fn(logit, index) over the row, kVec at a time; kVec divides the size.
  template <int kVec, class Fn>
  __device__ void for_each(const Fn& fn) const {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * kVec; i < size; i += kDrawThreads * kVec) {
      const Vector<float, kVec> v = load_vector<kVec>(logits + i);
#pragma unroll
      for (int j = 0; j < kVec; ++j) fn(v[j], i + j);
    }
  }
};

// What the tokens from some logit on amount to.
struct Kept {
  int64_t least;  // order_of() their smallest logit, or what lies between it and the next smaller one
  int num;
  double mass;
};

// Shared memory of a block.
struct DrawMemory {
  float top[kDrawWarps];
  float bottom[kDrawWarps];
  int best[kDrawWarps];  // index of top
  int num[kDrawWarps][kPivots];
  double mass[kDrawWarps][kPivots];
  int total_num[kPivots];
  double total_mass[kPivots];
  double before;  // of the part that the token lies in
  int part;
};

// Sums over the block, of kNum <= kPivots values of each thread, in memory.total_*.
template <int kNum>
__device__ void block_sums(const int (&num)[kNum], const float (&mass)[kNum], DrawMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // the last sums have been read
#pragma unroll
  for (int j = 0; j < kNum; ++j) {
    const int warp_num = warp_sum(num[j]);
    const double warp_mass = warp_sum(static_cast<double>(mass[j]));
    if (lane == 0) {
      memory.num[warp][j] = warp_num;
      memory.mass[warp][j] = warp_mass;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < kNum) {
    const int j = static_cast<int>(threadIdx.x);
    memory.total_num[j] = 0;
    memory.total_mass[j] = 0;
    for (int w = 0; w < kDrawWarps; ++w) {
      memory.total_num[j] += memory.num[w][j];
      memory.total_mass[j] += memory.mass[w][j];
    }
  }
  __syncthreads();
}

// The fewest of the likeliest tokens that are enough; ties with the last of them are kept. `all` is enough.
// is_enough(number, mass) is the same in all threads. *next: without the last one and its ties.
template <int kVec, class IsEnough>
__device__ Kept keep_fewest(const LogitRow& row, Kept all, const IsEnough& is_enough, DrawMemory& memory, Kept* next) {
  Kept low = all, high{int64_t{order_of(row.top)} + 1, 0, 0};
  while (high.least - low.least > 1 && low.num - high.num > 1) {
    int pivots[kPivots];
    int num[kPivots];
    float mass[kPivots];
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      pivots[j] = static_cast<int>(low.least + (high.least - low.least) * (j + 1) / (kPivots + 1));
      num[j] = 0;
      mass[j] = 0;
    }
    row.for_each<kVec>([&](float logit, int) {
      const int order = order_of(logit);
      if (order < pivots[0]) return;
      const float weight = row.weight(logit);
#pragma unroll
      for (int j = 0; j < kPivots; ++j) {
        const bool is_kept = order >= pivots[j];
        num[j] += is_kept ? 1 : 0;
        mass[j] += is_kept ? weight : 0.0f;
      }
    });
    block_sums(num, mass, memory);
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      const Kept kept{pivots[j], memory.total_num[j], memory.total_mass[j]};
      if (kept.least <= low.least || kept.least >= high.least) continue;
      (is_enough(kept.num, kept.mass) ? low : high) = kept;
      if (high.least == kept.least) break;
    }
  }
  *next = high;
  return low;
}

}  // namespace hocket::cuda
