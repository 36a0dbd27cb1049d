// A warp per output: its lanes walk over the row of the weight in vectors of 16 bytes, several of which are on their
// way at once, and multiply each with all rows of x, which come from the L1 cache. The order of a row's sum does not
// depend on how many rows there are. Bytes: the weight; nothing else counts.
#include <type_traits>

#include "gemv.h"
#include "launch.cuh"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;     // of a block
constexpr int kInFlight = 8;  // vectors of the weight that a lane waits for at once

// The vectors of the weight that a lane holds at once: of each of kParts rows, kUnroll of them, kWarp vectors apart.
template <class T, int kParts>
struct Held {
  static constexpr int kVec = kVectorSize<T>;
  static constexpr int kUnroll = kInFlight / kParts;
  static constexpr int kStep = kWarp * kVec;

  Vector<T, kVec> vectors[kUnroll][kParts];

  __device__ void load(const T* const (&rows)[kParts], int at, int end) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        vectors[u][p] = Vector<T, kVec>{};
        if (at + u * kStep < end) vectors[u][p] = load_vector<kVec>(rows[p] + at + u * kStep);
      }
    }
  }
};

template <class T, int kRows, int kParts>
struct Sums {
  using Weights = Held<T, kParts>;
  static constexpr int kVec = Weights::kVec;

  float values[kParts][kRows] = {};

  __device__ void add(const GemvArgs& args, const Weights& held, int at) {
#pragma unroll
    for (int u = 0; u < Weights::kUnroll; ++u) {
      if (at + u * Weights::kStep >= args.in_features) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const T* row = static_cast<const T*>(args.x) + r * args.x_stride;
        const Vector<T, kVec> x = load_vector<kVec>(row + at + u * Weights::kStep);
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          for (int j = 0; j < kVec; ++j) values[p][r] += held.vectors[u][p][j] * x[j];
        }
      }
    }
  }

  // Over the lanes: all of them have the whole sums then.
  __device__ void join() {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        for (int offset = kWarp / 2; offset > 0; offset /= 2) {
          values[p][r] += __shfl_xor_sync(0xffffffffu, values[p][r], offset);
        }
      }
    }
  }
};

// Weights never change: they are on their way before what x comes from has ended.
template <class T, int kRows, bool kIsGated>
__global__ void __launch_bounds__(kWarp* kWarps, 4) gemv_kernel(GemvArgs args) {
  constexpr int kParts = kIsGated ? 2 : 1;  // rows of the weight per output: gate, then up
  using Weights = Held<T, kParts>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, end = static_cast<int>(args.in_features);
  const int64_t output = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const bool is_output = output < args.out_features;
  const T* rows[kParts];
  for (int p = 0; p < kParts; ++p) {
    const int64_t row = (is_output ? output : 0) + p * args.out_features;
    rows[p] = static_cast<const T*>(args.weight) + row * args.in_features;
  }
  int at = lane * Weights::kVec;
  Weights held;
  let_successor_begin();
  held.load(rows, at, end);
  wait_for_predecessors();
  if (!is_output) return;
  Sums<T, kRows, kParts> sums;
  while (at < end) {
    sums.add(args, held, at);
    at += Weights::kUnroll * Weights::kStep;
    held.load(rows, at, end);
  }
  sums.join();
  const T* bias = static_cast<const T*>(args.bias);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float result = sums.values[0][r] + (bias == nullptr ? 0.0f : to_float(bias[output]));
    if constexpr (kIsGated) {
      const float up = sums.values[1][r] + (bias == nullptr ? 0.0f : to_float(bias[output + args.out_features]));
      result = result / (1.0f + expf(-result)) * up;
    }
    if (lane == r) static_cast<T*>(args.out)[r * args.out_features + output] = from_float<T>(result);
  }
}

template <class T, int kRows>
Status run(const GemvArgs& args, void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.out_features, kWarps))), block(kWarp * kWarps);
  return args.is_gated ? launch_early(gemv_kernel<T, kRows, true>, grid, block, 0, stream, args)
                       : launch_early(gemv_kernel<T, kRows, false>, grid, block, 0, stream, args);
}

template <class T>
Status run(const GemvArgs& args, void* stream) {
  switch (args.num_rows) {
    case 0:
      return Status::kOk;
    case 1:
      return run<T, 1>(args, stream);
    case 2:
      return run<T, 2>(args, stream);
    case 3:
      return run<T, 3>(args, stream);
    case kMaxGemvRows:
      return run<T, kMaxGemvRows>(args, stream);
    default:
      return Status::kUnsupportedShape;
  }
}

}  // namespace
}  // namespace cuda

Status gemv_cuda(const GemvArgs& args, void* stream) {
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      constexpr int kVec = cuda::kVectorSize<T>;
      const bool is_whole = args.in_features % kVec == 0 && args.x_stride % kVec == 0;
      if (!is_whole || !cuda::is_aligned(args.x) || !cuda::is_aligned(args.weight)) return Status::kUnsupportedShape;
      return cuda::run<T>(args, stream);
    } else {
      return Status::kUnsupportedDType;
    }
  });
}

}  // namespace hocket
