// One row per kWarp x n threads: a warp for short rows (heads), several warps for long ones. The row is read twice, the
// second time from the L1 cache. Bytes: 2 x row (+ 2 x row with a residual); nothing else counts.
#include "launch.cuh"
#include "rms_norm.h"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kBlock = 256;   // threads of a block that has several rows
constexpr int kMaxRow = 512;  // threads of one row

// The sum over the threads of this row: threadIdx.x in [0, blockDim.x), a multiple of kWarp.
__device__ float row_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  if (blockDim.x == kWarp) return x;
  __shared__ float sums[kMaxRow / kWarp];  // blockDim.y is 1
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarp; ++i) total += sums[i];
  return total;
}

template <class T, int kVec>
__global__ void rms_norm_kernel(RmsNormArgs args) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool is_row = row < args.num_outer * args.num_inner;  // whole warps, so the sums below stay safe
  const T* x = static_cast<const T*>(args.x) + row / args.num_inner * args.outer_stride +
               row % args.num_inner * args.inner_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* residual = args.residual == nullptr ? nullptr : static_cast<T*>(args.residual) + row * args.hidden;
  const int64_t end = is_row ? args.hidden : 0;

  float squares = 0;
  for (int64_t i = threadIdx.x * kVec; i < end; i += blockDim.x * kVec) {
    Vector<T, kVec> v = load_vector<kVec>(x + i);
    if (residual != nullptr) {
      const Vector<T, kVec> r = load_vector<kVec>(residual + i);
      for (int j = 0; j < kVec; ++j) v.set(j, v[j] + r[j]);
      store_vector(residual + i, v);
    }
    for (int j = 0; j < kVec; ++j) squares += v[j] * v[j];
  }
  const float factor = rsqrtf(row_sum(squares) / static_cast<float>(args.hidden) + args.eps);

  const T* source = residual == nullptr ? x : residual;  // each thread reads what it wrote
  T* out = static_cast<T*>(args.out) + row * args.hidden;
  for (int64_t i = threadIdx.x * kVec; i < end; i += blockDim.x * kVec) {
    const Vector<T, kVec> v = load_vector<kVec>(source + i), w = load_vector<kVec>(weight + i);
    Vector<T, kVec> result;
    for (int j = 0; j < kVec; ++j) result.set(j, v[j] * factor * w[j]);
    store_vector(out + i, result);
  }
}

template <class T>
bool can_vectorize(const RmsNormArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  return is_aligned(args.x) && is_aligned(args.out) && is_aligned(args.weight) && is_aligned(args.residual) &&
         args.hidden % kVec == 0 && args.outer_stride % kVec == 0 && args.inner_stride % kVec == 0;
}

template <class T, int kVec>
Status run(const RmsNormArgs& args, void* stream) {
  const int64_t rows = args.num_outer * args.num_inner;
  const int wanted = ceil_div(args.hidden, kVec * kWarp) * kWarp;
  const dim3 block = wanted == kWarp ? dim3(kWarp, kBlock / kWarp) : dim3(wanted < kMaxRow ? wanted : kMaxRow, 1);
  return launch(rms_norm_kernel<T, kVec>, dim3(ceil_div(rows, block.y)), block, 0, stream, args);
}

}  // namespace
}  // namespace cuda

Status rms_norm_cuda(const RmsNormArgs& args, void* stream) {
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    return cuda::can_vectorize<T>(args) ? cuda::run<T, cuda::kVectorSize<T>>(args, stream)
                                        : cuda::run<T, 1>(args, stream);
  });
}

}  // namespace hocket
