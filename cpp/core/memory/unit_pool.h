// The free list of the device pool.
//
// A unit is the smallest piece of cache memory: one block of tokens x F consecutive layers x one vector kind. All units
// are equal, so any unit serves any layer group and any kind; the pool hands out ids and knows nothing else about them.
//
// The list is a stack: the unit released last is handed out first, because it is the likeliest to be in a cache.
//
// Invariants: every id in [0, num_units()) is either in the stack, once, or handed out.
// Thread safety: none. No allocation after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace hocket {

class UnitPool {
 public:
  explicit UnitPool(int32_t num_units);

  // Fills `out` with units that are now the caller's, or returns false and changes nothing if too few are free.
  bool allocate(std::span<UnitId> out);

  // REQUIRES: every unit was handed out by allocate() and has not been released since.
  void release(std::span<const UnitId> units);

  int32_t num_units() const { return static_cast<int32_t>(is_free_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  bool is_free(UnitId unit) const { return is_free_[unit] != 0; }

  // Throws CoreError on the first broken invariant. O(num_units).
  void check_invariants() const;

 private:
  std::vector<UnitId> free_;      // top of the stack at the back
  std::vector<uint8_t> is_free_;  // by unit
};

}  // namespace hocket
