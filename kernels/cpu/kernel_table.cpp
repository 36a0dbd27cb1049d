#include "kernel_table.h"

#include "kernels.h"

#define HOCKET_STRING_(x) #x
#define HOCKET_STRING(x) HOCKET_STRING_(x)

namespace hocket::cpu::HOCKET_ISA {

const KernelTable kTable = {HOCKET_STRING(HOCKET_ISA), rms_norm, silu_mul, rope_kv_write, paged_attention};

}  // namespace hocket::cpu::HOCKET_ISA
