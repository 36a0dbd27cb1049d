// Whether products of int8 use AVX-512 VNNI: where this CPU has it, under avx512_vnni and avx512_bf16 (dispatch.cpp).
#pragma once

namespace hocket::cpu {

bool uses_vnni();

}  // namespace hocket::cpu
