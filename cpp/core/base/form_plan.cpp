#include "base/form_plan.h"

#include <algorithm>
#include <cstddef>

namespace hocket {

void FormPlan::drop_projections(Row row, int32_t hidden_units_per_block) {
  auto& units = projected_units;
  size_t num_kept = 0;
  for (size_t i = 0; i < projections.size(); ++i) {
    if (projections[i].row == row) continue;
    projections[num_kept] = projections[i];
    std::copy_n(units.begin() + static_cast<std::ptrdiff_t>(i) * hidden_units_per_block, hidden_units_per_block,
                units.begin() + static_cast<std::ptrdiff_t>(num_kept) * hidden_units_per_block);
    ++num_kept;
  }
  projections.resize(num_kept);
  units.resize(num_kept * hidden_units_per_block);
}

}  // namespace hocket
