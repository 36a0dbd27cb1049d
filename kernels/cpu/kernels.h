// What each instruction set implements; see kernel_table.h.
#pragma once

#include "kernel_table.h"

namespace hocket::cpu::HOCKET_ISA {

Status rms_norm(const RmsNormArgs& args);
Status silu_mul(const SiluMulArgs& args);
Status rope_kv_write(const RopeKvWriteArgs& args);
Status paged_attention(const PagedAttentionArgs& args);
Status linear(const LinearArgs& args);
Status decoder_step(const DecoderStepArgs& args);
Status draw_tokens(const DrawTokensArgs& args);
Status hidden_gather(const HiddenGatherArgs& args);
Status hidden_write(const HiddenWriteArgs& args);
Status project_rope_write(const ProjectRopeWriteArgs& args);
Status unit_copy(const UnitCopyArgs& args);
float read_limit(const void* data, int64_t bytes);
int64_t arithmetic_limit(int64_t rounds, DType dtype);

extern const KernelTable kTable;

}  // namespace hocket::cpu::HOCKET_ISA
