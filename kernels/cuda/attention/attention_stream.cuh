// Attention of one query token at a time: reads the cache once per KV head, for up to kHeads of its query heads.
//
// A group of warps takes one query token, one KV head and one part of the keys. A key is read by kKeyLanes
// lanes, 16 bytes each (twice where a head is larger), so a warp reads kWarpKeys keys at a time, and kUnroll of those
// are in flight. Each group of kKeyLanes lanes keeps an online softmax of its own; they are merged at the end, first
// within the warp, then through shared memory. Scores are in units of log2(e), so that exp2 serves.
//
// Bytes: keys x head_dim x 2 per KV head, plus nothing that counts. Operations per element read: 2 x kHeads.
#pragma once

#include "attention/attention_plan.cuh"
#include "launch.cuh"
#include "paged.cuh"
#include "vector.cuh"

namespace hocket::cuda {

constexpr int kStreamWarps = 4;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <class T, int kHeadDim, int kHeads>
struct StreamShape {
  static constexpr int kVec = kVectorSize<T>;
  static constexpr int kKeyLanes = kHeadDim / kVec < kWarp ? kHeadDim / kVec : kWarp;
  static constexpr int kParts = kHeadDim / kVec / kKeyLanes;  // vectors of a key per lane
  static constexpr int kElements = kParts * kVec;
  static constexpr int kWarpKeys = kWarp / kKeyLanes;
  static constexpr int kUnroll = 4;
};

// The elements of a head that this lane holds; zeros beyond head_dim and where the key is not one.
template <class Shape, class T>
__device__ void load_elements(const T* head, int lane, int head_dim, bool is_key, float (&to)[Shape::kElements]) {
  for (int part = 0; part < Shape::kParts; ++part) {
    const int at = (part * Shape::kKeyLanes + lane) * Shape::kVec;
    Vector<T, Shape::kVec> v{};
    if (is_key && at < head_dim) v = load_vector<Shape::kVec>(head + at);
    for (int j = 0; j < Shape::kVec; ++j) to[part * Shape::kVec + j] = v[j];
  }
}

// The online softmax of kHeads query heads over the keys one lane group has seen. out is spread over the lanes.
template <int kHeads, int kElements>
struct StreamState {
  float top[kHeads];
  float total[kHeads];
  float out[kHeads][kElements];

  __device__ void merge(int h, float other_top, float other_total, const float (&other_out)[kElements]) {
    const float new_top = fmaxf(top[h], other_top);
    const float mine = exp2f(top[h] - new_top), theirs = exp2f(other_top - new_top);
    top[h] = new_top;
    total[h] = total[h] * mine + other_total * theirs;
    for (int i = 0; i < kElements; ++i) out[h][i] = out[h][i] * mine + other_out[i] * theirs;
  }
};

// Adds the keys [key, key_end) that this lane group reads, kUnroll of them, `stride` apart.
template <class Shape, class T, int kHeads>
__device__ void add_keys(const PagedAttentionArgs& args, const Query& query, int kv_head, int lane, int key, int stride,
                         int key_end, const float (&q)[kHeads][Shape::kElements],
                         StreamState<kHeads, Shape::kElements>& state) {
  const int head_dim = static_cast<int>(args.pool.head_dim);
  float scores[Shape::kUnroll][kHeads];
  float elements[Shape::kUnroll][Shape::kElements];
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
    const int at = key + u * stride;
    const T* head = nullptr;
    if (at < key_end) {
      head = paged_vector<T>(args.pool, args.layer, query.table_row, kKeys, at) + kv_head * head_dim;
    }
    load_elements<Shape>(head, lane, head_dim, at < key_end, elements[u]);
  }
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float dot = 0;
      for (int i = 0; i < Shape::kElements; ++i) dot += q[h][i] * elements[u][i];
      for (int offset = Shape::kKeyLanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(kAllLanes, dot, offset);
      scores[u][h] = key + u * stride < key_end ? dot : -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float top = state.top[h];
    for (int u = 0; u < Shape::kUnroll; ++u) top = fmaxf(top, scores[u][h]);
    const float decay = exp2f(state.top[h] - top);
    state.top[h] = top;
    state.total[h] *= decay;
    for (int i = 0; i < Shape::kElements; ++i) state.out[h][i] *= decay;
    for (int u = 0; u < Shape::kUnroll; ++u) {
      scores[u][h] = exp2f(scores[u][h] - top);
      state.total[h] += scores[u][h];
    }
  }
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
    const int at = key + u * stride;
    const T* head = nullptr;
    if (at < key_end) {
      head = paged_vector<T>(args.pool, args.layer, query.table_row, kValues, at) + kv_head * head_dim;
    }
    load_elements<Shape>(head, lane, head_dim, at < key_end, elements[u]);
  }
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < Shape::kElements; ++i) state.out[h][i] += scores[u][h] * elements[u][i];
    }
  }
}

// Merges the lane groups of the warp; every group then holds the result.
template <class Shape, int kHeads>
__device__ void merge_warp(StreamState<kHeads, Shape::kElements>& state) {
  for (int offset = Shape::kKeyLanes; offset < kWarp; offset *= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float top = __shfl_xor_sync(kAllLanes, state.top[h], offset);
      const float total = __shfl_xor_sync(kAllLanes, state.total[h], offset);
      float out[Shape::kElements];
      for (int i = 0; i < Shape::kElements; ++i) out[i] = __shfl_xor_sync(kAllLanes, state.out[h][i], offset);
      state.merge(h, top, total, out);
    }
  }
}

// Where the results of one block go: the output, or one partial per head.
template <class T>
struct StreamSink {
  T* out;           // [head_dim] of the first head, or null
  float* partials;  // of the first head and this split
  int64_t stride;   // floats from one head's partial to the next one's
};

// One head of one warp in shared memory: top, total, then out with a gap after every 32 elements, so that lanes that
// hold several neighbours each write to different banks.
template <int kHeadDim>
struct StreamRow {
  static constexpr int kSize = 2 + kHeadDim + kHeadDim / 32;
  __device__ static int place(int element) { return 2 + element + element / 32; }
};

// The warps' states, [warps][kHeads] rows in shared memory, to the sink.
template <class T, int kHeadDim, class Group>
__device__ void merge_warps(const float* warps, int num_heads, int heads_stored, int head_dim,
                            const StreamSink<T>& sink, const Group& group) {
  constexpr int kRow = StreamRow<kHeadDim>::kSize;
  const int num_warps = group.num_threads() / kWarp;
  for (int i = group.thread(); i < num_heads * head_dim; i += group.num_threads()) {
    const int h = i / head_dim, d = i % head_dim;
    float top = kNoScore, total = 0, out = 0;
    for (int w = 0; w < num_warps; ++w) top = fmaxf(top, warps[(w * heads_stored + h) * kRow]);
    for (int w = 0; w < num_warps; ++w) {
      const float* row = warps + (w * heads_stored + h) * kRow;
      const float weight = exp2f(row[0] - top);
      total += weight * row[1];
      out += weight * row[StreamRow<kHeadDim>::place(d)];
    }
    if (sink.out != nullptr) {
      sink.out[h * head_dim + d] = from_float<T>(out / total);
    } else {
      float* partial = sink.partials + h * sink.stride;
      if (d == 0) {
        partial[0] = top;
        partial[1] = total;
      }
      partial[2 + d] = out;
    }
  }
}

// What a group of warps does at a time: one query token, up to kHeads of its heads, one part of the keys.
struct StreamItem {
  int unit;       // of num_units()
  int head_part;  // KV head x ceil(group / kHeads) + part of the heads
  int split;
};

// Floats of shared memory that each warp needs.
template <int kHeadDim, int kHeads>
constexpr int kStreamMemory = kHeads * StreamRow<kHeadDim>::kSize;

// memory: kStreamMemory for each warp.
template <class T, int kHeadDim, int kHeads, class Group>
__device__ void run_item(const PagedAttentionArgs& args, const StreamPlan& plan, const StreamItem& item, float* memory,
                         const Group& warps) {
  using Shape = StreamShape<T, kHeadDim, kHeads>;
  using Row = StreamRow<kHeadDim>;
  const Query query = find_query(args, plan.is_per_token, item.unit);
  if (query.token < 0) return;
  const int group = static_cast<int>(args.num_heads / args.pool.num_kv_heads);
  const int parts = (group + kHeads - 1) / kHeads;
  const int kv_head = item.head_part / parts, first = item.head_part % parts * kHeads;
  const int heads = group - first < kHeads ? group - first : kHeads;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  const int warp = warps.thread() / kWarp, lane = warps.thread() % kWarp;
  const int key_lane = lane % Shape::kKeyLanes, key_group = lane / Shape::kKeyLanes;

  float q[kHeads][Shape::kElements];
  const T* q_heads =
      static_cast<const T*>(args.q) + query.token * args.q_stride + (kv_head * group + first) * int64_t{head_dim};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    load_elements<Shape>(q_heads + h * head_dim, key_lane, head_dim, h < heads, q[h]);
    for (int i = 0; i < Shape::kElements; ++i) q[h][i] *= args.scale * kLog2E;
  }

  StreamState<kHeads, Shape::kElements> state;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    state.top[h] = kNoScore;
    state.total[h] = 0;
    for (int i = 0; i < Shape::kElements; ++i) state.out[h][i] = 0;
  }
  const int64_t num_keys = query.key_end - query.key_begin;
  const int key_begin = query.key_begin + static_cast<int>(num_keys * item.split / plan.num_splits);
  const int key_end = query.key_begin + static_cast<int>(num_keys * (item.split + 1) / plan.num_splits);
  const int stride = warps.num_threads() / kWarp * Shape::kWarpKeys;
  for (int key = key_begin; key < key_end; key += stride * Shape::kUnroll) {
    add_keys<Shape, T, kHeads>(args, query, kv_head, key_lane, key + warp * Shape::kWarpKeys + key_group, stride,
                               key_end, q, state);
  }

  merge_warp<Shape, kHeads>(state);
  if (key_group == 0) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float* row = memory + (warp * kHeads + h) * Row::kSize;
      if (key_lane == 0) {
        row[0] = state.top[h];
        row[1] = state.total[h];
      }
      for (int i = 0; i < Shape::kElements; ++i) {
        const int at = (i / Shape::kVec * Shape::kKeyLanes + key_lane) * Shape::kVec + i % Shape::kVec;
        row[Row::place(at)] = state.out[h][i];
      }
    }
  }
  warps.sync();

  const int64_t head = kv_head * group + first;
  StreamSink<T> sink{nullptr, nullptr, int64_t{plan.num_splits} * (head_dim + 2)};
  if (plan.num_splits == 1) {
    sink.out = static_cast<T*>(args.out) + (query.token * args.num_heads + head) * head_dim;
  } else {
    sink.partials = plan.partials + (item.unit * args.num_heads + head) * sink.stride + item.split * (head_dim + 2);
  }
  merge_warps<T, kHeadDim>(memory, heads, kHeads, head_dim, sink, warps);
}

// Blocks of a processor: what the registers of kHeads heads allow, so that the compiler neither spills nor wastes.
template <int kHeads>
constexpr int kStreamResident = kHeads == 1   ? 5
                                : kHeads == 2 ? 4
                                              : 3;

// Grid: (units, KV heads x ceil(group / kHeads), splits).
template <class T, int kHeadDim, int kHeads>
__global__ void __launch_bounds__(kStreamWarps* kWarp, kStreamResident<kHeads>)
    stream_kernel(PagedAttentionArgs args, StreamPlan plan) {
  __shared__ float memory[kStreamWarps * kStreamMemory<kHeadDim, kHeads>];
  const StreamItem item{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  run_item<T, kHeadDim, kHeads>(args, plan, item, memory, WholeBlock<kStreamWarps * kWarp>{});
}

// Joins the splits. Grid: (units, num_heads); one thread per element of the head.
template <class T>
__global__ void merge_kernel(PagedAttentionArgs args, StreamPlan plan) {
  const Query query = find_query(args, plan.is_per_token, static_cast<int>(blockIdx.x));
  if (query.token < 0) return;
  const int head_dim = static_cast<int>(args.pool.head_dim);
  const int64_t row = head_dim + 2;
  const float* partials = plan.partials + (blockIdx.x * args.num_heads + blockIdx.y) * plan.num_splits * row;
  float top = kNoScore;
  for (int i = 0; i < plan.num_splits; ++i) top = fmaxf(top, partials[i * row]);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float total = 0, out = 0;
    for (int i = 0; i < plan.num_splits; ++i) {
      const float weight = exp2f(partials[i * row] - top);
      total += weight * partials[i * row + 1];
      out += weight * partials[i * row + 2 + d];
    }
    T* to = static_cast<T*>(args.out) + (query.token * args.num_heads + blockIdx.y) * head_dim;
    to[d] = from_float<T>(out / total);
  }
}

}  // namespace hocket::cuda
