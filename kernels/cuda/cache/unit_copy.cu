// One warp per 2 KiB of a unit. Bytes: 2 x units. The memory may be the host's, pinned: then the bus is the limit.
#include "cache/unit_copy.h"
#include "launch.cuh"
#include "vector_copy.cuh"

namespace hocket {
namespace cuda {
namespace {

// What is copied has no type: 16 bytes at a time.
using Word = float;
constexpr int kWords = 4;

__global__ void __launch_bounds__(kCopyLanes* kCopyWarps) unit_copy_kernel(UnitCopyArgs args, int pieces) {
  const int64_t warp = int64_t{blockIdx.x} * kCopyWarps + threadIdx.x / kCopyLanes;
  const int64_t unit = warp / pieces;
  if (unit >= args.num_units) return;
  const int64_t to_unit = args.to_units == nullptr ? unit : args.to_units[unit];
  const int64_t from_unit = args.from_units == nullptr ? unit : args.from_units[unit];
  const int64_t words = args.unit_bytes / static_cast<int64_t>(sizeof(Word));
  copy_piece<kWords>(static_cast<const Word*>(args.from) + from_unit * words,
                     static_cast<Word*>(args.to) + to_unit * words, static_cast<int>(warp % pieces) * kPiece<kWords>,
                     static_cast<int>(words));
}

}  // namespace
}  // namespace cuda

Status unit_copy_cuda(const UnitCopyArgs& args, void* stream) {
  constexpr int64_t kMaxUnitBytes = int64_t{1} << 30;  // elements are counted in 32 bits
  const bool is_aligned = cuda::is_aligned(args.to) && cuda::is_aligned(args.from) && args.unit_bytes % 16 == 0;
  if (!is_aligned || args.unit_bytes > kMaxUnitBytes) return Status::kUnsupportedShape;
  const int pieces = cuda::ceil_div(args.unit_bytes, cuda::kPiece<cuda::kWords> * sizeof(cuda::Word));
  const dim3 grid(static_cast<unsigned>(cuda::ceil_div(args.num_units * pieces, cuda::kCopyWarps)));
  return cuda::launch(cuda::unit_copy_kernel, grid, dim3(cuda::kCopyLanes * cuda::kCopyWarps), 0, stream, args, pieces);
}

}  // namespace hocket
