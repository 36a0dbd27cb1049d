#include "requests/overload_control.h"

#include <algorithm>
#include <cmath>

namespace hocket {
namespace {

bool is_online(const RequestTable& requests, Slot slot) { return requests.request_class[slot] == kOnlineClass; }

}  // namespace

bool OverloadControl::accepts(const RequestSpec& spec, std::span<const Slot> restoring, int32_t num_cached) {
  accepted_ttft_ = 0.0;
  if (!is_enabled() || spec.request_class != kOnlineClass) return true;
  if (spec.num_prior_tokens > 0) return true;  // it has had its first token
  const int32_t tenant = load_.tenants.find(spec.tenant);
  const Backlog backlog = this->backlog(restoring, tenant);
  if (backlog.all.seconds == 0) return true;
  const auto num_prompt = static_cast<int64_t>(spec.prompt.size());
  const int32_t num_seen = load_.memory.num_cached_blocks(spec.cache_salt, spec.prompt.first(spec.prompt.size() - 1)) *
                           load_.config.block_size;
  const auto num_there = std::max<int64_t>(num_seen, num_cached);
  const double own =
      load_.estimates.prefill_seconds(static_cast<double>(num_there), static_cast<double>(num_prompt - num_there));
  const double limit = load_.config.max_ttft_ms / 1000;
  accepted_ttft_ = ttft_behind(backlog.all, own, 1);
  const double ttft = error_ * accepted_ttft_;
  const double num_pool_tokens = static_cast<double>(load_.memory.num_kv_blocks()) * load_.config.block_size;
  const bool has_memory = static_cast<double>(backlog.all.num_tokens + num_prompt) <= kMostMemory * num_pool_tokens;
  if (ttft <= limit && has_memory) return true;
  const auto num_tenants = static_cast<double>(num_waiting_tenants(tenant));
  const double own_ttft = error_ * ttft_behind(backlog.own, own, num_tenants);
  if (num_tenants > 1 && own_ttft <= limit && ttft <= 2 * limit && has_memory) return true;
  retry_seconds_ = std::max(kLeastRetrySeconds, ttft - limit);
  return false;
}

void OverloadControl::note_first_token(double predicted, double ttft) {
  if (predicted <= kLongShare * load_.config.max_ttft_ms / 1000) return;
  errors_.observe(std::clamp(ttft / predicted, QuantileSketch::kSmallest, kWorstError));
  if (errors_.num_values() >= kFewTokens) error_ = std::max(1.0, errors_.quantile(kInTime));
}

double OverloadControl::predicted_ttft(std::span<const Slot> restoring) const {
  return ttft_behind(backlog(restoring, kNone).all, 0.0, 1);
}

double OverloadControl::ttft_behind(const Work& before, double prompt_seconds, double num_parts) const {
  return std::max(num_parts * (before.seconds + prompt_seconds) / share(),
                  place_seconds(before, static_cast<double>(load_.config.max_num_seqs) / num_parts));
}

double OverloadControl::place_seconds(const Work& before, double num_places) const {
  const auto num_requests = static_cast<double>(before.num_requests);
  const double num_to_leave = num_requests + 1 - num_places;
  if (num_requests == 0 || num_to_leave <= 0) return 0.0;
  const double context = static_cast<double>(before.num_tokens) / num_requests;
  const auto num_decodes = static_cast<double>(load_.config.max_num_seqs);
  const double step_seconds = load_.estimates.latency.predict(
      {.num_decodes = num_decodes, .decode_context = num_decodes * context, .max_context = context});
  const double answer_seconds = before.num_outputs / num_requests * step_seconds;
  const double max_wait_seconds = load_.config.max_wait_ms / 1000;
  const double turn_seconds = std::min(answer_seconds, load_.config.starving_turn_ms / 1000);
  const double num_rounds = num_to_leave / num_places;
  return std::min(num_rounds * answer_seconds, max_wait_seconds + num_rounds * turn_seconds);
}

double OverloadControl::prompt_seconds(Slot slot, int32_t num_computed, int32_t num_tokens) const {
  if (!is_enabled() || !is_online(load_.requests, slot) || load_.requests.num_tokens[slot] - num_computed == 1)
    return 0.0;
  return load_.estimates.prefill_seconds(num_computed, num_tokens);
}

void OverloadControl::note_step(double prompt_seconds, double seconds) {
  if (!is_enabled()) return;
  const bool any_waits = prompt_seconds > 0 ||
                         std::ranges::any_of(load_.waiting, [&](Slot slot) { return is_online(load_.requests, slot); });
  quiet_seconds_ = any_waits ? 0.0 : quiet_seconds_ + seconds;
  if (quiet_seconds_ > kMemorySeconds && error_ > 1) {
    errors_ = QuantileSketch(kMemoryTokens);
    error_ = 1.0;
  }
  const double kept = std::exp(-seconds / kMemorySeconds);
  prompt_seconds_ = prompt_seconds_ * kept + (any_waits ? std::min(prompt_seconds, seconds) : 0.0);
  seconds_ = seconds_ * kept + (any_waits ? seconds : 0.0);
}

OverloadControl::Backlog OverloadControl::backlog(std::span<const Slot> restoring, int32_t tenant) const {
  Backlog sum;
  const RequestTable& requests = load_.requests;
  const auto count = [&](Slot slot, double seconds) {
    if (!is_online(requests, slot)) return;
    const float rest = load_.outputs.rest(kOnlineClass, std::max(1, requests.num_output_tokens(slot)));
    const int32_t most = requests.limits[slot].max_total_tokens - requests.num_tokens[slot];
    const Work work = {seconds, 1, requests.num_tokens[slot], std::min(rest, static_cast<float>(most))};
    sum.all += work;
    if (load_.tenants.index(slot) == tenant) sum.own += work;
  };
  for (const Slot slot : load_.waiting) count(slot, waiting_seconds(slot));
  for (const Slot slot : restoring) count(slot, 0.0);
  for (const Slot slot : load_.running) count(slot, running_seconds(slot));
  return sum;
}

// Who was let in by a step that an advised engine computes still stands in its list.
double OverloadControl::waiting_seconds(Slot slot) const {
  const int32_t num_there = std::max(load_.requests.num_cached_hint[slot], load_.requests.num_computed_tokens[slot]);
  return load_.estimates.prefill_seconds(num_there, load_.requests.num_tokens[slot] - num_there);
}

double OverloadControl::running_seconds(Slot slot) const {
  const int32_t num_left = load_.requests.num_uncomputed_tokens(slot);
  if (num_left == 1) return 0.0;
  return load_.estimates.prefill_seconds(load_.requests.num_computed_tokens[slot], num_left);
}

// Whose online requests wait, and the one that asks.
int64_t OverloadControl::num_waiting_tenants(int32_t own) {
  tenants_.assign(1, own);
  for (const Slot slot : load_.waiting) {
    if (is_online(load_.requests, slot)) tenants_.push_back(load_.tenants.index(slot));
  }
  std::ranges::sort(tenants_);
  return std::unique(tenants_.begin(), tenants_.end()) - tenants_.begin();
}

}  // namespace hocket
