// Small integers that name things. All are indices into flat arrays; kNone names nothing.
#pragma once

#include <cstdint>

namespace hocket {

using UnitId = int32_t;   // one unit of the device pool, 0 <= id < num_units
using BlockId = int32_t;  // one block record, 0 <= id < BlockPool::num_blocks()
using NodeId = int32_t;   // one node of the prefix cache's radix tree
using Slot = int32_t;     // one live request's place in RequestTable
using Row = int32_t;      // one running request's place in the worker's block tables, 0 <= row < max_num_seqs

inline constexpr int32_t kNone = -1;

}  // namespace hocket
