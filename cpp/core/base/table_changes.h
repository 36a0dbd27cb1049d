// What the worker's block tables (batch_plan.h) become before a step runs: table.flat[index[i]] = unit[i].
#pragma once

#include <cstdint>
#include <vector>

namespace hocket {

struct TableChanges {
  std::vector<int64_t> index;
  std::vector<int32_t> unit;

  void clear() {
    index.clear();
    unit.clear();
  }
};

}  // namespace hocket
