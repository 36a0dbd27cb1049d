// From the name of an element type to the type.
#pragma once

#include "base/dtype.h"
#include "base/status.h"

namespace hocket::cpu::HOCKET_ISA {

// fn(T{}) with the type of floats that dtype names.
template <class Fn>
Status with_type(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn(float{});
    case DType::kBFloat16:
      return fn(BFloat16{});
    case DType::kFloat16:
      return fn(Float16{});
    case DType::kInt8:
    case DType::kInt8Blocks:
    case DType::kInt4Blocks:
      break;
  }
  return Status::kUnsupportedDType;
}

}  // namespace hocket::cpu::HOCKET_ISA
