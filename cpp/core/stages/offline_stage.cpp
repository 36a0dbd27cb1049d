#include "stages/offline_stage.h"

#include <algorithm>

#include "stages/class_order.h"
#include "stages/residents.h"

namespace hocket {
namespace {

constexpr int32_t kMaxWaiting = 12;   // candidates from the queue
constexpr int32_t kMaxRunning = 256;  // candidates among those that run; the rest goes on as before
constexpr double kDecodeValue = 4.0;  // by rate: tokens of prefill that a decode is worth
constexpr double kDecodeBonus = 1.5;  // a decode brings an end, and the end of a request frees memory
constexpr double kSharers = 16;       // requests that share what a step costs anyway, typically
constexpr double kOthersShare = 0.5;  // of the time that a step takes with the favoured ones

std::span<const Slot> waiting_of(const Snapshot& snapshot, int32_t rank) {
  const auto is_before = [&](int32_t other) {
    return [&, other](Slot slot) { return class_rank(snapshot.requests, slot) < other; };
  };
  const auto begin = std::ranges::partition_point(snapshot.waiting, is_before(rank));
  return {begin, std::ranges::partition_point(begin, snapshot.waiting.end(), is_before(rank + 1))};
}

}  // namespace

std::span<const Slot> waiting_online(const Snapshot& snapshot) { return waiting_of(snapshot, 0); }
std::span<const Slot> waiting_favoured(const Snapshot& snapshot) { return waiting_of(snapshot, 1); }
std::span<const Slot> waiting_offline(const Snapshot& snapshot) { return waiting_of(snapshot, 2); }

// A request that was preempted may have waited less than one that came after it and was never served. Behind the first
// such one nobody has waited longer.
Slot starving_offline(const SchedulerConfig& config, const Snapshot& snapshot) {
  const RequestTable& requests = snapshot.requests;
  for (const Slot slot : waiting_offline(snapshot)) {
    if (is_starving(config, requests, slot, snapshot.now)) return slot;
    if (requests.num_output_tokens(slot) == 0) break;
  }
  return kNone;
}

OfflineStage::OfflineStage(const SchedulerConfig& config, PlanObjective objective)
    : config_(config),
      objective_(objective),
      search_({.block_size = config.block_size,
               .units_per_block = config.units_per_block(),
               .chunk_quantum = 64,
               .max_plans = 256,
               .decode_value = kDecodeValue,
               .objective = objective}) {}

// By rate, a token is worth a token. By benefit, it is worth the time that it takes in the long run, in tokens of a
// short prompt: all of the work has to be done at some time.
double OfflineStage::token_value(const LatencyModel& latency, int32_t context, int32_t remaining) const {
  const LatencyCoefficients& k = latency.coefficients();
  if (objective_ == PlanObjective::kRate || k.prefill_token <= 0) return 0.0;
  if (remaining > 1) return 1.0 + k.prefill_pair * (2.0 * context + remaining) / k.prefill_token;
  const double shared = (k.step_base + k.decode_base) / kSharers;
  return kDecodeBonus * (shared + k.decode_seq + k.decode_context * context) / k.prefill_token;
}

void OfflineStage::begin(const Snapshot& snapshot, int64_t reserve) {
  reserve_ = reserve;
  room_ = snapshot.memory.num_available_units() - reserve - snapshot.memory.num_promised_units();
}

bool OfflineStage::leaves_reserve(const Snapshot& snapshot, Slot slot, const StepBuilder& builder) const {
  const bool is_alone = snapshot.running.empty() && builder.num_advanced() == 0;
  return reserve_ == 0 || is_alone || units_needed(config_, snapshot, slot).kv <= room_;
}

bool OfflineStage::admit(const Snapshot& snapshot, Slot slot, StepBuilder* builder) {
  if (builder->prefill(slot, {}, !config_.enable_chunked_prefill) == 0) return false;
  room_ -= units_needed(config_, snapshot, slot).kv;
  return true;
}

bool OfflineStage::advance_favoured(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder) {
  const auto waiting = waiting_favoured(snapshot);
  if (running.empty() && waiting.empty()) return false;
  const RequestTable& requests = snapshot.requests;
  leaders_.clear();
  const auto prefill = [&](Slot slot) {
    leaders_.push_back(slot);
    return builder->prefill(slot, {}, !config_.enable_chunked_prefill) > 0;
  };
  for (const Slot slot : running) {
    if (requests.num_uncomputed_tokens(slot) == 1) builder->try_decode(slot);
  }
  bool has_room = true;
  for (const Slot slot : running) {
    if (has_room && requests.num_uncomputed_tokens(slot) > 1) has_room = prefill(slot);
  }
  for (const Slot slot : waiting) {
    if (!has_room || builder->tokens_left() == 0) break;
    if (is_being_computed(snapshot, slot) || !leaves_reserve(snapshot, slot, *builder)) continue;
    leaders_.push_back(slot);
    has_room = admit(snapshot, slot, builder);
  }
  builder->limit_seconds(std::min(builder->max_seconds(), (1 + kOthersShare) * builder->seconds()));
  return true;
}

// Whether one of the leaders is about to compute what follows the request's cached tokens.
bool OfflineStage::is_being_computed(const Snapshot& snapshot, Slot slot) const {
  if (snapshot.offline == nullptr) return false;
  const int32_t num_cached = snapshot.offline->num_cached_tokens(slot);
  return std::ranges::any_of(
      leaders_, [&](Slot leader) { return snapshot.offline->is_being_computed(slot, num_cached, leader); });
}

void OfflineStage::fill_in_order(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder) {
  const RequestTable& requests = snapshot.requests;
  for (const Slot slot : running) {
    if (requests.num_uncomputed_tokens(slot) == 1) builder->try_decode(slot);
  }
  const bool is_whole = !config_.enable_chunked_prefill;
  for (const Slot slot : running) {
    if (requests.num_uncomputed_tokens(slot) > 1 && builder->prefill(slot, {}, is_whole) == 0) return;
  }
  auto num_rows = snapshot.memory.num_free_rows();
  const Slot starving = starving_offline(config_, snapshot);
  for (const Slot slot : waiting_offline(snapshot)) {
    if (slot == starving || !leaves_reserve(snapshot, slot, *builder)) continue;
    if (num_rows-- == 0 || builder->tokens_left() == 0 || !admit(snapshot, slot, builder)) return;
  }
}

// Where no pick has relatives, nor uses what is cached or about to be, who came first goes first: to prefer prompts
// like those that run finishes the short ones and leaves the long ones for later.
void OfflineStage::prefer_oldest(const Snapshot& snapshot) {
  const OfflineQueue& queue = *snapshot.offline;
  for (const Slot slot : waiting_) {
    if (queue.num_cached_tokens(slot) > 0 || queue.num_related(slot) > 1) return;
    if (is_being_computed(snapshot, slot)) return;
  }
  const auto oldest = waiting_offline(snapshot);
  waiting_.assign(oldest.begin(), oldest.begin() + std::min<std::ptrdiff_t>(std::ssize(oldest), kMaxWaiting));
}

void OfflineStage::gather(const Snapshot& snapshot, std::span<const Slot> running, int64_t room) {
  const RequestTable& requests = snapshot.requests;
  candidates_.clear();
  slots_.clear();
  leaders_.clear();
  int64_t num_tokens = 0;
  for (const Slot slot : running.first(std::min<size_t>(running.size(), kMaxRunning))) {
    num_tokens += requests.num_tokens[slot];
    if (requests.num_uncomputed_tokens(slot) > 1) leaders_.push_back(slot);
    candidates_.push_back({.context = requests.num_computed_tokens[slot],
                           .remaining = requests.num_uncomputed_tokens(slot),
                           .last_tokens = requests.num_last_scheduled[slot],
                           .is_resident = true,
                           .value = token_value(snapshot.estimates.latency, requests.num_computed_tokens[slot],
                                                requests.num_uncomputed_tokens(slot))});
    slots_.push_back(slot);
  }
  waiting_.clear();
  const auto typical = running.empty() ? 1 : static_cast<int32_t>(num_tokens / static_cast<int64_t>(running.size()));
  snapshot.offline->candidates(std::max(1, typical), kMaxWaiting, &waiting_);
  if (objective_ == PlanObjective::kBenefit) prefer_oldest(snapshot);
  const Slot starving = starving_offline(config_, snapshot);
  for (const Slot slot : waiting_) {
    if (slot == starving || is_favoured(requests, slot)) continue;
    // A prompt is seated with all of its memory, not with the first chunk's.
    if (units_needed(config_, snapshot, slot).kv > room) continue;
    if (objective_ == PlanObjective::kBenefit && is_being_computed(snapshot, slot)) continue;
    const int32_t num_cached = snapshot.offline->num_cached_tokens(slot);
    const int32_t context = std::max(num_cached, requests.num_saved_tokens[slot]);
    const int32_t remaining = std::max(1, requests.num_tokens[slot] - context);
    candidates_.push_back({.context = context,
                           .remaining = remaining,
                           .cached_tokens = num_cached,
                           .is_resident = false,
                           .value = token_value(snapshot.estimates.latency, context, remaining)});
    slots_.push_back(slot);
    leaders_.push_back(slot);
  }
}

void OfflineStage::search(const Snapshot& snapshot, std::span<const Slot> running, StepBuilder* builder,
                          Composition* composition) {
  const MemoryView& memory = snapshot.memory;
  const int64_t num_available = memory.num_available_units() - reserve_;
  const int64_t num_free = std::min<int64_t>(num_available, memory.num_available_units() - memory.num_valuable_units());
  int64_t num_promised = 0;
  for (const Slot slot : running) num_promised += memory.num_promised_units(snapshot.requests.row[slot]);
  // By rate a lone request may take what others will need; by benefit the punishment says when that is wise.
  const bool is_free_only = objective_ == PlanObjective::kRate && !running.empty();
  int64_t room = (is_free_only ? num_free : num_available) - memory.num_promised_units();
  gather(snapshot, running, room);
  if (candidates_.empty() || builder->tokens_left() == 0) return;
  if (!snapshot.estimates.knows_latency()) return fill_in_order(snapshot, running, builder);
  PlanBudgets budgets;
  budgets.max_seconds = builder->max_seconds();
  budgets.max_tokens = builder->tokens_left();
  budgets.max_requests = snapshot.memory.num_free_rows() + static_cast<int32_t>(running.size());
  budgets.free_units = std::max({int64_t{0}, num_free, num_promised});
  budgets.valuable_units = std::max<int64_t>(0, num_available - budgets.free_units);
  budgets.tokens_per_unit = static_cast<double>(config_.block_size) / config_.units_per_block();
  for (const Slot slot : running.subspan(std::min<size_t>(running.size(), kMaxRunning))) {
    if (snapshot.requests.num_uncomputed_tokens(slot) == 1) builder->try_decode(slot);
  }
  const PlanResult plan =
      search_.search(snapshot.estimates.latency, candidates_, budgets, builder->num_advanced(), builder->batch());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (plan.tokens[i] == 0) continue;
    // Each of them had room; the search counts their chunks, not what they will need together.
    if (!candidates_[i].is_resident) {
      const int32_t num_units = units_needed(config_, snapshot, slots_[i]).kv;
      if (num_units > room) continue;
      room -= num_units;
    }
    composition->grants.push_back({slots_[i], plan.tokens[i], !candidates_[i].is_resident, {}});
  }
}

}  // namespace hocket
