// What holds for all CPU kernels: threads, instruction set, sharing. Process-wide.
//
// Thread safety: kernels may be called from any thread. While one call uses the worker threads, others run on their
// own thread alone. set_num_threads(), set_isa() and set_shared_keys() must not race with kernels.
#pragma once

namespace hocket::cpu {

// Threads of one kernel call, the caller's included. Starts as the number of CPUs this process may run on.
void set_num_threads(int n);
int num_threads();

// "avx512_amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2" or "generic", chosen by what the CPU has; "avx2_w16"
// runs the 16-lane code on AVX2, for tests.
const char* isa();

// False, and no change, where this CPU or this build lacks it.
bool set_isa(const char* name);

// Whether decodes read keys that they have in common once for all (attention/shared_keys.h), which changes no result.
// They do; benchmarks compare.
void set_shared_keys(bool is_shared);
bool shares_keys();

}  // namespace hocket::cpu
