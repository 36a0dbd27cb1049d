// One warp per token and piece of its X. Bytes: 2 x row, and 12 of indices.
#include "cache/hidden_gather.h"
#include "launch.cuh"
#include "paged.cuh"
#include "vector_copy.cuh"

namespace hocket {
namespace cuda {
namespace {

template <class T, int kVec>
__global__ void __launch_bounds__(kCopyLanes* kCopyWarps) hidden_gather_kernel(HiddenGatherArgs args, int pieces) {
  const CopyPlace place = copy_place(pieces, kPiece<kVec>);
  if (place.row >= args.num_tokens) return;
  const T* from = hidden_vector<T>(args.pool, args.layer, args.token_row[place.row], args.positions[place.row]);
  T* to = static_cast<T*>(args.out) + place.row * args.hidden_size;
  copy_piece<kVec>(from, to, place.first, static_cast<int>(args.hidden_size));
}

template <class T>
bool can_vectorize(const HiddenGatherArgs& args) {
  constexpr int kVec = kVectorSize<T>;
  const int64_t dim = args.pool.num_kv_heads * args.pool.head_dim;
  return is_aligned(args.out) && is_aligned(args.pool.data) && args.hidden_size % kVec == 0 && dim % kVec == 0;
}

template <class T, int kVec>
Status run(const HiddenGatherArgs& args, void* stream) {
  const int pieces = ceil_div(args.hidden_size, kPiece<kVec>);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.num_tokens * pieces, kCopyWarps)));
  return launch(hidden_gather_kernel<T, kVec>, grid, dim3(kCopyLanes * kCopyWarps), 0, stream, args, pieces);
}

}  // namespace
}  // namespace cuda

Status hidden_gather_cuda(const HiddenGatherArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    return cuda::can_vectorize<T>(args) ? cuda::run<T, cuda::kVectorSize<T>>(args, stream)
                                        : cuda::run<T, 1>(args, stream);
  });
}

}  // namespace hocket
