// How many of a tenant's waiting requests come in with one step, while somebody else's tokens are due in it: half of
// them, and one at least.
//
// Short prompts take next to no time as predicted, but each adds a row to the step and work before and after it. Who
// sends many at once would lengthen one gap of somebody else by all of them; n of them come in within log2 n + 1 steps
// instead. And whoever asks again upon every answer asks at different times from then on, not all at once for ever.
//
// Thread safety: none. Allocation: as tenants come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "requests/tenants.h"

namespace hocket {

class Newcomers {
 public:
  // decoding: online. Afterwards add() each online request that waits. `tenants` outlives the step.
  void begin(const Tenants& tenants, std::span<const Slot> decoding) {
    tenants_ = &tenants;
    num_decoding_ = tenants.has_several() ? static_cast<int32_t>(decoding.size()) : 0;
    if (num_decoding_ == 0) return;
    of_.assign(tenants.num_entries(), {});
    for (const Slot slot : decoding) ++of_[tenants.index(slot)].num_decoding;
  }
  void add(Slot slot) {
    if (num_decoding_ > 0) ++of_[tenants_->index(slot)].num_waiting;
  }

  // Whether that one may come in, too; it is counted then. REQUIRES: it was added, and so was everybody else.
  bool take(Slot slot) {
    if (num_decoding_ == 0) return true;
    OfTenant& of = of_[tenants_->index(slot)];
    const bool is_alone = of.num_decoding == num_decoding_;
    return is_alone || of.num_taken++ < (of.num_waiting + 1) / 2;
  }

 private:
  struct OfTenant {
    int32_t num_decoding = 0;
    int32_t num_waiting = 0;
    int32_t num_taken = 0;
  };

  const Tenants* tenants_ = nullptr;
  int32_t num_decoding_ = 0;  // 0: nobody stands back
  std::vector<OfTenant> of_;  // by Tenants::index()
};

}  // namespace hocket
