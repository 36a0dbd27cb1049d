// recompute_decode: paged_attention of a batch in which some sequences decode, one query token each, while others
// compute the K and V of tokens that are not kept (eLLM section 4.3.2). What it computes is paged_attention's; the two
// parts run at the same time: the one waits for memory, the other for the tensor cores.
//
// One launch whose blocks of kRecomputeDecodeThreads threads do both, so many of them the one and the others the other;
// thread_split.py says how many.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "paged_attention.h"

namespace hocket {

constexpr int64_t kRecomputeDecodeThreads = 256;

struct RecomputeDecodeArgs {
  PagedAttentionArgs attention;  // workspace: recompute_decode_workspace_bytes() bytes
  int64_t num_decodes;           // sequences [0, num_decodes) have one query token each; the others any number
  int64_t recompute_threads;     // for the others; a multiple of 32, at least 32, and at least 32 less than all
};

// 16-bit types only.
Status recompute_decode_cuda(const RecomputeDecodeArgs& args, void* stream);
int64_t recompute_decode_workspace_bytes(const RecomputeDecodeArgs& args);

}  // namespace hocket
