#include "memory/unit_pool.h"

#include <algorithm>

#include "base/check.h"

namespace hocket {

UnitPool::UnitPool(int32_t num_units) : free_(num_units), is_free_(num_units, 1) {
  for (int32_t i = 0; i < num_units; ++i) free_[i] = num_units - 1 - i;
}

bool UnitPool::allocate(std::span<UnitId> out) {
  if (out.size() > free_.size()) return false;
  for (UnitId& unit : out) {
    unit = free_.back();
    free_.pop_back();
    is_free_[unit] = 0;
  }
  return true;
}

void UnitPool::release(std::span<const UnitId> units) {
  for (const UnitId unit : units) {
    HOCKET_CHECK(unit >= 0 && unit < num_units() && !is_free(unit), "released a unit that is not handed out");
    is_free_[unit] = 1;
    free_.push_back(unit);
  }
}

void UnitPool::check_invariants() const {
  const auto num_marked = std::count(is_free_.begin(), is_free_.end(), uint8_t{1});
  HOCKET_CHECK(num_marked == num_free(), "free marks differ from the free list");
  std::vector<uint8_t> seen(is_free_.size(), 0);
  for (const UnitId unit : free_) {
    HOCKET_CHECK(unit >= 0 && unit < num_units() && is_free(unit) && !seen[unit], "free list holds a wrong unit");
    seen[unit] = 1;
  }
}

}  // namespace hocket
