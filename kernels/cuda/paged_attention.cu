// Which kernel takes what. Query tokens alone in their sequence (decodes) are streamed, attention_stream.cuh, their
// keys split over several blocks where there are fewer blocks than the device holds. Longer chunks go to the tensor
// cores, attention_tile.cuh; in float32, which they cannot multiply exactly, every token is streamed.
#include "attention_plan.cuh"
#include "attention_stream.cuh"
#include "attention_tile.cuh"
#include "launch.cuh"
#include "paged_attention.h"

namespace hocket {
namespace cuda {
namespace {

constexpr int kBlocksPerProcessor = 4;  // of the stream kernel, in flight
constexpr int64_t kMinSplitKeys = 256;
constexpr int64_t kMaxSplits = 64;
constexpr int kMaxStreamHeads = 8;

int num_processors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return count;
}

StreamPlan make_plan(const PagedAttentionArgs& args) {
  StreamPlan plan{1, args.dtype == DType::kFloat32 && args.max_query_len > 1, static_cast<float*>(args.workspace)};
  const int64_t blocks = num_units(args, plan.is_per_token) * args.pool.num_kv_heads;
  const int64_t wanted = int64_t{kBlocksPerProcessor} * num_processors();
  int64_t splits = ceil_div(wanted, blocks < 1 ? 1 : blocks);
  if (splits > args.max_seq_len / kMinSplitKeys) splits = args.max_seq_len / kMinSplitKeys;
  if (splits > kMaxSplits) splits = kMaxSplits;
  plan.num_splits = splits < 1 ? 1 : static_cast<int>(splits);
  return plan;
}

template <class T, int kHeadDim, int kHeads>
Status stream(const PagedAttentionArgs& args, const StreamPlan& plan, void* cuda_stream) {
  const int64_t units = num_units(args, plan.is_per_token), group = args.num_heads / args.pool.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(units), static_cast<unsigned>(args.pool.num_kv_heads * ceil_div(group, kHeads)),
                  static_cast<unsigned>(plan.num_splits));
  const Status status =
      launch(stream_kernel<T, kHeadDim, kHeads>, grid, dim3(kStreamWarps * kWarp), 0, cuda_stream, args, plan);
  if (status != Status::kOk || plan.num_splits == 1) return status;
  const dim3 merge_grid(static_cast<unsigned>(units), static_cast<unsigned>(args.num_heads));
  return launch(merge_kernel<T>, merge_grid, dim3(64), 0, cuda_stream, args, plan);
}

template <class T, int kHeadDim>
Status run(const PagedAttentionArgs& args, void* cuda_stream) {
  const StreamPlan plan = make_plan(args);
  const int64_t group = args.num_heads / args.pool.num_kv_heads;
  Status status = group == 1   ? stream<T, kHeadDim, 1>(args, plan, cuda_stream)
                  : group <= 4 ? stream<T, kHeadDim, 4>(args, plan, cuda_stream)
                               : stream<T, kHeadDim, kMaxStreamHeads>(args, plan, cuda_stream);
  if constexpr (sizeof(T) == 2) {
    if (status != Status::kOk || args.max_query_len <= 1) return status;
    const dim3 grid(static_cast<unsigned>(ceil_div(args.max_query_len * group, kTileRows)),
                    static_cast<unsigned>(args.pool.num_kv_heads), static_cast<unsigned>(args.num_seqs));
    status = launch(tile_kernel<T, kHeadDim>, grid, dim3(kTileThreads), Tile<T, kHeadDim>::kBytes, cuda_stream, args);
  }
  return status;
}

}  // namespace
}  // namespace cuda

Status paged_attention_cuda(const PagedAttentionArgs& args, void* stream) {
  if (args.dtype != args.pool.dtype) return Status::kUnsupportedDType;
  const bool is_aligned = cuda::is_aligned(args.q) && cuda::is_aligned(args.out) && cuda::is_aligned(args.pool.data);
  if (args.pool.head_dim % 8 != 0 || args.q_stride % 8 != 0 || !is_aligned) return Status::kUnsupportedShape;
  return cuda::with_type(args.dtype, [&]<class T>(T) {
    if (args.pool.head_dim <= 64) return cuda::run<T, 64>(args, stream);
    if (args.pool.head_dim <= 128) return cuda::run<T, 128>(args, stream);
    if (args.pool.head_dim <= 256) return cuda::run<T, 256>(args, stream);
    return Status::kUnsupportedShape;
  });
}

int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& args) {
  const cuda::StreamPlan plan = cuda::make_plan(args);
  if (plan.num_splits == 1) return 0;
  const int64_t rows = cuda::num_units(args, plan.is_per_token) * args.num_heads * plan.num_splits;
  return rows * (args.pool.head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

}  // namespace hocket
