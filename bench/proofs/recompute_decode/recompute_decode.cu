// Blocks stay: the first warps of each walk over tiles of query rows (attention_tile.cuh), the others over decodes
// (attention_stream.cuh), each with a barrier and shared memory of their own, until there is nothing left of either.
#include "attention/attention_plan.cuh"
#include "attention/attention_stream.cuh"
#include "attention/attention_tile.cuh"
#include "launch.cuh"
#include "part_of_block.cuh"
#include "recompute_decode.h"

namespace hocket {
namespace cuda {
namespace {

constexpr int kThreads = static_cast<int>(kRecomputeDecodeThreads);

struct FusedPlan {
  int tile_warps;
  int num_decodes;
  int num_tiles;   // of a sequence and KV head, at most
  int tile_items;  // sequences that recompute x KV heads x num_tiles
  int head_parts;  // of a decode
  int stream_items;
};

template <class T, int kHeadDim>
__device__ void recompute(const PagedAttentionArgs& args, const FusedPlan& fused) {
  const PartOfBlock warps{0, fused.tile_warps, 1};
  const int num_kv_heads = static_cast<int>(args.pool.num_kv_heads);
  for (int i = static_cast<int>(blockIdx.x); i < fused.tile_items; i += static_cast<int>(gridDim.x)) {
    const int head = i / fused.num_tiles;  // over all sequences
    const TileWork work = find_tile(args, fused.num_decodes + head / num_kv_heads, head % num_kv_heads,
                                    i % fused.num_tiles, 16 * fused.tile_warps);
    if (work.num_rows > 0) run_tile<T, kHeadDim, 1>(args, work, block_memory(), warps);
    warps.sync();  // the memory may go
  }
}

template <class T, int kHeadDim, int kHeads>
__device__ void decode(const PagedAttentionArgs& args, const StreamPlan& plan, const FusedPlan& fused) {
  const PartOfBlock warps{fused.tile_warps, kThreads / 32 - fused.tile_warps, 2};
  auto* memory = reinterpret_cast<float*>(block_memory() + Tile<T, kHeadDim>::num_bytes(16 * fused.tile_warps));
  for (int i = static_cast<int>(blockIdx.x); i < fused.stream_items; i += static_cast<int>(gridDim.x)) {
    const int head = i / plan.num_splits;  // over all decodes
    const StreamItem item{head / fused.head_parts, head % fused.head_parts, i % plan.num_splits};
    run_item<T, kHeadDim, kHeads>(args, plan, item, memory, warps);
    warps.sync();  // the memory may go
  }
}

template <class T, int kHeadDim, int kHeads>
__global__ void __launch_bounds__(kThreads)
    recompute_decode_kernel(PagedAttentionArgs args, StreamPlan plan, FusedPlan fused) {
  if (static_cast<int>(threadIdx.x) < 32 * fused.tile_warps) {
    recompute<T, kHeadDim>(args, fused);
  } else {
    decode<T, kHeadDim, kHeads>(args, plan, fused);
  }
}

// The decodes alone, as the stream kernel and its plan see them.
PagedAttentionArgs decodes_of(const RecomputeDecodeArgs& args) {
  PagedAttentionArgs decodes = args.attention;
  decodes.num_seqs = decodes.num_tokens = args.num_decodes;
  decodes.max_query_len = 1;
  return decodes;
}

template <class T, int kHeadDim, int kHeads>
Status run(const RecomputeDecodeArgs& args, void* stream) {
  const PagedAttentionArgs& attention = args.attention;
  const int64_t group = attention.num_heads / attention.pool.num_kv_heads;
  const int warps = static_cast<int>(args.recompute_threads / 32);
  const StreamPlan plan = make_plan(decodes_of(args));
  FusedPlan fused{};
  fused.tile_warps = warps;
  fused.num_decodes = static_cast<int>(args.num_decodes);
  fused.num_tiles = ceil_div(attention.max_query_len * group, 16 * warps);
  fused.tile_items =
      static_cast<int>((attention.num_seqs - args.num_decodes) * attention.pool.num_kv_heads) * fused.num_tiles;
  fused.head_parts = static_cast<int>(attention.pool.num_kv_heads) * ceil_div(group, kHeads);
  fused.stream_items = fused.num_decodes * fused.head_parts * plan.num_splits;

  const auto kernel = recompute_decode_kernel<T, kHeadDim, kHeads>;
  const size_t stream_bytes =
      static_cast<size_t>(kThreads / 32 - warps) * kStreamMemory<kHeadDim, kHeads> * sizeof(float);
  const size_t bytes = Tile<T, kHeadDim>::num_bytes(16 * warps) + stream_bytes;
  const int items = fused.tile_items > fused.stream_items ? fused.tile_items : fused.stream_items;
  const int resident = num_processors() * blocks_per_processor(kernel, kThreads, bytes);
  const dim3 grid(static_cast<unsigned>(items < resident ? items : resident));
  const Status status = launch(kernel, grid, dim3(kThreads), bytes, stream, attention, plan, fused);
  if (status != Status::kOk || plan.num_splits == 1) return status;
  const dim3 merge_grid(static_cast<unsigned>(args.num_decodes), static_cast<unsigned>(attention.num_heads));
  return launch(merge_kernel<T>, merge_grid, dim3(64), 0, stream, attention, plan);
}

template <class T, int kHeadDim>
Status run(const RecomputeDecodeArgs& args, void* stream) {
  const int64_t group = args.attention.num_heads / args.attention.pool.num_kv_heads;
  return with_stream_heads(group, [&](auto heads) { return run<T, kHeadDim, heads.value>(args, stream); });
}

}  // namespace
}  // namespace cuda

Status recompute_decode_cuda(const RecomputeDecodeArgs& args, void* stream) {
  const PagedAttentionArgs& attention = args.attention;
  if (attention.dtype != attention.pool.dtype) return Status::kUnsupportedDType;
  const bool is_split = args.recompute_threads % 32 == 0 && args.recompute_threads >= 32 &&
                        args.recompute_threads <= kRecomputeDecodeThreads - 32;
  if (!is_split || !cuda::can_attend(attention)) return Status::kUnsupportedShape;
  return cuda::with_type(attention.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      if (attention.pool.head_dim <= 64) return cuda::run<T, 64>(args, stream);
      if (attention.pool.head_dim <= 128) return cuda::run<T, 128>(args, stream);
      return cuda::run<T, 256>(args, stream);
    }
    return Status::kUnsupportedDType;
  });
}

int64_t recompute_decode_workspace_bytes(const RecomputeDecodeArgs& args) {
  return cuda::num_stream_bytes(cuda::decodes_of(args));
}

}  // namespace hocket
