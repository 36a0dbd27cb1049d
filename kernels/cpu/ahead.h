// What a product asks for ahead of its use, by and by, while it computes with what is there.
#pragma once

#include <cstdint>

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

struct Ahead {
  const char* place;
  int64_t step;  // bytes

  void ask() {
    __builtin_prefetch(place, 0, 2);
    place += step;
  }
};

}  // namespace hocket::cpu::HOCKET_ISA
