// How much each tenant has been served: virtual token counters (Sheng et al., Fairness in Serving LLMs), from which
// follows what an answer of theirs is worth beside an equal one of somebody else.
//
// A tenant's counter grows by the prompt tokens that are computed for it and by kOutputTokens for every token sampled.
// It is active while it has a live request; one that becomes active again starts at the least counter among those that
// are, or as far below it as when it went: time away is no credit, and takes none. The worth of an answer is halved by
// every kHalvingTokens by which its tenant's counter is above the mean of the active ones, and doubled below it,
// between an eighth and eight times.
//
// Thread safety: none. Allocation: with a tenant's first request, and with slots that no request had before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "requests/per_request.h"
#include "requests/request.h"

namespace hocket {

class Tenants {
 public:
  static constexpr int32_t kOutputTokens = 2;       // a sampled token costs as much as so many of a prompt
  static constexpr double kHalvingTokens = 8192.0;  // in the counter
  static constexpr int kMostHalvings = 3;
  static constexpr int64_t kMostCredit = 8192;     // within a halving orders do not tell tenants apart
  static constexpr size_t kMostRemembered = 4096;  // beyond that, who is not active is forgotten

  // `requests` outlives this.
  explicit Tenants(const RequestTable* requests) : of_(requests) {}

  // A request of that tenant is live, or no longer; it was served. REQUIRES: its slot is in the table. What is added as
  // idle, a draft, is paid for and makes nobody active.
  void on_added(Slot slot, std::string_view tenant, bool is_idle = false);
  void on_ended(Slot slot);
  void on_served(Slot slot, int32_t num_computed, int32_t num_sampled) {
    if (entries_.size() == 1) return;  // nobody to compare with: whoever comes starts at the same counter
    entries_[of_[slot].index].served += num_computed + (kOutputTokens - 1) * num_sampled;
  }

  // Makes weight() and lead() those of the present counters: once per step.
  void begin_step();

  // By how much an answer of this request is worth more than that of an equal of the mean tenant's: 1/8 to 8. 1 where
  // one tenant is active.
  float weight(Slot slot) const { return num_active_ > 1 ? entries_[of_[slot].index].weight : 1.0F; }
  // The same in whole halvings, for orders: less goes first.
  int32_t lead(Slot slot) const { return num_active_ > 1 ? entries_[of_[slot].index].lead : 0; }

  // Whether requests of more than one are live; drafts do not count.
  bool has_several() const { return num_active_ > 1; }

  // Below num_entries().
  int32_t index(Slot slot) const { return of_[slot].index; }
  size_t num_entries() const { return entries_.size(); }
  // That the tenant's requests would have, or kNone if none of it is remembered.
  int32_t find(std::string_view tenant) const;

 private:
  struct Entry {
    int64_t served = 0;  // the counter
    int64_t credit = 0;  // by how much it was below the others' least when it was active last, kMostCredit at most
    int32_t num_live = 0;
    int32_t num_idle = 0;
    float weight = 1.0F;
    int32_t lead = 0;
  };
  struct Index {
    int32_t index = 0;  // the first entry is of those whom nobody named
    bool is_idle = false;
  };

  int32_t enter(std::string_view tenant);
  // Of the active tenants but that one. REQUIRES: there is another.
  int64_t least_served(const Entry& but) const;
  void forget_inactive(int32_t but);

  PerRequest<Index> of_;
  std::vector<Entry> entries_ = {Entry()};
  std::vector<int32_t> free_entries_;
  std::unordered_map<std::string, int32_t> index_of_;
  int32_t num_active_ = 0;
};

}  // namespace hocket
