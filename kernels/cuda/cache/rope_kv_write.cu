// One block per token. Its work items are, in this order, the pairs to rotate of all q and k heads, what lies behind
// the rotated part of the k heads, and v; each item is one vector (or two, a pair).
#include "cache/rope_kv_write.h"
#include "launch.cuh"
#include "paged.cuh"
#include "rope.cuh"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kBlock = 128;

template <class T, int kVec>
__global__ void rope_kv_write_kernel(RopeKvWriteArgs args) {
  begin_early();
  const int64_t token = blockIdx.x;
  const int64_t head_dim = args.pool.head_dim, num_kv_heads = args.pool.num_kv_heads;
  const int64_t half = args.rotary_dim / 2, rest = head_dim - args.rotary_dim;
  const int position = args.positions[token], row = args.token_row[token];
  T* q = static_cast<T*>(args.q) + token * args.q_stride;
  const T* k = static_cast<const T*>(args.k) + token * args.k_stride;
  const T* v = static_cast<const T*>(args.v) + token * args.v_stride;
  T* k_to = paged_vector<T>(args.pool, args.layer, row, kKeys, position);
  T* v_to = paged_vector<T>(args.pool, args.layer, row, kValues, position);
  const float* cos = args.cos_sin + position * args.rotary_dim;

  const int64_t pairs = half / kVec;  // vectors per head
  for (int64_t i = threadIdx.x; i < (args.num_heads + num_kv_heads) * pairs; i += kBlock) {
    const int64_t head = i / pairs, at = i % pairs * kVec;
    const int64_t kv_head = head - args.num_heads;
    const T* from = kv_head < 0 ? q + head * head_dim : k + kv_head * head_dim;
    T* to = kv_head < 0 ? q + head * head_dim : k_to + kv_head * head_dim;
    rotate(load_vector<kVec>(from + at), load_vector<kVec>(from + at + half), cos + at, cos + half + at, to + at, half);
  }
  const int64_t tails = rest / kVec;  // vectors per head
  for (int64_t i = threadIdx.x; i < num_kv_heads * tails; i += kBlock) {
    const int64_t at = i / tails * head_dim + args.rotary_dim + i % tails * kVec;
    store_vector(k_to + at, load_vector<kVec>(k + at));
  }
  for (int64_t i = threadIdx.x * kVec; i < num_kv_heads * head_dim; i += kBlock * kVec) {
    store_vector(v_to + i, load_vector<kVec>(v + i));
  }
}

template <class T>
bool can_vectorize(const RopeKvWriteArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  return is_aligned(args.q) && is_aligned(args.k) && is_aligned(args.v) && is_aligned(args.pool.data) &&
         is_aligned(args.cos_sin) && args.q_stride % kVec == 0 && args.k_stride % kVec == 0 &&
         args.v_stride % kVec == 0 && args.pool.head_dim % kVec == 0 && args.rotary_dim % (2 * kVec) == 0;
}

}  // namespace
}  // namespace cuda

Status rope_kv_write_cuda(const RopeKvWriteArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  const dim3 grid(static_cast<unsigned>(args.num_tokens)), block(cuda::kBlock);
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    return cuda::can_vectorize<T>(args)
               ? cuda::launch_early(cuda::rope_kv_write_kernel<T, cuda::kVectorSize<T>>, grid, block, 0, stream, args)
               : cuda::launch_early(cuda::rope_kv_write_kernel<T, 1>, grid, block, 0, stream, args);
  });
}

}  // namespace hocket
