// The CPU kernels of one instruction set. Each is compiled from the same sources into a namespace of its own.
#pragma once

#include "decoder_step.h"
#include "draw_tokens.h"
#include "hidden_gather.h"
#include "hidden_write.h"
#include "linear.h"
#include "paged_attention.h"
#include "project_rope_write.h"
#include "rms_norm.h"
#include "rope_kv_write.h"
#include "silu_mul.h"
#include "unit_copy.h"

namespace hocket::cpu {

struct KernelTable {
  const char* isa;
  Status (*rms_norm)(const RmsNormArgs&);
  Status (*silu_mul)(const SiluMulArgs&);
  Status (*rope_kv_write)(const RopeKvWriteArgs&);
  Status (*paged_attention)(const PagedAttentionArgs&);
  Status (*linear)(const LinearArgs&);
  Status (*decoder_step)(const DecoderStepArgs&);
  Status (*draw_tokens)(const DrawTokensArgs&);
  Status (*hidden_gather)(const HiddenGatherArgs&);
  Status (*hidden_write)(const HiddenWriteArgs&);
  Status (*project_rope_write)(const ProjectRopeWriteArgs&);
  Status (*unit_copy)(const UnitCopyArgs&);
  int64_t linear_panel_width;
  float (*read_limit)(const void*, int64_t);
  int64_t (*arithmetic_limit)(int64_t, DType);
};

}  // namespace hocket::cpu
