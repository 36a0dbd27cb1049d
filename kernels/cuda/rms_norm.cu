// One row per kWarp x n threads: a warp for short rows (heads), several warps for long ones. A thread holds its part of
// the row in registers between the sum and the product; rows too long for that are read twice. Bytes: 2 x row (+ 2 x
// row with a residual); nothing else counts.
#include "launch.cuh"
#include "rms_norm.h"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kBlock = 256;   // threads of a block that has several rows
constexpr int kMaxRow = 512;  // threads of one row
constexpr int kHeld = 4;      // vectors of a row that a thread holds

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

// x, or x + residual, which becomes the new residual.
template <class T, int kVec>
__device__ Vector<T, kVec> load_sum(const T* x, T* residual, int i) {
  Vector<T, kVec> v = load_vector<kVec>(x + i);
  if (residual != nullptr) {
    const Vector<T, kVec> r = load_vector<kVec>(residual + i);
    for (int j = 0; j < kVec; ++j) v.set(j, v[j] + r[j]);
    store_vector(residual + i, v);
  }
  return v;
}

template <class T, int kVec>
__device__ float sum_squares(const Vector<T, kVec>& v) {
  float sum = 0;
  for (int j = 0; j < kVec; ++j) sum += v[j] * v[j];
  return sum;
}

template <class T, int kVec>
__device__ void store_product(const Vector<T, kVec>& v, float factor, const T* weight, T* out, int i) {
  const Vector<T, kVec> w = load_vector<kVec>(weight + i);
  Vector<T, kVec> result;
  for (int j = 0; j < kVec; ++j) result.set(j, v[j] * factor * w[j]);
  store_vector(out + i, result);
}

// kIsHeld: the row has at most kHeld vectors for each of its threads.
template <class T, int kVec, bool kIsHeld>
__global__ void rms_norm_kernel(RmsNormArgs args) {
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, inner = static_cast<unsigned>(args.num_inner);
  const bool is_row = row < args.num_outer * args.num_inner;  // whole warps, so the sums below stay safe
  const T* x = static_cast<const T*>(args.x) + row / inner * args.outer_stride + row % inner * args.inner_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.hidden;
  T* residual = args.residual == nullptr ? nullptr : static_cast<T*>(args.residual) + row * args.hidden;
  const int end = is_row ? static_cast<int>(args.hidden) : 0;
  const int begin = static_cast<int>(threadIdx.x) * kVec, stride = static_cast<int>(blockDim.x) * kVec;

  float squares = 0;
  Vector<T, kVec> held[kHeld];
  if constexpr (kIsHeld) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (begin + n * stride < end) held[n] = load_sum<T, kVec>(x, residual, begin + n * stride);
    }
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (begin + n * stride < end) squares += sum_squares(held[n]);
    }
  } else {
    for (int i = begin; i < end; i += stride) squares += sum_squares(load_sum<T, kVec>(x, residual, i));
  }
  const float factor = rsqrtf(row_sum(squares) / static_cast<float>(args.hidden) + args.eps);

  if constexpr (kIsHeld) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (begin + n * stride < end) store_product(held[n], factor, weight, out, begin + n * stride);
    }
  } else {
    const T* source = residual == nullptr ? x : residual;  // each thread reads what it wrote
    for (int i = begin; i < end; i += stride) {
      store_product(load_vector<kVec>(source + i), factor, weight, out, i);
    }
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
  const int threads = ceil_div(args.hidden, kVec * kHeld * kWarp) * kWarp;
  const dim3 block = threads == kWarp ? dim3(kWarp, kBlock / kWarp) : dim3(threads < kMaxRow ? threads : kMaxRow, 1);
  const dim3 grid(ceil_div(rows, block.y));
  return threads <= kMaxRow ? launch(rms_norm_kernel<T, kVec, true>, grid, block, 0, stream, args)
                            : launch(rms_norm_kernel<T, kVec, false>, grid, block, 0, stream, args);
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
