// Whether products of int8 use AVX-512 VNNI: where this CPU has it, under avx512_vnni, avx512_bf16 and avx512_amx
// (dispatch.cpp).
#pragma once

namespace hocket::cpu {

bool uses_vnni();

}  // namespace hocket::cpu
