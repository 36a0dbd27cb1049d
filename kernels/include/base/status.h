// What a launcher returns. Kernels check nothing deep: shapes are checked once, in worker/ops. A launcher refuses
// only what it has no code for.
#pragma once

#include <cstdint>

namespace hocket {

enum class Status : int32_t {
  kOk = 0,
  kUnsupportedDType = 1,  // no kernel for this element type, or for this combination
  kUnsupportedShape = 2,  // no kernel for this size, e.g. a head_dim that was not compiled
  kWrongPacking = 3,      // the weight was packed for another instruction set
  kDeviceError = 4,       // the CUDA runtime refused the launch
};

}  // namespace hocket
