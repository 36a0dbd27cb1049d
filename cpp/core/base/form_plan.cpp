#include "base/form_plan.h"

#include <algorithm>
#include <cstddef>

namespace hocket {
namespace {

// Takes the row's changes out, and of `units` what belongs to them: as many for each.
template <class Change>
void drop(Row row, std::vector<Change>* changes, std::vector<int32_t>* units) {
  if (changes->empty()) return;
  const auto num_units = static_cast<std::ptrdiff_t>(units->size() / changes->size());
  size_t num_kept = 0;
  for (size_t i = 0; i < changes->size(); ++i) {
    if ((*changes)[i].row == row) continue;
    (*changes)[num_kept] = (*changes)[i];
    std::copy_n(units->begin() + static_cast<std::ptrdiff_t>(i) * num_units, num_units,
                units->begin() + static_cast<std::ptrdiff_t>(num_kept) * num_units);
    ++num_kept;
  }
  changes->resize(num_kept);
  units->resize(num_kept * static_cast<size_t>(num_units));
}

}  // namespace

void FormPlan::drop_changes(Row row) {
  drop(row, &projections, &projected_units);
  drop(row, &roundings, &rounded_units);
}

}  // namespace hocket
