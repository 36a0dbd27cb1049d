#include "scheduler/overload_control.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hocket {
namespace {

bool is_online(const RequestTable& requests, Slot slot) { return requests.request_class[slot] == kOnlineClass; }

}  // namespace

bool OverloadControl::is_enabled() const { return state_.config.max_ttft_ms < std::numeric_limits<double>::infinity(); }

bool OverloadControl::accepts(const RequestSpec& spec, std::span<const Slot> restoring) {
  if (!is_enabled() || spec.request_class != kOnlineClass) return true;
  const int32_t tenant = state_.tenants.find(spec.tenant);
  const Backlog backlog = this->backlog(restoring, tenant);
  if (backlog.seconds == 0) return true;
  const auto num_prompt = static_cast<int64_t>(spec.prompt.size());
  const int64_t num_cached =
      int64_t{state_.memory.num_cached_blocks(spec.cache_salt, spec.prompt.first(spec.prompt.size() - 1))} *
      state_.config.block_size;
  const double own =
      state_.estimates.prefill_seconds(static_cast<double>(num_cached), static_cast<double>(num_prompt - num_cached));
  const double limit = state_.config.max_ttft_ms / 1000;
  const double ttft = (backlog.seconds + own) / share();
  const double num_pool_tokens = static_cast<double>(state_.memory.num_kv_blocks()) * state_.config.block_size;
  const bool has_memory = static_cast<double>(backlog.num_tokens + num_prompt) <= kMostMemory * num_pool_tokens;
  if (ttft <= limit && has_memory) return true;
  const auto num_tenants = static_cast<double>(num_waiting_tenants(tenant));
  const double own_ttft = (backlog.own_seconds + own) / share();
  if (num_tenants > 1 && num_tenants * own_ttft <= limit && ttft <= 2 * limit && has_memory) return true;
  retry_seconds_ = std::max(kLeastRetrySeconds, ttft - limit);
  return false;
}

double OverloadControl::predicted_ttft(std::span<const Slot> restoring) const {
  return backlog(restoring, kNone).seconds / share();
}

void OverloadControl::note_step(std::span<const Slot> slots, double seconds) {
  if (!is_enabled()) return;
  const RequestTable& requests = state_.requests;
  double done = 0.0;
  for (const Slot slot : slots) {
    if (!is_online(requests, slot) || requests.num_uncomputed_tokens(slot) == 1) continue;
    done += state_.estimates.prefill_seconds(requests.num_computed_tokens[slot], requests.num_scheduled_tokens[slot]);
  }
  const bool any_waits =
      done > 0 || std::ranges::any_of(state_.waiting, [&](Slot slot) { return is_online(requests, slot); });
  const double kept = std::exp(-seconds / kMemorySeconds);
  prompt_seconds_ = prompt_seconds_ * kept + (any_waits ? std::min(done, seconds) : 0.0);
  seconds_ = seconds_ * kept + (any_waits ? seconds : 0.0);
}

OverloadControl::Backlog OverloadControl::backlog(std::span<const Slot> restoring, int32_t tenant) const {
  Backlog sum;
  const auto count = [&](Slot slot, double seconds) {
    if (!is_online(state_.requests, slot)) return;
    sum.seconds += seconds;
    if (state_.tenants.index(slot) == tenant) sum.own_seconds += seconds;
    sum.num_tokens += state_.requests.num_tokens[slot];
  };
  for (const Slot slot : state_.waiting) count(slot, waiting_seconds(slot));
  for (const Slot slot : restoring) count(slot, 0.0);
  for (const Slot slot : state_.running) count(slot, running_seconds(slot));
  return sum;
}

double OverloadControl::waiting_seconds(Slot slot) const {
  const int32_t num_cached = state_.requests.num_cached_hint[slot];
  return state_.estimates.prefill_seconds(num_cached, state_.requests.num_tokens[slot] - num_cached);
}

double OverloadControl::running_seconds(Slot slot) const {
  const int32_t num_left = state_.requests.num_uncomputed_tokens(slot);
  if (num_left == 1) return 0.0;
  return state_.estimates.prefill_seconds(state_.requests.num_computed_tokens[slot], num_left);
}

// Whose online requests wait, and the one that asks.
int64_t OverloadControl::num_waiting_tenants(int32_t own) {
  tenants_.assign(1, own);
  for (const Slot slot : state_.waiting) {
    if (is_online(state_.requests, slot)) tenants_.push_back(state_.tenants.index(slot));
  }
  std::ranges::sort(tenants_);
  return std::unique(tenants_.begin(), tenants_.end()) - tenants_.begin();
}

}  // namespace hocket
