// Which kernel takes what. Query tokens alone in their sequence (decodes) are streamed, attention_stream.cuh, their
// keys split over several blocks where there are fewer blocks than the device holds. Longer chunks go to the tensor
// cores, attention_tile.cuh; in float32, which they cannot multiply exactly, every token is streamed.
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
Status run(const PagedAttentionArgs& args, void* stream) {
  const StreamPlan plan = make_plan(args);
  const int64_t group = args.num_heads / args.pool.num_kv_heads;
  Status status =
      with_stream_heads(group, [&](auto heads) { return run_stream<T, kHeadDim, heads.value>(args, plan, stream); });
  if constexpr (sizeof(T) == 2) {
    if (status != Status::kOk || args.max_query_len <= 1) return status;
    const dim3 grid(static_cast<unsigned>(ceil_div(args.max_query_len * group, kTileRows)),
                    static_cast<unsigned>(args.pool.num_kv_heads), static_cast<unsigned>(args.num_seqs));
    const size_t bytes = Tile<T, kHeadDim>::num_bytes(kTileRows);
    status = launch(tile_kernel<T, kHeadDim>, grid, dim3(kTileThreads), bytes, stream, args);
  }
  return status;
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

int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& args) { return cuda::num_workspace_bytes(args); }

}  // namespace hocket
