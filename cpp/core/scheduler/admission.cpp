#include "scheduler/admission.h"

#include <algorithm>

#include "base/check.h"
#include "requests/starving_turns.h"

namespace hocket {

Admission::Admission(SchedulerState* state, const Parts& parts)
    : state_(*state),
      config_(state->config),
      policy_(*state->policy),
      memory_(state->memory),
      requests_(state->requests),
      running_(state->running),
      plan_(state->plan),
      counters_(state->counters),
      parts_(parts) {
  for (auto* slots : {&preempted_, &victims_, &displaced_}) slots->reserve(state->config.max_num_seqs);
}

void Admission::begin_step() {
  preempted_.clear();
  step_kind_ = StepKind::kAny;
  end_turns(config_, running_, state_.waiting, state_.now, &requests_);
}

void Admission::carry_out(const Composition& composition) {
  for (const Slot slot : composition.preemptions) preempt(slot);
  for (const Reshape& change : composition.reshapes) parts_.forms.reshape(change);
  hand_out_grants(composition);
}

void Admission::ensure_progress(Composition* composition) {
  composition->clear();
  for (const Slot slot : running_) composition->grants.push_back({slot, requests_.num_uncomputed_tokens(slot), false});
  hand_out_grants(*composition);
  if (state_.budget < config_.max_num_batched_tokens || state_.waiting.empty()) return;
  composition->clear();
  // Everybody may have given way in turn. Alone, any request fits (validate()), so that this is the last resort.
  while (!running_.empty()) preempt(running_.back());
  const Slot first = state_.waiting.front();
  composition->grants.push_back({first, requests_.num_tokens[first], true});
  composition->is_strict = false;
  hand_out_grants(*composition);
}

void Admission::hand_out_grants(const Composition& composition) {
  bool is_admitting = true;
  for (const Grant& grant : composition.grants) {
    if (state_.budget == 0) break;
    if (!config_.enable_mixed_steps && !is_allowed(grant)) continue;
    const int32_t budget = state_.budget;
    const bool is_prefill = grant.is_admission || requests_.num_uncomputed_tokens(grant.slot) > 1;
    if (!grant.is_admission) {
      grant_running(grant.slot, grant.max_tokens);
    } else if (is_admitting) {
      const bool is_overtaking = composition.is_strict && overtakes_preempted(grant.slot);
      const bool is_refused = is_overtaking || admit(grant) == Admitted::kNo;
      is_admitting = !is_refused || !composition.is_strict;
    }
    if (state_.budget < budget) step_kind_ = is_prefill ? StepKind::kPrefill : StepKind::kDecode;
  }
}

// Without mixed steps the first grant that takes effect says what the step computes.
bool Admission::is_allowed(const Grant& grant) const {
  const bool is_prefill = grant.is_admission || requests_.num_uncomputed_tokens(grant.slot) > 1;
  return step_kind_ == StepKind::kAny || (step_kind_ == StepKind::kPrefill) == is_prefill;
}

// The request may have been preempted since the policy granted it tokens: then there is nothing to do.
void Admission::grant_running(Slot slot, int32_t max_tokens) {
  if (requests_.state[slot] != RequestState::kRunning) return;
  const int32_t begin = requests_.num_computed_tokens[slot];
  const int32_t num_recomputed = requests_.num_recomputed_tokens[slot];  // beside the new ones
  const int32_t num_tokens =
      std::min({max_tokens, requests_.num_uncomputed_tokens(slot), state_.budget - num_recomputed});
  if (num_tokens <= 0) return;
  const int32_t end = begin + num_tokens;
  if (!memory_.grow(requests_.row[slot], end) && !grow_by_preemption(slot, end)) return;
  requests_.num_scheduled_tokens[slot] = num_tokens;
  state_.budget -= num_tokens + num_recomputed;
}

// False if it was the request's own turn to give way.
bool Admission::grow_by_preemption(Slot slot, int32_t num_tokens) {
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
void Admission::collect_victims(Slot needy) {
  victims_.clear();
  policy_.victims(state_.snapshot(), needy, &victims_);
  std::ranges::make_heap(victims_, [&](Slot a, Slot b) { return policy_.yields_before(requests_, b, a); });
}

Slot Admission::take_victim() {
  std::ranges::pop_heap(victims_, [&](Slot a, Slot b) { return policy_.yields_before(requests_, b, a); });
  const Slot victim = victims_.back();
  victims_.pop_back();
  return victim;
}

// Whether a request preempted in this step has its place before the waiting `slot`. The policy did not know it waits.
bool Admission::overtakes_preempted(Slot slot) const {
  return std::ranges::any_of(preempted_, [&](Slot other) { return policy_.precedes(requests_, other, slot); });
}

// Admits a waiting request with up to max_tokens of its tokens. If it is refused, nothing has changed. What the grant's
// form means is the memory's and the parts' business.
Admission::Admitted Admission::admit(const Grant& grant) {
  const Slot slot = grant.slot;
  if (requests_.state[slot] != RequestState::kWaiting) return Admitted::kNo;
  const Restores::Choice restore_first = parts_.restores.choose(slot, grant.form);
  if (restore_first.way == RestoreWay::kLater) return Admitted::kRestoring;
  if (restore_first.way == RestoreWay::kFetch) {
    parts_.restores.begin_fetch(slot, restore_first);
    return Admitted::kRestoring;
  }
  const auto known = requests_.known_tokens(slot);
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  const int32_t num_cached = memory_.open(requests_.cache_salt[slot], known, grant.form, is_online);
  const bool is_resumed = parts_.saves.can_resume(slot, grant.form);
  const bool is_loaded = restore_first.way == RestoreWay::kLoad;
  const bool is_rounded = grant.form.kind == CacheKind::kInt8;  // what is cached of it, when the step begins
  const bool is_overlapped =
      is_loaded && !is_rounded && grant.max_tokens > 0 && parts_.restores.can_overlap(slot, restore_first);
  const int32_t num_saved = is_resumed ? requests_.num_saved_tokens[slot] : 0;
  const int32_t num_loaded = is_overlapped ? restore_first.end * config_.block_size : 0;
  const int32_t num_left = static_cast<int32_t>(known.size()) - std::max({num_cached, num_saved, num_loaded});
  const bool is_whole = !config_.enable_chunked_prefill && num_left <= config_.max_num_batched_tokens;
  const bool is_computed_now = !is_loaded || is_overlapped;
  const bool is_too_early = is_rounded && num_cached > 0 && parts_.restores.lands_in_step();
  if ((is_whole && is_computed_now && num_left > state_.budget) || is_too_early || !make_room(slot)) {
    memory_.close();
    return Admitted::kNo;
  }
  if (!is_computed_now) {
    const int32_t num_units = memory_.num_open_units();
    memory_.close();
    parts_.restores.begin_load(slot, restore_first, num_units);
    return Admitted::kRestoring;
  }
  if (is_overlapped) parts_.restores.note_load(slot, restore_first, 0.0);
  seat(slot, std::max(num_cached, num_loaded));
  if (is_overlapped) parts_.restores.begin_step_load(slot, restore_first);
  parts_.forms.on_seated(slot);
  is_resumed ? parts_.saves.resume(slot) : parts_.saves.drop(slot);
  grant_running(slot, grant.max_tokens);
  return Admitted::kYes;
}

// Preempts as few of those that `slot` may displace as it takes to fit the open request, or nobody if that is not
// enough.
bool Admission::make_room(Slot slot) {
  const auto num_running = state_.num_running();
  if (memory_.fits(num_running)) return true;
  collect_victims(slot);
  displaced_.clear();
  bool is_enough = false;
  while (!is_enough && !victims_.empty()) {
    displaced_.push_back(take_victim());
    memory_.withhold(requests_.row[displaced_.back()]);
    is_enough = memory_.fits(num_running);
  }
  for (const Slot victim : displaced_) memory_.unwithhold(requests_.row[victim]);
  if (!is_enough) return false;
  for (const Slot victim : displaced_) preempt(victim);
  return true;
}

void Admission::seat(Slot slot, int32_t num_cached_tokens) {
  state_.dequeue(slot);
  running_.push_back(slot);
  requests_.state[slot] = RequestState::kRunning;
  requests_.row[slot] = memory_.seat(&plan_.forms);
  requests_.num_computed_tokens[slot] = num_cached_tokens;
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  const double max_wait_ms = is_online ? config_.max_wait_ms : config_.max_offline_wait_ms;
  begin_turn(&requests_, slot, state_.now);
  requests_.is_starved[slot] |= requests_.pending_seconds(slot, state_.now) * 1000 > max_wait_ms;
  parts_.restores.on_seated(slot);
  parts_.announcements.on_seated(slot);
  if (requests_.num_cached_tokens[slot] != kNone) return;
  const int32_t num_cached_prompt = std::min(num_cached_tokens, requests_.num_prompt_tokens[slot]);
  requests_.num_cached_tokens[slot] = num_cached_prompt;
  parts_.restores.count_hits(slot, num_cached_prompt);
  counters_.num_cached_prompt_tokens += num_cached_prompt;
  counters_.num_queried_prompt_tokens += requests_.num_prompt_tokens[slot];
}

void Admission::preempt(Slot slot) {
  if (requests_.state[slot] != RequestState::kRunning) return;
  if (requests_.num_scheduled_tokens[slot] > 0) {
    state_.budget += requests_.num_scheduled_tokens[slot] + requests_.num_recomputed_tokens[slot];
  }
  parts_.restores.on_preempted(slot);
  parts_.saves.save(slot);
  parts_.forms.on_preempted(slot);
  memory_.release(requests_.row[slot]);
  std::erase(running_, slot);
  requests_.num_scheduled_tokens[slot] = 0;
  requests_.num_last_scheduled[slot] = 0;
  requests_.num_computed_tokens[slot] = 0;
  requests_.row[slot] = kNone;
  requests_.state[slot] = RequestState::kWaiting;
  state_.enqueue(slot);
  preempted_.push_back(slot);
  plan_.preempted_ids.push_back(requests_.id[slot]);
  ++counters_.num_preemptions;
  ++counters_.num_preempted[requests_.request_class[slot]];
}

}  // namespace hocket
