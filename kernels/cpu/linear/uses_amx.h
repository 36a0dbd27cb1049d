// Whether products use the tiles of AMX: under avx512_amx (dispatch.cpp), where this CPU has them and the system lets
// this process use them.
#pragma once

namespace hocket::cpu {

bool uses_amx();

}  // namespace hocket::cpu
