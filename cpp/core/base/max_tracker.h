// The largest of a changing set of small integers, exactly, also after the largest is removed.
//
// A count per value and above it a tree of bitmaps, 64 children per word: add, remove and max touch one word per level,
// three levels for 262,144 values. clear() costs what was added since the last one.
//
// Thread safety: none. No allocation after construction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket {

class MaxTracker {
 public:
  // Holds values in [0, limit].
  explicit MaxTracker(int32_t limit) : counts_(static_cast<size_t>(limit) + 1) {
    size_t size = counts_.size();
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  int32_t limit() const { return static_cast<int32_t>(counts_.size()) - 1; }

  // REQUIRES: 0 <= value <= limit()
  void add(int32_t value) {
    if (counts_[value]++ > 0) return;
    size_t index = static_cast<size_t>(value);
    for (auto& level : levels_) {
      const uint64_t before = level[index / 64];
      level[index / 64] |= uint64_t{1} << index % 64;
      if (before != 0) return;
      index /= 64;
    }
  }

  // REQUIRES: value was added and not removed since.
  void remove(int32_t value) {
    if (--counts_[value] > 0) return;
    size_t index = static_cast<size_t>(value);
    for (auto& level : levels_) {
      level[index / 64] &= ~(uint64_t{1} << index % 64);
      if (level[index / 64] != 0) return;
      index /= 64;
    }
  }

  // 0 if empty.
  int32_t max() const {
    if (empty()) return 0;
    size_t index = 0;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      index = index * 64 + 63 - static_cast<size_t>(std::countl_zero((*level)[index]));
    }
    return static_cast<int32_t>(index);
  }

  bool empty() const { return levels_.back()[0] == 0; }

  void clear() {
    while (!empty()) {
      const int32_t value = max();
      counts_[value] = 1;
      remove(value);
    }
  }

 private:
  std::vector<uint32_t> counts_;               // per value
  std::vector<std::vector<uint64_t>> levels_;  // levels_[0]: a bit per value; above: a bit per word below
};

}  // namespace hocket
