#include "scheduler.h"

#include <algorithm>
#include <cmath>

#include "check.h"
#include "class_order.h"
#include "plan_features.h"

namespace hocket {
namespace {

const SchedulerConfig& validated(const SchedulerConfig& config) {
  config.validate();
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, const Estimates& estimates)
    : config_(validated(config)),
      policy_(make_policy(config)),
      estimates_(estimates),
      refiner_(estimates.latency, {.prior_deviation = estimates.latency_deviation}),
      memory_(config, policy_->has_task_aware_eviction()),
      tiers_(config, &memory_),
      sessions_(config.max_num_sessions) {
  if (policy_->needs_offline_queue()) offline_ = std::make_unique<OfflineQueue>(config_, &requests_, &memory_);
  PlanWriter::reserve(config.max_num_seqs, config.max_num_batched_tokens, &plan_);
  output_.reserve(config.max_num_seqs);
  for (auto* slots : {&running_, &preempted_, &victims_, &displaced_, &restoring_}) slots->reserve(config.max_num_seqs);
  step_loads_.reserve(config.max_num_seqs);
  composition_.reserve(config.max_num_seqs);
  const auto num_changes = static_cast<size_t>(std::min(config.num_units, 1 << 16));  // of block tables in one step
  plan_.block_table_index.reserve(num_changes);
  plan_.block_table_unit.reserve(num_changes);
  tiers_.reserve(&plan_);
}

// ---- requests come and go ----

AddStatus Scheduler::add_request(const RequestSpec& spec) {
  const AddStatus status = validate(spec);
  if (status != AddStatus::kOk) return status;
  const Slot slot = requests_.add(spec, config_.max_model_len);
  if (!spec.session_id.empty()) join_session(slot, spec);
  if (tiers_.is_enabled()) requests_.keys[slot].reserve(config_.blocks_for(requests_.max_total_tokens[slot]));
  if (offline_) offline_->add(slot);
  enqueue(slot);
  return status;
}

AddStatus Scheduler::validate(const RequestSpec& spec) const {
  const auto is_negative = [](int32_t token) { return token < 0; };
  if (spec.prompt.empty() || std::ranges::any_of(spec.prompt, is_negative)) return AddStatus::kInvalid;
  if (spec.max_tokens < 1 || spec.min_tokens < 0 || !std::isfinite(spec.arrival_time)) return AddStatus::kInvalid;
  if (spec.request_class < 0 || spec.request_class >= kNumRequestClasses) return AddStatus::kInvalid;
  if (requests_.find(spec.id) != kNone) return AddStatus::kDuplicateId;

  const auto num_prompt = static_cast<int64_t>(spec.prompt.size());
  if (num_prompt + 1 > config_.max_model_len) return AddStatus::kTooLong;
  const int64_t num_output = std::min<int64_t>(spec.max_tokens, config_.max_model_len - num_prompt);
  if (config_.blocks_for(static_cast<int32_t>(num_prompt + num_output)) > memory_.num_kv_blocks()) {
    return AddStatus::kTooLong;
  }
  if (!config_.enable_chunked_prefill && num_prompt > config_.max_num_batched_tokens) return AddStatus::kTooLong;
  if (waiting_.size() + restoring_.size() >= static_cast<size_t>(config_.max_num_waiting)) return AddStatus::kQueueFull;
  return AddStatus::kOk;
}

bool Scheduler::abort(uint64_t request_id) {
  const Slot slot = requests_.find(request_id);
  if (slot == kNone) return false;
  requests_.forget_id(slot);
  if (requests_.num_scheduled_tokens[slot] > 0) {
    requests_.is_aborted[slot] = 1;
    return true;
  }
  if (requests_.state[slot] == RequestState::kWaiting) {
    dequeue(slot);
  } else {
    std::erase(requests_.state[slot] == RequestState::kRestoring ? restoring_ : running_, slot);
  }
  end_request(slot, FinishReason::kAbort);
  return true;
}

void Scheduler::end_request(Slot slot, FinishReason reason) {
  remember(slot);
  drop_lease(slot);
  if (requests_.row[slot] != kNone) {
    num_private_rows_ -= memory_.form(requests_.row[slot]) != CacheForm{};
    memory_.release(requests_.row[slot]);
  }
  drop_saved(slot);
  ++counters_.num_finished[static_cast<size_t>(reason)];
  requests_.free(slot);
}

void Scheduler::enqueue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), slot, before), slot);
  if (is_queued_offline(slot)) offline_->insert(slot);
  const auto known = requests_.known_tokens(slot);
  const auto reusable = known.first(known.size() - 1);
  requests_.num_cached_hint[slot] =
      memory_.num_cached_blocks(requests_.cache_salt[slot], reusable) * config_.block_size;
}

void Scheduler::dequeue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  const auto place = std::lower_bound(waiting_.begin(), waiting_.end(), slot, before);
  HOCKET_CHECK(place != waiting_.end() && *place == slot, "a waiting request is not in its place");
  waiting_.erase(place);
  if (is_queued_offline(slot)) offline_->take(slot);
}

// ---- schedule ----

const BatchPlan& Scheduler::schedule(double now) {
  HOCKET_CHECK(!is_open_, "schedule() while a plan is open");
  now_ = now;
  budget_ = config_.max_num_batched_tokens;
  plan_.preempted_ids.clear();
  plan_.block_table_index.clear();
  plan_.block_table_unit.clear();
  plan_.transfers.clear();
  plan_.projections.clear();
  plan_.projected_units.clear();
  preempted_.clear();
  step_loads_.clear();
  step_kind_ = StepKind::kAny;
  if (offline_) observe_online_use();
  if (config_.restores_from_tiers()) restore_waiting();

  if (config_.refine_latency) {
    limit_seconds_ = std::min(config_.max_offline_step_ms / 1000, tightest_slack(snapshot(), running_));
  }
  composition_.clear();
  policy_->compose(snapshot(), &composition_);
  for (const Slot slot : composition_.preemptions) preempt(slot);
  for (const Reshape& change : composition_.reshapes) reshape(change);
  hand_out_grants();
  if (budget_ == config_.max_num_batched_tokens && has_work()) ensure_progress();

  if (!step_loads_.empty()) drop_idle_returns();
  writer_.write(requests_, running_, &plan_);
  write_forms();
  if (!active_sessions_.empty() || next_lease_end_ <= now_) advance_sessions();
  write_step_loads();
  tiers_.write(&plan_);
  memory_.flush_changes(&plan_);
  is_open_ = !plan_.empty();
  if (is_open_) {
    ++plan_.step_id;
    ++counters_.num_steps;
  }
  return plan_;
}

Snapshot Scheduler::snapshot() const {
  return {now_,
          requests_,
          running_,
          waiting_,
          memory_,
          estimates_,
          output_forecast_,
          offline_.get(),
          config_.enable_reserve ? online_use_.reserve() : 0,
          config_.max_num_batched_tokens,
          config_.num_copy_blocks > 0 ? &tiers_ : nullptr};
}

void Scheduler::observe_online_use() {
  int64_t num_units = 0;
  for (const Slot slot : running_) {
    if (requests_.request_class[slot] == kOnlineClass) num_units += memory_.num_held_units(requests_.row[slot]);
  }
  online_use_.update(now_, num_units);
}

void Scheduler::hand_out_grants() {
  bool is_admitting = true;
  for (const Grant& grant : composition_.grants) {
    if (budget_ == 0) break;
    if (!config_.enable_mixed_steps && !is_allowed(grant)) continue;
    const int32_t budget = budget_;
    const bool is_prefill = grant.is_admission || requests_.num_uncomputed_tokens(grant.slot) > 1;
    if (!grant.is_admission) {
      grant_running(grant.slot, grant.max_tokens);
    } else if (is_admitting) {
      const bool is_overtaking = composition_.is_strict && overtakes_preempted(grant.slot);
      const bool is_refused = is_overtaking || admit(grant.slot, grant.max_tokens, grant.form) == Admission::kRefused;
      is_admitting = !is_refused || !composition_.is_strict;
    }
    if (budget_ < budget) step_kind_ = is_prefill ? StepKind::kPrefill : StepKind::kDecode;
  }
}

// Without mixed steps the first grant that takes effect says what the step computes.
bool Scheduler::is_allowed(const Grant& grant) const {
  const bool is_prefill = grant.is_admission || requests_.num_uncomputed_tokens(grant.slot) > 1;
  return step_kind_ == StepKind::kAny || (step_kind_ == StepKind::kPrefill) == is_prefill;
}

void Scheduler::ensure_progress() {
  composition_.clear();
  for (const Slot slot : running_) composition_.grants.push_back({slot, requests_.num_uncomputed_tokens(slot), false});
  hand_out_grants();
  if (budget_ < config_.max_num_batched_tokens || waiting_.empty()) return;
  composition_.clear();
  // Everybody may have given way in turn. Alone, any request fits (validate()), so that this is the last resort.
  while (!running_.empty()) preempt(running_.back());
  const Slot first = waiting_.front();
  composition_.grants.push_back({first, requests_.num_tokens[first], true});
  composition_.is_strict = false;
  hand_out_grants();
}

// The request may have been preempted since the policy granted it tokens: then there is nothing to do.
void Scheduler::grant_running(Slot slot, int32_t max_tokens) {
  if (requests_.state[slot] != RequestState::kRunning) return;
  const int32_t begin = requests_.num_computed_tokens[slot];
  // Uncached tokens are recomputed beside the new ones.
  const int32_t num_uncached = requests_.num_unstored_tokens[slot];
  const int32_t num_tokens = std::min({max_tokens, requests_.num_uncomputed_tokens(slot), budget_ - num_uncached});
  if (num_tokens <= 0) return;
  const int32_t end = begin + num_tokens;
  if (!memory_.grow(requests_.row[slot], end) && !grow_by_preemption(slot, end)) return;
  requests_.num_scheduled_tokens[slot] = num_tokens;
  budget_ -= num_tokens + num_uncached;
}

// Computed tokens that are not stored.
int32_t Scheduler::num_uncached_tokens(Slot slot) const {
  const int32_t num_uncached = memory_.form(requests_.row[slot]).num_uncached_blocks * config_.block_size;
  return std::min(num_uncached, requests_.num_computed_tokens[slot]);
}

// False if it was the request's own turn to give way.
bool Scheduler::grow_by_preemption(Slot slot, int32_t num_tokens) {
  collect_victims(slot);
  while (!victims_.empty()) {
    const Slot victim = take_victim();
    preempt(victim);
    if (victim == slot) return false;
    if (memory_.grow(requests_.row[slot], num_tokens)) return true;
  }
  HOCKET_CHECK(false, "the policy did not name the request itself among the victims");
}

// victims_ is a heap with the next to go on top: few of many are ever needed.
void Scheduler::collect_victims(Slot needy) {
  victims_.clear();
  policy_->victims(snapshot(), needy, &victims_);
  std::ranges::make_heap(victims_, [&](Slot a, Slot b) { return policy_->yields_before(requests_, b, a); });
}

Slot Scheduler::take_victim() {
  std::ranges::pop_heap(victims_, [&](Slot a, Slot b) { return policy_->yields_before(requests_, b, a); });
  const Slot victim = victims_.back();
  victims_.pop_back();
  return victim;
}

// Whether a request preempted in this step has its place before the waiting `slot`. The policy did not know it waits.
bool Scheduler::overtakes_preempted(Slot slot) const {
  return std::ranges::any_of(preempted_, [&](Slot other) { return policy_->precedes(requests_, other, slot); });
}

// Admits a waiting request with up to max_tokens of its tokens. If it is refused, nothing has changed.
Scheduler::Admission Scheduler::admit(Slot slot, int32_t max_tokens, CacheForm form) {
  if (requests_.state[slot] != RequestState::kWaiting) return Admission::kRefused;
  const RestoreChoice restore_first = form == CacheForm{} ? choose_restore(slot) : RestoreChoice{};
  if (restore_first.step == RestoreStep::kLater) return Admission::kRestoring;
  if (restore_first.step == RestoreStep::kFetch) {
    begin_fetch(slot, restore_first);
    return Admission::kRestoring;
  }
  const auto known = requests_.known_tokens(slot);
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  const int32_t num_cached = memory_.open(requests_.cache_salt[slot], known, form, is_online);
  const bool is_restored = can_restore(slot, form);
  const bool is_loaded = restore_first.step == RestoreStep::kLoad;
  const bool is_overlapped = is_loaded && max_tokens > 0 && can_overlap(slot, restore_first, form);
  const int32_t num_saved = is_restored ? requests_.num_saved_tokens[slot] : 0;
  const int32_t num_loaded = is_overlapped ? restore_first.end * config_.block_size : 0;
  const int32_t num_left = static_cast<int32_t>(known.size()) - std::max({num_cached, num_saved, num_loaded});
  const bool is_whole = !config_.enable_chunked_prefill && num_left <= config_.max_num_batched_tokens;
  const bool is_computed_now = !is_loaded || is_overlapped;
  if ((is_whole && is_computed_now && num_left > budget_) || !make_room(slot)) {
    memory_.close();
    return Admission::kRefused;
  }
  if (!is_computed_now) {
    const int32_t num_units = memory_.num_open_units();
    memory_.close();
    begin_load(slot, restore_first, num_units);
    return Admission::kRestoring;
  }
  if (is_overlapped) note_load(slot, restore_first, 0.0);
  seat(slot, std::max(num_cached, num_loaded));
  if (is_overlapped) begin_step_load(slot, restore_first);
  if (form.num_uncached_blocks > 0) begin_behind_copies(slot);
  num_private_rows_ += form != CacheForm{};
  is_restored ? restore(slot) : drop_saved(slot);
  grant_running(slot, max_tokens);
  return Admission::kAdmitted;
}

// Preempts as few of those that `slot` may displace as it takes to fit the open request, or nobody if that is not
// enough.
bool Scheduler::make_room(Slot slot) {
  const auto num_running = static_cast<int32_t>(running_.size());
  if (memory_.fits(num_running)) return true;
  collect_victims(slot);
  displaced_.clear();
  bool is_enough = false;
  while (!is_enough && !victims_.empty()) {
    displaced_.push_back(take_victim());
    memory_.withhold(requests_.row[displaced_.back()]);
    is_enough = memory_.fits(num_running);
  }
  for (const Slot victim : displaced_) memory_.restore(requests_.row[victim]);
  if (!is_enough) return false;
  for (const Slot victim : displaced_) preempt(victim);
  return true;
}

void Scheduler::seat(Slot slot, int32_t num_cached_tokens) {
  dequeue(slot);
  running_.push_back(slot);
  requests_.state[slot] = RequestState::kRunning;
  requests_.row[slot] = memory_.seat();
  requests_.num_computed_tokens[slot] = num_cached_tokens;
  requests_.num_loadable_tokens[slot] = 0;
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  const double max_wait_ms = is_online ? config_.max_wait_ms : config_.max_offline_wait_ms;
  requests_.is_starved[slot] |= requests_.pending_seconds(slot, now_) * 1000 > max_wait_ms;
  drop_lease(slot);
  note_admission(slot);
  if (requests_.num_cached_tokens[slot] != kNone) return;
  requests_.num_cached_tokens[slot] = num_cached_tokens;
  count_hits(slot, num_cached_tokens);
  counters_.num_cached_prompt_tokens += num_cached_tokens;
  counters_.num_queried_prompt_tokens += requests_.num_prompt_tokens[slot];
}

void Scheduler::preempt(Slot slot) {
  if (requests_.state[slot] != RequestState::kRunning) return;
  const bool is_private = memory_.form(requests_.row[slot]) != CacheForm{};
  if (requests_.num_scheduled_tokens[slot] > 0) {
    budget_ += requests_.num_scheduled_tokens[slot] + requests_.num_unstored_tokens[slot];
  }
  num_private_rows_ -= is_private;
  drop_step_load(slot);
  if (config_.num_host_units > 0) save(slot);
  PlanWriter::drop_projections(requests_.row[slot], config_.hidden_units_per_block(), &plan_);
  memory_.release(requests_.row[slot]);
  std::erase(running_, slot);
  requests_.num_scheduled_tokens[slot] = 0;
  requests_.num_last_scheduled[slot] = 0;
  requests_.num_unstored_tokens[slot] = 0;
  requests_.num_computed_tokens[slot] = 0;
  requests_.num_copied_blocks[slot] = requests_.num_loaded_layers[slot] = 0;
  requests_.row[slot] = kNone;
  requests_.state[slot] = RequestState::kWaiting;
  requests_.num_restores[slot] = 0;
  enqueue(slot);
  preempted_.push_back(slot);
  plan_.preempted_ids.push_back(requests_.id[slot]);
  ++counters_.num_preemptions;
  ++counters_.num_preempted[requests_.request_class[slot]];
}

void Scheduler::reshape(const Reshape& change) {
  const Slot slot = change.slot;
  if (requests_.state[slot] != RequestState::kRunning) return;
  const Row row = requests_.row[slot];
  const CacheForm before = memory_.form(row);
  const bool was_private = before != CacheForm{};
  if (!memory_.reshape(row, change.form, &plan_)) return;
  count_conversion(before, change.form);
  num_private_rows_ += (change.form != CacheForm{}) - was_private;
  auto& num_unstored = requests_.num_unstored_tokens[slot];
  num_unstored = std::max(num_unstored, num_uncached_tokens(slot));
  if (change.form.num_uncached_blocks < before.num_uncached_blocks) bring_back(slot, before.num_uncached_blocks);
}

void Scheduler::write_forms() {
  plan_.cache_kinds.clear();
  plan_.uncached_tokens.clear();
  plan_.hidden_tokens.clear();
  plan_.missing_tokens.clear();
  plan_.uncached_token_ids.clear();
  if (!config_.has_forms()) return;
  for (const Slot slot : writer_.seq_slots()) {
    const Row row = requests_.row[slot];
    const CacheForm form = memory_.form(row);
    const int32_t begin = requests_.num_computed_tokens[slot];
    const int32_t num_shared = memory_.num_indexed_blocks(row) * config_.block_size;
    plan_.cache_kinds.push_back(static_cast<int32_t>(form.kind));
    plan_.uncached_tokens.push_back(requests_.num_unstored_tokens[slot]);
    plan_.hidden_tokens.push_back(form.kind == CacheKind::kHidden ? std::max(0, begin - num_shared) : 0);
    plan_.missing_tokens.push_back(form.num_uncached_blocks * config_.block_size);
    const auto recomputed = requests_.known_tokens(slot).first(requests_.num_unstored_tokens[slot]);
    plan_.uncached_token_ids.insert(plan_.uncached_token_ids.end(), recomputed.begin(), recomputed.end());
  }
  if (config_.enable_partial_caching) write_copies();
}

// ---- commit ----

const StepOutput& Scheduler::commit(std::span<const int32_t> sampled, double now) {
  HOCKET_CHECK(is_open_, "commit() without an open plan");
  HOCKET_CHECK(sampled.size() == plan_.sample_seqs.size(), "commit() needs one token per entry of sample_seqs");
  HOCKET_CHECK(std::ranges::all_of(sampled, [](int32_t token) { return token >= 0; }), "a sampled token is negative");
  is_open_ = false;
  const bool is_copying = !plan_.transfers.empty() || plan_.num_step_loads > 0 || !plan_.copy_slots.empty();
  if (config_.refine_latency && !is_copying) learn_from_step(now - now_);
  count_seconds(now - now_);
  now_ = now;
  output_.clear();
  let_go_of_copies();

  const auto slots = writer_.seq_slots();
  bool any_ended = false;
  size_t next_sample = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    const Slot slot = slots[s];
    commit_tokens(slot);
    if (requests_.is_draft[slot]) {
      end_draft_step(slot);
      any_ended = true;
      continue;
    }
    const bool is_sampled = next_sample < sampled.size() && plan_.sample_seqs[next_sample] == static_cast<int32_t>(s);
    const int32_t token = is_sampled ? sampled[next_sample++] : kNone;
    auto reason = FinishReason::kNone;
    if (requests_.is_aborted[slot]) {
      reason = FinishReason::kAbort;
    } else if (is_sampled) {
      reason = commit_sample(slot, token);
    }
    if (reason == FinishReason::kNone) continue;
    if (reason != FinishReason::kAbort) requests_.forget_id(slot);
    end_request(slot, reason);
    any_ended = true;
  }
  if (any_ended) {
    std::erase_if(running_, [&](Slot slot) { return requests_.state[slot] != RequestState::kRunning; });
  }
  return output_;
}

void Scheduler::learn_from_step(double seconds) {
  const BatchFeatures features = plan_features(plan_);
  estimates_.margin.observe(estimates_.latency.predict(features), seconds, limit_seconds_);
  refiner_.observe(features, seconds);
  estimates_.latency = refiner_.model();
}

// Whose tokens the step computed. REQUIRES: they are still counted as scheduled.
void Scheduler::count_seconds(double seconds) {
  std::array<int64_t, kNumRequestClasses> num_tokens = {};
  int64_t num_all = 0;
  for (const Slot slot : writer_.seq_slots()) {
    num_tokens[requests_.request_class[slot]] += requests_.num_scheduled_tokens[slot];
    num_all += requests_.num_scheduled_tokens[slot];
  }
  if (num_all == 0) return;
  for (size_t i = 0; i < num_tokens.size(); ++i) {
    counters_.class_seconds[i] += seconds * static_cast<double>(num_tokens[i]) / static_cast<double>(num_all);
  }
  if (num_tokens[kOfflineClass] > 0 && num_tokens[kOnlineClass] == 0) counters_.offline_only_seconds += seconds;
}

// The tokens scheduled for the step have their cache now.
void Scheduler::commit_tokens(Slot slot) {
  requests_.num_computed_tokens[slot] += requests_.num_scheduled_tokens[slot];
  requests_.num_last_scheduled[slot] = requests_.num_scheduled_tokens[slot];
  requests_.num_scheduled_tokens[slot] = 0;
  const Row row = requests_.row[slot];
  if (config_.enable_partial_caching) requests_.num_unstored_tokens[slot] = num_uncached_tokens(slot);
  const int32_t num_computed = requests_.num_computed_tokens[slot];
  if (config_.num_copy_blocks > 0) save_copies(slot);
  if (!memory_.can_index(row, num_computed)) return;
  const int32_t num_indexed = memory_.num_indexed_blocks(row);
  const int32_t num_blocks = num_computed / config_.block_size;
  if (offline_) {
    memory_.index(row, requests_.computed_tokens(slot), offline_->pending_counts(slot, num_indexed, num_blocks));
    offline_->note_cached(slot, num_blocks);
  } else {
    memory_.index(row, requests_.computed_tokens(slot));
  }
  if (tiers_.is_enabled()) save_completed(slot, num_indexed, num_blocks);
}

FinishReason Scheduler::commit_sample(Slot slot, int32_t token) {
  requests_.append_token(slot, token);
  requests_.note_token(slot, now_);
  const FinishReason reason = requests_.finish_reason(slot, token);
  const int32_t num_output = requests_.num_output_tokens(slot);
  if (reason != FinishReason::kNone) output_forecast_.observe(requests_.request_class[slot], num_output);
  ++counters_.num_output_tokens;
  if (num_output == 1) counters_.num_prompt_tokens += requests_.num_prompt_tokens[slot];
  output_.request_ids.push_back(requests_.id[slot]);
  output_.token_ids.push_back(token);
  output_.finish_reasons.push_back(static_cast<uint8_t>(reason));
  output_.num_output_tokens.push_back(num_output);
  output_.num_cached_tokens.push_back(requests_.num_cached_tokens[slot]);
  return reason;
}

}  // namespace hocket
