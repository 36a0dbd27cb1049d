// One block per row. A row is read once from memory, then as often as the filters take from the L2 cache: one pass for
// the largest logit, one for the mass, some eight per filter, two for the draw. Bytes: logits once; per pass and row
// again as many from L2.
#include "draw_row.cuh"
#include "draw_tokens.h"
#include "launch.cuh"

namespace hocket {
namespace cuda {
namespace {

__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// In [0, 1).
__device__ double uniform(uint64_t seed, int64_t index) {
  const uint64_t bits = mix(mix(seed) + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(index)) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Sets row->top and bottom; returns the first index of the largest logit, kNoToken where it is not finite or one is
// NaN.
template <int kVec>
__device__ int find_top(LogitRow* row, DrawMemory& memory) {
  float top = -INFINITY, bottom = INFINITY;
  int best = row->size;
  row->for_each<kVec>([&](float given, int i) {
    const float logit = given < INFINITY ? given : INFINITY;  // NaN is the largest of all
    if (logit > top || (logit == top && i < best)) {
      top = logit;
      best = i;
    }
    bottom = fminf(bottom, logit);
  });
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, top, offset);
    const int other_best = __shfl_xor_sync(0xffffffffu, best, offset);
    bottom = fminf(bottom, __shfl_xor_sync(0xffffffffu, bottom, offset));
    if (other > top || (other == top && other_best < best)) {
      top = other;
      best = other_best;
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) {
    memory.top[warp] = top;
    memory.bottom[warp] = bottom;
    memory.best[warp] = best;
  }
  __syncthreads();
  for (int w = 0; w < kDrawWarps; ++w) {
    bottom = fminf(bottom, memory.bottom[w]);
    if (memory.top[w] > top || (memory.top[w] == top && memory.best[w] < best)) {
      top = memory.top[w];
      best = memory.best[w];
    }
  }
  row->top = top;
  row->bottom = bottom;
  return top > -INFINITY && top < INFINITY ? best : kNoToken;
}

// The least order_of() that the filters keep.
template <int kVec>
__device__ int64_t least_kept(const LogitRow& row, int64_t top_k, float top_p, float min_p, DrawMemory& memory) {
  Kept kept{order_of(row.bottom), row.size, 0};
  if (top_k < 1 && top_p >= 1 && min_p <= 0) return kept.least;
  {
    int num[1] = {0};
    float mass[1] = {0};
    row.for_each<kVec>([&](float logit, int) {
      const float weight = row.weight(logit);
      num[0] += weight >= min_p ? 1 : 0;
      mass[0] += weight;
    });
    block_sums(num, mass, memory);
  }
  kept.mass = memory.total_mass[0];
  int num_kept = memory.total_num[0] > 1 ? memory.total_num[0] : 1;
  if (top_k > 0 && top_k < num_kept) num_kept = static_cast<int>(top_k);
  double mass = kept.mass;
  if (num_kept < row.size) {
    Kept next;
    kept = keep_fewest<kVec>(row, kept, [&](int num, double) { return num >= num_kept; }, memory, &next);
    const double last = (kept.mass - next.mass) / (kept.num - next.num);
    mass = next.mass + (num_kept - next.num) * last;
  }
  if (top_p < 1) {
    const double wanted = static_cast<double>(top_p) * mass;
    Kept next;
    kept = keep_fewest<kVec>(row, kept, [&](int, double so_far) { return so_far >= wanted; }, memory, &next);
  }
  return kept.least;
}

// Tokens of one warp, side by side, for the draw.
template <int kVec>
__device__ int part_size(int size) {
  constexpr int kStep = 32 * kVec;
  return (size + kDrawWarps * kStep - 1) / (kDrawWarps * kStep) * kStep;
}

template <int kVec>
struct Share {
  float weights[kVec];  // 0 for what is not kept
  float sum;
};

// This lane's kVec tokens at `at`.
template <int kVec>
__device__ Share<kVec> load_share(const LogitRow& row, int at, int64_t least) {
  Share<kVec> share{};
  if (at >= row.size) return share;
  const Vector<float, kVec> v = load_vector<kVec>(row.logits + at);
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    share.weights[j] = order_of(v[j]) >= least ? row.weight(v[j]) : 0.0f;
    share.sum += share.weights[j];
  }
  return share;
}

// Of the tokens [begin, end): the first whose cumulated weight, from `cumulated` on, exceeds the target; the last one
// of any weight where rounding leaves none. A whole warp.
template <int kVec>
__device__ int walk(const LogitRow& row, int begin, int end, int64_t least, double cumulated, double target) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int last = begin;
  for (int at = begin + lane * kVec; at - lane * kVec < end; at += 32 * kVec) {
    const Share<kVec> share = load_share<kVec>(row, at, least);
    double up_to = share.sum;  // and with this lane
    for (int offset = 1; offset < 32; offset *= 2) {
      const double lower = __shfl_up_sync(0xffffffffu, up_to, offset);
      if (lane >= offset) up_to += lower;
    }
    double so_far = cumulated + up_to - share.sum;
    int found = row.size, mine = -1;
    for (int j = 0; j < kVec; ++j) {
      if (share.weights[j] == 0) continue;
      so_far += share.weights[j];
      mine = at + j;
      if (so_far > target && found == row.size) found = at + j;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const int other = __shfl_xor_sync(0xffffffffu, found, offset),
                theirs = __shfl_xor_sync(0xffffffffu, mine, offset);
      found = other < found ? other : found;
      mine = theirs > mine ? theirs : mine;
    }
    if (found < row.size) return found;
    if (mine >= 0) last = mine;
    cumulated += __shfl_sync(0xffffffffu, up_to, 31);
  }
  return last;
}

// The first kept token whose cumulated weight exceeds `share` of the whole. Valid in warp 0.
template <int kVec>
__device__ int token_at(const LogitRow& row, double share, int64_t least, DrawMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int size = part_size<kVec>(row.size);
  float sum = 0;
  for (int at = warp * size + lane * kVec; at < (warp + 1) * size; at += 32 * kVec) {
    sum += load_share<kVec>(row, at, least).sum;
  }
  const double part_mass = warp_sum(static_cast<double>(sum));
  __syncthreads();  // the last sums have been read
  if (lane == 0) memory.mass[warp][0] = part_mass;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int w = 0; w < kDrawWarps; ++w) total += memory.mass[w][0];
    const double target = share * total;
    double before = 0;
    int part = 0, last = 0;
    for (int w = 0; w < kDrawWarps; ++w) {
      if (memory.mass[w][0] > 0) last = w;
    }
    while (part < last && !(before + memory.mass[part][0] > target)) before += memory.mass[part++][0];
    memory.part = part;
    memory.before = before;
    memory.total_mass[0] = target;
  }
  __syncthreads();
  if (warp != 0) return 0;
  const int begin = memory.part * size, end = begin + size < row.size ? begin + size : row.size;
  return walk<kVec>(row, begin, end, least, memory.before, memory.total_mass[0]);
}

template <int kVec>
__global__ void __launch_bounds__(kDrawThreads, 1) draw_tokens_kernel(DrawTokensArgs args) {
  __shared__ DrawMemory memory;
  const int64_t r = blockIdx.x;
  const int size = static_cast<int>(args.vocab_size);
  LogitRow row{args.logits + r * size, size, 0, 0, 0};
  int token = find_top<kVec>(&row, memory);
  const float temperature = args.temperature == nullptr ? 0 : args.temperature[r];
  if (temperature > 0 && token != kNoToken) {  // of the whole block
    row.scale = 1.0f / temperature;
    const int64_t least = least_kept<kVec>(row, args.top_k[r], args.top_p[r], args.min_p[r], memory);
    token = token_at<kVec>(row, uniform(args.seed[r], args.index[r]), least, memory);
  }
  if (threadIdx.x == 0) args.tokens[r] = token;
}

}  // namespace
}  // namespace cuda

Status draw_tokens_cuda(const DrawTokensArgs& args, void* stream) {
  const dim3 grid(static_cast<unsigned>(args.num_rows)), block(cuda::kDrawThreads);
  const bool can_vectorize = cuda::is_aligned(args.logits) && args.vocab_size % 4 == 0;
  return can_vectorize ? cuda::launch(cuda::draw_tokens_kernel<4>, grid, block, 0, stream, args)
                       : cuda::launch(cuda::draw_tokens_kernel<1>, grid, block, 0, stream, args);
}

}  // namespace hocket
