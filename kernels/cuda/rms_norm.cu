// One row per kWarp x n threads: a warp for short rows (heads), several warps for long ones. A thread holds its part of
// the row in registers between the sum and the product; rows too long for that are read twice. Bytes: 2 x row (+ 2 x
// row with a residual); nothing else counts.
#include "launch.cuh"
#include "norm_vector.cuh"
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

template <class T, int kVec>
__device__ Vector<T, kVec> add(Vector<T, kVec> v, const Vector<T, kVec>& other) {
  for (int j = 0; j < kVec; ++j) v.set(j, v[j] + other[j]);
  return v;
}

// The elements of a row that a thread has: vectors from `begin` on, `stride` apart, up to `end`.
struct Part {
  int begin;
  int stride;
  int end;
};

// All that is read is on its way before anything is waited for, and before anything is written: memory that is written
// may be what is read next, for all that the compiler knows.
template <class T, int kVec, class Factor>
__device__ void norm_held(const T* x, const T* weight, T* residual, T* out, const Part& part, const Factor& factor_of) {
  Vector<T, kVec> held[kHeld], weights[kHeld];
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int at = part.begin + n * part.stride;
    if (at < part.end) held[n] = load_vector<kVec>(x + at);
  }
  if (residual != nullptr) {
    Vector<T, kVec> before[kHeld];
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int at = part.begin + n * part.stride;
      if (at < part.end) before[n] = load_vector<kVec>(residual + at);
    }
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (part.begin + n * part.stride < part.end) held[n] = add(held[n], before[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int at = part.begin + n * part.stride;
    if (at < part.end) weights[n] = load_vector<kVec>(weight + at);
  }
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (part.begin + n * part.stride < part.end) squares += sum_squares(held[n]);
  }
  const float factor = factor_of(squares);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int at = part.begin + n * part.stride;
    if (at >= part.end) continue;
    if (residual != nullptr) store_vector(residual + at, held[n]);
    store_vector(out + at, multiply(held[n], factor, weights[n]));
  }
}

template <class T, int kVec, class Factor>
__device__ void norm_twice_read(const T* x, const T* weight, T* residual, T* out, const Part& part,
                                const Factor& factor_of) {
  float squares = 0;
  for (int i = part.begin; i < part.end; i += part.stride) {
    Vector<T, kVec> v = load_vector<kVec>(x + i);
    if (residual != nullptr) {
      v = add(v, load_vector<kVec>(residual + i));
      store_vector(residual + i, v);
    }
    squares += sum_squares(v);
  }
  const float factor = factor_of(squares);
  const T* source = residual == nullptr ? x : residual;  // each thread reads what it wrote
  for (int i = part.begin; i < part.end; i += part.stride) {
    store_vector(out + i, multiply(load_vector<kVec>(source + i), factor, load_vector<kVec>(weight + i)));
  }
}

// kIsHeld: the row has at most kHeld vectors for each of its threads.
template <class T, int kVec, bool kIsHeld>
__global__ void rms_norm_kernel(RmsNormArgs args) {
  begin_early();
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, inner = static_cast<unsigned>(args.num_inner);
  const bool is_row = row < args.num_outer * args.num_inner;  // whole warps, so the sums below stay safe
  const T* x = static_cast<const T*>(args.x) + row / inner * args.outer_stride + row % inner * args.inner_stride;
  T* out = static_cast<T*>(args.out) + row * args.hidden;
  T* residual = args.residual == nullptr ? nullptr : static_cast<T*>(args.residual) + row * args.hidden;
  const Part part{static_cast<int>(threadIdx.x) * kVec, static_cast<int>(blockDim.x) * kVec,
                  is_row ? static_cast<int>(args.hidden) : 0};
  const auto factor_of = [&](float squares) {
    return rsqrtf(row_sum(squares) / static_cast<float>(args.hidden) + args.eps);
  };
  const T* weight = static_cast<const T*>(args.weight);
  if constexpr (kIsHeld) {
    norm_held<T, kVec>(x, weight, residual, out, part, factor_of);
  } else {
    norm_twice_read<T, kVec>(x, weight, residual, out, part, factor_of);
  }
}

template <class T>
bool can_vectorize(const RmsNormArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  return is_aligned(args.x) && is_aligned(args.out) && is_aligned(args.weight) && is_aligned(args.residual) &&
         args.hidden % kVec == 0 && args.outer_stride % kVec == 0 &&
         (args.num_inner == 1 || args.inner_stride % kVec == 0);
}

template <class T, int kVec>
Status run(const RmsNormArgs& args, void* stream) {
  const int64_t rows = args.num_outer * args.num_inner;
  const int threads = ceil_div(args.hidden, kVec * kHeld * kWarp) * kWarp;
  const dim3 block = threads == kWarp ? dim3(kWarp, kBlock / kWarp) : dim3(threads < kMaxRow ? threads : kMaxRow, 1);
  const dim3 grid(ceil_div(rows, block.y));
  return threads <= kMaxRow ? launch_early(rms_norm_kernel<T, kVec, true>, grid, block, 0, stream, args)
                            : launch_early(rms_norm_kernel<T, kVec, false>, grid, block, 0, stream, args);
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
