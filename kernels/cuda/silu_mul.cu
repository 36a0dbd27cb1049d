// One vector of the output per thread. Bytes: 3 x output.
#include "launch.cuh"
#include "silu_mul.h"
#include "vector.cuh"

namespace hocket {
namespace cuda {
namespace {

constexpr int kBlock = 256;

template <class T, int kVec>
__global__ void silu_mul_kernel(SiluMulArgs args) {
  begin_early();
  const int64_t vectors = args.intermediate / kVec;  // of one token
  const int64_t index = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (index >= args.num_tokens * vectors) return;
  const int64_t token = index / vectors, first = index % vectors * kVec;
  const T* gate_at = static_cast<const T*>(args.gate_up) + token * 2 * args.intermediate + first;
  const Vector<T, kVec> gate = load_vector<kVec>(gate_at), up = load_vector<kVec>(gate_at + args.intermediate);
  Vector<T, kVec> result;
  for (int j = 0; j < kVec; ++j) result.set(j, gate[j] / (1.0f + expf(-gate[j])) * up[j]);
  store_vector(static_cast<T*>(args.out) + token * args.intermediate + first, result);
}

template <class T, int kVec>
Status run(const SiluMulArgs& args, void* stream) {
  const int64_t vectors = args.num_tokens * (args.intermediate / kVec);
  return launch_early(silu_mul_kernel<T, kVec>, dim3(ceil_div(vectors, kBlock)), dim3(kBlock), 0, stream, args);
}

}  // namespace
}  // namespace cuda

Status silu_mul_cuda(const SiluMulArgs& args, void* stream) {
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    constexpr int kVec = cuda::kVectorSize<T>;
    const bool can_vectorize =
        cuda::is_aligned(args.out) && cuda::is_aligned(args.gate_up) && args.intermediate % kVec == 0;
    return can_vectorize ? cuda::run<T, kVec>(args, stream) : cuda::run<T, 1>(args, stream);
  });
}

}  // namespace hocket
