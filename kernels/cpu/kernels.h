// What each instruction set implements; see kernel_table.h.
#pragma once

#include "kernel_table.h"

namespace hocket::cpu::HOCKET_ISA {

#define HOCKET_KERNEL(name, Args) Status name(const Args& args);
HOCKET_CPU_KERNELS(HOCKET_KERNEL)
#undef HOCKET_KERNEL
float read_limit(const void* data, int64_t bytes);
int64_t arithmetic_limit(int64_t rounds, DType dtype);

extern const KernelTable kTable;

}  // namespace hocket::cpu::HOCKET_ISA
