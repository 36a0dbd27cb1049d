// unit_copy: many units from one place to another at once: to[to_units[i]] = from[from_units[i]], 0 <= i < num_units.
//
// The places are pools, dense buffers (no indices: unit i), or, on CUDA, pinned host memory that the device can
// address.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace hocket {

struct UnitCopyArgs {
  void* to;                   // [...][unit_bytes], contiguous
  const void* from;           // [...][unit_bytes], contiguous
  const int32_t* to_units;    // [num_units], or null: unit i
  const int32_t* from_units;  // [num_units], or null: unit i
  int64_t num_units;
  int64_t unit_bytes;  // on CUDA a multiple of 16
  bool is_alone;       // on CPU: the caller's thread copies alone, since a step beside it needs the others
};

// REQUIRES: no unit is written twice, none is both read and written.
Status unit_copy_cpu(const UnitCopyArgs& args);
Status unit_copy_cuda(const UnitCopyArgs& args, void* stream);

}  // namespace hocket
