// int8_blocks: blocks of K and V become blocks in int8, of a unit for both (paged_pool.h). All layers of their units.
//
// A unit may be in both lists, of any blocks: of a layer all is read before anything is written. Tokens that nobody has
// written yet may hold anything.
#pragma once

#include <cstdint>

#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

struct Int8BlocksArgs {
  PagedPool pool;             // its block table is not read
  const int32_t* from_units;  // [num_blocks][num_groups][2]
  const int32_t* to_units;    // [num_blocks][num_groups]
  int64_t num_blocks;
  void* workspace;  // [num_blocks][num_groups][2] layers of an int8 pool; aligned to 2 bytes
};

// REQUIRES: the pool is not of int8, its vectors are as long as int8 rows need; no unit is written twice.
Status int8_blocks_cpu(const Int8BlocksArgs& args);

}  // namespace hocket
