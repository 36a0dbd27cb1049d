// Which kernel takes what. In 16 bits all products are the tensor cores': sequences with few query rows are
// attention_decode.cuh's, their keys split over several blocks where there are fewer blocks than the device holds, and
// longer chunks attention_tile.cuh's. In float32, which tensor cores cannot multiply exactly, every query token is
// streamed, attention_stream.cuh.
#include "attention/attention_decode.cuh"
#include "attention/attention_plan.cuh"
#include "attention/attention_stream.cuh"
#include "attention/attention_tile.cuh"
#include "launch.cuh"
#include "paged_attention.h"

namespace hocket {
namespace cuda {
namespace {

template <class T, int kHeadDim, int kHeads>
Status run_stream(const PagedAttentionArgs& args, const StreamPlan& plan, void* stream) {
  const int64_t units = num_units(args, plan.is_per_token), group = args.num_heads / args.pool.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(units), static_cast<unsigned>(args.pool.num_kv_heads * ceil_div(group, kHeads)),
                  static_cast<unsigned>(plan.num_splits));
  const Status status =
      launch(stream_kernel<T, kHeadDim, kHeads>, grid, dim3(kStreamWarps * kWarp), 0, stream, args, plan);
  if (status != Status::kOk || plan.num_splits == 1) return status;
  const dim3 merge_grid(static_cast<unsigned>(units), static_cast<unsigned>(args.num_heads));
  return launch(merge_kernel<T>, merge_grid, dim3(64), 0, stream, args, plan);
}

template <class T, int kHeadDim>
Status run_decodes(const PagedAttentionArgs& args, void* stream) {
  const DecodePlan plan = make_decode_plan(args);
  const auto units = static_cast<unsigned>(args.num_seqs * args.pool.num_kv_heads * plan.row_parts);
  const Status status = launch_early(decode_kernel<T, kHeadDim>, dim3(units, static_cast<unsigned>(plan.num_splits)),
                                     dim3(kDecodeThreads), DecodeShape<T, kHeadDim>::kBytes, stream, args, plan);
  if (status != Status::kOk || plan.num_splits == 1) return status;
  return launch_early(decode_merge_kernel<T>, dim3(units, kDecodeRows), dim3(kMergeThreads), 0, stream, args, plan);
}

template <class T, int kHeadDim, int kRowTiles>
Status run_tiles(const PagedAttentionArgs& args, void* stream) {
  constexpr int kRows = 16 * kRowTiles * kTileWarps;
  const dim3 grid(static_cast<unsigned>(args.pool.num_kv_heads), static_cast<unsigned>(num_slots(args, kRows)));
  const size_t bytes = Tile<T, kHeadDim>::num_bytes(kRows);
  return launch_early(tile_kernel<T, kHeadDim, kRowTiles>, grid, dim3(kTileThreads), bytes, stream, args);
}

template <class T, int kHeadDim>
Status run_chunks(const PagedAttentionArgs& args, void* stream) {
  constexpr int kMost = Tile<T, kHeadDim>::kMaxRowTiles;
  const int64_t rows = args.num_tokens * (args.num_heads / args.pool.num_kv_heads);
  const int64_t blocks = args.pool.num_kv_heads * ceil_div(rows, 16 * kMost * kTileWarps);
  if (args.pool.block_size % kCopiedKeys == 0 && blocks >= num_processors()) {
    return run_tiles<T, kHeadDim, kMost>(args, stream);
  }
  return run_tiles<T, kHeadDim, 1>(args, stream);
}

template <class T, int kHeadDim>
Status run(const PagedAttentionArgs& args, void* stream) {
  if constexpr (sizeof(T) == 2) {
    const Status status = run_decodes<T, kHeadDim>(args, stream);
    if (status != Status::kOk || has_few_rows(args, args.max_query_len)) return status;
    return run_chunks<T, kHeadDim>(args, stream);
  } else {
    const StreamPlan plan = make_plan(args);
    return with_stream_heads(args.num_heads / args.pool.num_kv_heads,
                             [&](auto heads) { return run_stream<T, kHeadDim, heads.value>(args, plan, stream); });
  }
}

Status run(const PagedAttentionArgs& args, void* stream) {
  if (!can_attend(args)) return Status::kUnsupportedShape;
  return with_type(args.dtype, [&]<class T>(T) {
    if (args.pool.head_dim <= 64) return run<T, 64>(args, stream);
    if (args.pool.head_dim <= 128) return run<T, 128>(args, stream);
    return run<T, 256>(args, stream);
  });
}

}  // namespace
}  // namespace cuda

Status paged_attention_cuda(const PagedAttentionArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  return cuda::run(args, stream);
}

int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& args) {
  return args.dtype == DType::kFloat32 ? cuda::num_stream_bytes(args) : cuda::num_decode_bytes(args);
}

}  // namespace hocket
