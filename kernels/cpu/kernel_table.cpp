#include "kernel_table.h"

#include "kernels.h"
#include "linear_product.h"

#define HOCKET_STRING_(x) #x
#define HOCKET_STRING(x) HOCKET_STRING_(x)

namespace hocket::cpu::HOCKET_ISA {

const KernelTable kTable = {
    .isa = HOCKET_STRING(HOCKET_ISA),
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .rope_kv_write = rope_kv_write,
    .paged_attention = paged_attention,
    .linear = linear,
    .decoder_step = decoder_step,
    .draw_tokens = draw_tokens,
    .hidden_gather = hidden_gather,
    .hidden_write = hidden_write,
    .project_rope_write = project_rope_write,
    .unit_copy = unit_copy,
    .linear_panel_width = kPanel,
    .read_limit = read_limit,
    .arithmetic_limit = arithmetic_limit,
};

}  // namespace hocket::cpu::HOCKET_ISA
