// Chooses the instruction set and forwards the launchers to it.
#include <string_view>

#include "cpu.h"
#include "kernel_table.h"
#include "machine_limits.h"

namespace hocket {
namespace cpu {

namespace generic {
extern const KernelTable kTable;
}
#ifdef HOCKET_X86
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx2_w16 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif

namespace {

// The table of that name, or null where this CPU cannot run it.
const KernelTable* find_table(std::string_view name) {
  if (name == "generic") return &generic::kTable;
#ifdef HOCKET_X86
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (name == "avx2" && has_avx2) return &avx2::kTable;
  if (name == "avx2_w16" && has_avx2) return &avx2_w16::kTable;
  const bool has_avx512_bf16 =
      has_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (name == "avx512" && has_avx512) return &avx512::kTable;
  if (name == "avx512_bf16" && has_avx512_bf16) return &avx512_bf16::kTable;
#endif
  return nullptr;
}

const KernelTable* best_table() {
  for (std::string_view name : {"avx512_bf16", "avx512", "avx2"}) {
    if (const KernelTable* table = find_table(name)) return table;
  }
  return &generic::kTable;
}

const KernelTable* active = best_table();

}  // namespace

const char* isa() { return active->isa; }

bool set_isa(const char* name) {
  const KernelTable* table = find_table(name);
  if (table == nullptr) return false;
  active = table;
  return true;
}

}  // namespace cpu

Status rms_norm_cpu(const RmsNormArgs& args) { return cpu::active->rms_norm(args); }
Status silu_mul_cpu(const SiluMulArgs& args) { return cpu::active->silu_mul(args); }
Status rope_kv_write_cpu(const RopeKvWriteArgs& args) { return cpu::active->rope_kv_write(args); }
Status paged_attention_cpu(const PagedAttentionArgs& args) { return cpu::active->paged_attention(args); }
Status linear_cpu(const LinearArgs& args) { return cpu::active->linear(args); }
Status decoder_step_cpu(const DecoderStepArgs& args) { return cpu::active->decoder_step(args); }
Status draw_tokens_cpu(const DrawTokensArgs& args) { return cpu::active->draw_tokens(args); }
Status hidden_gather_cpu(const HiddenGatherArgs& args) { return cpu::active->hidden_gather(args); }
Status hidden_write_cpu(const HiddenWriteArgs& args) { return cpu::active->hidden_write(args); }
Status project_rope_write_cpu(const ProjectRopeWriteArgs& args) { return cpu::active->project_rope_write(args); }
Status unit_copy_cpu(const UnitCopyArgs& args) { return cpu::active->unit_copy(args); }
int64_t linear_panel_width() { return cpu::active->linear_panel_width; }
float read_limit_cpu(const void* data, int64_t bytes) { return cpu::active->read_limit(data, bytes); }
int64_t arithmetic_limit_cpu(int64_t rounds, DType dtype) { return cpu::active->arithmetic_limit(rounds, dtype); }

}  // namespace hocket
