// Moves between the tiers of memory (tiers.h) that a plan begins.
#pragma once

#include <cstdint>
#include <vector>

#include "base/block_key.h"

namespace hocket {

// What moves, one block each.
enum class MoveKind : int32_t {
  kSave = 0,      // device -> host
  kLoad = 1,      // host -> device
  kStore = 2,     // host -> disk
  kFetch = 3,     // disk, or a peer's host -> host
  kStepLoad = 4,  // host -> device, for the step of this plan
};

// Also in a plan that computes nothing. Saves read the device as it is before the step runs and before any load of this
// plan writes; the others run beside steps. Loads may go to units that this plan projects (form_plan.h), and write
// there once these have been read; step loads do not. Step loads are what the step itself waits for: it reads no unit
// of a layer group before that group has landed, and all of them have landed when it is committed. They are only in
// plans that compute something. Every move is reported by complete_moves() once it is done, by its id, which may be
// used again afterwards. Read by: worker's tier copies.
struct TierMoves {
  std::vector<int32_t> ids;    // saves first
  std::vector<int32_t> kinds;  // MoveKind
  std::vector<int32_t> slots;  // on the host
  std::vector<int32_t> units;  // [num_moves][units_per_block]: of saves and loads; kNone for the others
  std::vector<int32_t> peers;  // whom a fetch is from; kNone: the disk
  std::vector<BlockKey> keys;  // names on disk, and at peers
  int32_t num_saves = 0;       // of the moves
  int32_t num_step_loads = 0;  // likewise
};

}  // namespace hocket
