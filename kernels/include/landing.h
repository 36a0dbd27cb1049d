// landing: units that another thread brings while a step runs, layer group by layer group.
//
// A counter says how many groups are there; where nothing is on its way, more than a model has. Whoever brings them
// advances it; a step waits before it reads a group. What was written before land() is visible after
// wait_until_landed().
#pragma once

#include <cstdint>

namespace hocket {

// Groups [0, num_groups) are there. Wakes who waits.
void land(int32_t* num_landed, int32_t num_groups);

// Returns at once if the group is there, or if num_landed is null. Else sleeps: whoever brings it may need this core.
void wait_until_landed(const int32_t* num_landed, int64_t group);

}  // namespace hocket
