#include "kernel_table.h"

#include "kernels.h"
#include "linear/linear_product.h"

#define HOCKET_STRING_(x) #x
#define HOCKET_STRING(x) HOCKET_STRING_(x)

namespace hocket::cpu::HOCKET_ISA {

const KernelTable kTable = {
    .isa = HOCKET_STRING(HOCKET_ISA),
#define HOCKET_KERNEL(name, Args) .name = name,
    HOCKET_CPU_KERNELS(HOCKET_KERNEL)
#undef HOCKET_KERNEL
        .linear_panel_width = kPanel,
    .read_limit = read_limit,
    .arithmetic_limit = arithmetic_limit,
};

}  // namespace hocket::cpu::HOCKET_ISA
