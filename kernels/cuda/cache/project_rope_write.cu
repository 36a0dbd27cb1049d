// Eight lanes take one head of K and of V of one token: the sum of squares, a few pairs each, then V. K is read twice,
// the second time from the L1 cache. What the norm gives is rounded to T before it is rotated, as it is where K is
// normed by rms_norm. Bytes: 4 x d_kv per token, and 12 of indices.
#include "cache/project_rope_write.h"
#include "launch.cuh"
#include "norm_vector.cuh"
#include "paged.cuh"
#include "rope.cuh"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kLanes = 8;   // of a head
constexpr int kHeads = 32;  // of a block

// Elements of one head of K, normed or as they are.
template <class T>
struct NormedHead {
  const T* head;
  const T* weight;  // or null
  float factor;

  template <int kVec>
  __device__ Vector<T, kVec> load(int at) const {
    const Vector<T, kVec> v = load_vector<kVec>(head + at);
    if (weight == nullptr) return v;
    return multiply(v, factor, load_vector<kVec>(weight + at));
  }
};

// 1 / sqrt(mean square) over the kLanes lanes of a head. All lanes of the warp take part, those of no head with none.
template <int kVec, class T>
__device__ float norm_factor(const T* head, int head_dim, int first, float eps) {
  float squares = 0;
  for (int i = first; i < head_dim; i += kLanes * kVec) {
    squares += sum_squares(load_vector<kVec>(head + i));
  }
  for (int offset = kLanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  return rsqrtf(squares / static_cast<float>(head_dim) + eps);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kLanes* kHeads, 2) project_rope_write_kernel(ProjectRopeWriteArgs args) {
  const int head_dim = static_cast<int>(args.pool.head_dim), num_heads = static_cast<int>(args.pool.num_kv_heads);
  const int item = static_cast<int>(blockIdx.x) * kHeads + static_cast<int>(threadIdx.x) / kLanes;
  const int token = item / num_heads, head = item % num_heads;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kVec;  // element
  const bool is_head = token < args.num_tokens;
  const int64_t in_row = int64_t{head} * head_dim;

  NormedHead<T> k{static_cast<const T*>(args.k) + token * args.k_stride + in_row, static_cast<const T*>(args.k_norm),
                  0};
  if (k.weight != nullptr) k.factor = norm_factor<kVec>(k.head, is_head ? head_dim : 0, first, args.norm_eps);
  if (!is_head) return;

  const int position = args.positions[token], row = args.token_row[token];
  T* k_to = paged_vector<T>(args.pool, args.layer, row, kKeys, position) + in_row;
  T* v_to = paged_vector<T>(args.pool, args.layer, row, kValues, position) + in_row;
  const int rotary_dim = static_cast<int>(args.rotary_dim), half = rotary_dim / 2;
  const float* cos = args.cos_sin + int64_t{position} * rotary_dim;
  for (int i = first; i < half; i += kLanes * kVec) {
    rotate(k.template load<kVec>(i), k.template load<kVec>(i + half), cos + i, cos + half + i, k_to + i, half);
  }
  for (int i = rotary_dim + first; i < head_dim; i += kLanes * kVec) store_vector(k_to + i, k.template load<kVec>(i));
  const T* v = static_cast<const T*>(args.v) + token * args.v_stride + in_row;
  for (int i = first; i < head_dim; i += kLanes * kVec) store_vector(v_to + i, load_vector<kVec>(v + i));
}

template <class T>
bool can_vectorize(const ProjectRopeWriteArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  const bool is_all_aligned = is_aligned(args.k) && is_aligned(args.v) && is_aligned(args.k_norm) &&
                              is_aligned(args.cos_sin) && is_aligned(args.pool.data);
  return is_all_aligned && args.k_stride % kVec == 0 && args.v_stride % kVec == 0 && args.pool.head_dim % kVec == 0 &&
         args.rotary_dim % (2 * kVec) == 0;
}

template <class T, int kVec>
Status run(const ProjectRopeWriteArgs& args, void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.num_tokens * args.pool.num_kv_heads, kHeads)));
  return launch(project_rope_write_kernel<T, kVec>, grid, dim3(kLanes * kHeads), 0, stream, args);
}

}  // namespace
}  // namespace cuda

Status project_rope_write_cuda(const ProjectRopeWriteArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    return cuda::can_vectorize<T>(args) ? cuda::run<T, cuda::kVectorSize<T>>(args, stream)
                                        : cuda::run<T, 1>(args, stream);
  });
}

}  // namespace hocket
