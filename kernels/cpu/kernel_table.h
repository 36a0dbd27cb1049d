// The CPU kernels of one instruction set. Each is compiled from the same sources into a namespace of its own.
#pragma once

#include "allow_tokens.h"
#include "cache/hidden_gather.h"
#include "cache/hidden_write.h"
#include "cache/int8_blocks.h"
#include "cache/project_rope_write.h"
#include "cache/rope_kv_write.h"
#include "cache/unit_copy.h"
#include "decoder_step.h"
#include "draw_tokens.h"
#include "linear.h"
#include "paged_attention.h"
#include "rms_norm.h"
#include "silu_mul.h"

// Every kernel, by its name and its arguments: NAME() of each instruction set (kernels.h), NAME_cpu() of its contract
// (dispatch.cpp), a place in the table.
#define HOCKET_CPU_KERNELS(X)                 \
  X(rms_norm, RmsNormArgs)                    \
  X(silu_mul, SiluMulArgs)                    \
  X(rope_kv_write, RopeKvWriteArgs)           \
  X(paged_attention, PagedAttentionArgs)      \
  X(linear, LinearArgs)                       \
  X(decoder_step, DecoderStepArgs)            \
  X(draw_tokens, DrawTokensArgs)              \
  X(allow_tokens, AllowTokensArgs)            \
  X(allowed_argmax, AllowedArgmaxArgs)        \
  X(hidden_gather, HiddenGatherArgs)          \
  X(hidden_write, HiddenWriteArgs)            \
  X(project_rope_write, ProjectRopeWriteArgs) \
  X(int8_blocks, Int8BlocksArgs)              \
  X(unit_copy, UnitCopyArgs)

namespace hocket::cpu {

struct KernelTable {
  const char* isa;
#define HOCKET_KERNEL(name, Args) Status (*name)(const Args&);
  HOCKET_CPU_KERNELS(HOCKET_KERNEL)
#undef HOCKET_KERNEL
  int64_t linear_panel_width;
  float (*read_limit)(const void*, int64_t);
  int64_t (*arithmetic_limit)(int64_t, DType);
};

}  // namespace hocket::cpu
