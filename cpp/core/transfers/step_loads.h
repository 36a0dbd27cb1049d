// What a step loads from the host while it runs, into blocks that its requests' rows own already: of a request that is
// admitted as if its blocks were there (restores.h), and of a row that has blocks again (host_copies.h).
//
// The host keeps what is in the list where it is (Tiers::hold()). Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "state/scheduler_state.h"

namespace hocket {

struct StepLoad {
  Slot slot;
  int32_t begin;  // blocks
  int32_t end;
  bool is_return = false;  // of blocks that were uncached
};

class StepLoads {
 public:
  explicit StepLoads(SchedulerState* state);

  void clear() { loads_.clear(); }
  // REQUIRES: the host has the blocks; the row has room for them.
  void add(const StepLoad& load);
  // The request gives way in the very step that it was admitted for.
  void drop(Slot slot);
  // REQUIRES: all of them are computed something of in this step.
  void write();

  size_t size() const { return loads_.size(); }
  const StepLoad& operator[](size_t i) const { return loads_[i]; }
  int64_t num_blocks() const;

 private:
  const RequestTable& requests_;
  const DeviceMemory& memory_;
  Tiers& tiers_;
  std::vector<StepLoad> loads_;  // of this schedule()
};

}  // namespace hocket
