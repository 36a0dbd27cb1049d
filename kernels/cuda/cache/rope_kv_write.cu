// Eight lanes take one head of one token: of q and k a few pairs of elements each that are rotated together, then what
// lies behind the rotated part; all of v lies there. What is rotated, and what it is rotated by, is on its way before
// anything is waited for. What a norm gives is rounded to T before it is rotated, as rms_norm does.
#include "cache/rope_kv_write.h"
#include "launch.cuh"
#include "norm_vector.cuh"
#include "paged.cuh"
#include "rope.cuh"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kLanes = 8;        // of a head
constexpr int kHeads = 32;       // of a block
constexpr int kMostPairs = 128;  // of a head

// One head of q, k or v.
template <class T>
struct Head {
  const T* from;
  T* to;
  const T* norm;     // or null
  const float* cos;  // of the pairs, then their sines; null: not rotated
  int half;          // pairs: element i and element i + half
  int size;          // elements; those from 2 x half on are in no pair
};

template <class T>
__device__ Head<T> find_head(const RopeKvWriteArgs& args, int token, int index) {
  const int head_dim = static_cast<int>(args.pool.head_dim), num_kv_heads = static_cast<int>(args.pool.num_kv_heads);
  const int num_heads = static_cast<int>(args.num_heads), rotary_dim = static_cast<int>(args.rotary_dim);
  const int position = args.positions[token], row = args.token_row[token];
  const float* cos = rotary_dim == 0 ? nullptr : args.cos_sin + int64_t{position} * rotary_dim;
  if (index < num_heads) {
    T* q = static_cast<T*>(args.q) + token * args.q_stride + int64_t{index} * head_dim;
    return {q, q, static_cast<const T*>(args.q_norm), cos, rotary_dim / 2, head_dim};
  }
  const bool is_v = index >= num_heads + num_kv_heads;
  const int64_t in_row = int64_t{index - num_heads - (is_v ? num_kv_heads : 0)} * head_dim;
  T* to = paged_vector<T>(args.pool, args.layer, row, is_v ? kValues : kKeys, position) + in_row;
  if (is_v) return {static_cast<const T*>(args.v) + token * args.v_stride + in_row, to, nullptr, nullptr, 0, head_dim};
  const T* k = static_cast<const T*>(args.k) + token * args.k_stride + in_row;
  return {k, to, static_cast<const T*>(args.k_norm), cos, rotary_dim / 2, head_dim};
}

// kMaxPairs: of a head.
template <class T, int kVec, int kMaxPairs>
__global__ void __launch_bounds__(kLanes* kHeads, 1) rope_kv_write_kernel(RopeKvWriteArgs args) {
  constexpr int kStep = kLanes * kVec, kHeld = kMaxPairs / kStep;
  begin_early();
  const int num_heads = static_cast<int>(args.num_heads + 2 * args.pool.num_kv_heads);
  const int item = static_cast<int>(blockIdx.x) * kHeads + static_cast<int>(threadIdx.x) / kLanes;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kVec;  // element
  const int token = item / num_heads;
  Head<T> head{};
  if (token < args.num_tokens) head = find_head<T>(args, token, item % num_heads);

  Vector<T, kVec> a[kHeld], b[kHeld], a_weights[kHeld], b_weights[kHeld];
  Floats<kVec> cos[kHeld], sin[kHeld];
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int at = first + n * kStep;
    if (at >= head.half) continue;
    a[n] = load_vector<kVec>(head.from + at);
    b[n] = load_vector<kVec>(head.from + at + head.half);
    cos[n] = Floats<kVec>(head.cos + at);
    sin[n] = Floats<kVec>(head.cos + at + head.half);
    if (head.norm == nullptr) continue;
    a_weights[n] = load_vector<kVec>(head.norm + at);
    b_weights[n] = load_vector<kVec>(head.norm + at + head.half);
  }
  float factor = 0;
  if (args.q_norm != nullptr) {  // all lanes of the warp
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (first + n * kStep < head.half) squares += sum_squares(a[n]) + sum_squares(b[n]);
    }
    for (int at = 2 * head.half + first; at < head.size; at += kStep) {
      squares += sum_squares(load_vector<kVec>(head.from + at));
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    factor = rsqrtf(squares / static_cast<float>(head.size) + args.norm_eps);
  }
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int at = first + n * kStep;
    if (at >= head.half) continue;
    if (head.norm != nullptr) {
      a[n] = multiply(a[n], factor, a_weights[n]);
      b[n] = multiply(b[n], factor, b_weights[n]);
    }
    rotate(a[n], b[n], cos[n], sin[n], head.to + at, head.half);
  }
  for (int at = 2 * head.half + first; at < head.size; at += kStep) {
    Vector<T, kVec> rest = load_vector<kVec>(head.from + at);
    if (head.norm != nullptr) rest = multiply(rest, factor, load_vector<kVec>(head.norm + at));
    store_vector(head.to + at, rest);
  }
}

template <class T>
bool can_vectorize(const RopeKvWriteArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  return is_aligned(args.q) && is_aligned(args.k) && is_aligned(args.v) && is_aligned(args.pool.data) &&
         is_aligned(args.cos_sin) && is_aligned(args.q_norm) && is_aligned(args.k_norm) && args.q_stride % kVec == 0 &&
         args.k_stride % kVec == 0 && args.v_stride % kVec == 0 && args.pool.head_dim % kVec == 0 &&
         args.rotary_dim % (2 * kVec) == 0;
}

template <class T, int kVec>
Status run(const RopeKvWriteArgs& args, void* stream) {
  const int64_t heads = args.num_tokens * (args.num_heads + 2 * args.pool.num_kv_heads);
  const dim3 grid(static_cast<unsigned>(ceil_div(heads, kHeads))), block(kLanes * kHeads);
  return args.rotary_dim <= kMostPairs
             ? launch_early(rope_kv_write_kernel<T, kVec, kMostPairs / 2>, grid, block, 0, stream, args)
             : launch_early(rope_kv_write_kernel<T, kVec, kMostPairs>, grid, block, 0, stream, args);
}

}  // namespace
}  // namespace cuda

Status rope_kv_write_cuda(const RopeKvWriteArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  if (args.rotary_dim > 2 * cuda::kMostPairs) return Status::kUnsupportedShape;
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    return cuda::can_vectorize<T>(args) ? cuda::run<T, cuda::kVectorSize<T>>(args, stream)
                                        : cuda::run<T, 1>(args, stream);
  });
}

}  // namespace hocket
