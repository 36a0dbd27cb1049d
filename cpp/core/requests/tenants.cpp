#include "requests/tenants.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hocket {

void Tenants::on_added(Slot slot, std::string_view tenant, bool is_idle) {
  const int32_t index = tenant.empty() ? 0 : enter(tenant);
  of_[slot] = {index, is_idle};
  Entry& entry = entries_[index];
  if (is_idle) {
    ++entry.num_idle;
    return;
  }
  if (entry.num_live++ > 0) return;
  if (num_active_++ > 0) entry.served = std::max(entry.served, least_served(entry) - entry.credit);
}

void Tenants::on_ended(Slot slot) {
  Entry& entry = entries_[of_[slot].index];
  if (of_[slot].is_idle) {
    --entry.num_idle;
    return;
  }
  if (--entry.num_live > 0) return;
  const bool is_alone = --num_active_ == 0;
  entry.credit = is_alone ? 0 : std::clamp<int64_t>(least_served(entry) - entry.served, 0, kMostCredit);
}

int64_t Tenants::least_served(const Entry& but) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Entry& other : entries_) {
    if (&other != &but && other.num_live > 0) least = std::min(least, other.served);
  }
  return least;
}

void Tenants::begin_step() {
  if (num_active_ < 2) return;
  int64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.num_live > 0 ? entry.served : 0;
  const double mean = static_cast<double>(sum) / num_active_;
  for (Entry& entry : entries_) {
    if (entry.num_live == 0) continue;
    const double halvings = std::clamp((static_cast<double>(entry.served) - mean) / kHalvingTokens,
                                       -1.0 * kMostHalvings, 1.0 * kMostHalvings);
    entry.weight = static_cast<float>(std::exp2(-halvings));
    entry.lead = static_cast<int32_t>(std::lround(halvings));
  }
}

int32_t Tenants::find(std::string_view tenant) const {
  if (tenant.empty()) return 0;
  const auto found = index_of_.find(std::string(tenant));
  return found == index_of_.end() ? kNone : found->second;
}

int32_t Tenants::enter(std::string_view tenant) {
  const auto [place, is_new] = index_of_.try_emplace(std::string(tenant), 0);
  if (!is_new) return place->second;
  int32_t index;
  if (free_entries_.empty()) {
    index = static_cast<int32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_entries_.back();
    free_entries_.pop_back();
    entries_[index] = Entry();
  }
  place->second = index;
  if (index_of_.size() > kMostRemembered) forget_inactive(index);
  return index;
}

void Tenants::forget_inactive(int32_t but) {
  std::erase_if(index_of_, [&](const auto& item) {
    const Entry& entry = entries_[item.second];
    if (item.second == but || entry.num_live > 0 || entry.num_idle > 0) return false;
    free_entries_.push_back(item.second);
    return true;
  });
}

}  // namespace hocket
