#include "scheduler.h"

#include <algorithm>
#include <cmath>

#include "check.h"

namespace hocket {
namespace {

const SchedulerConfig& validated(const SchedulerConfig& config) {
  config.validate();
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)), policy_(make_policy(config.policy)), memory_(config) {
  PlanWriter::reserve(config.max_num_seqs, config.max_num_batched_tokens, &plan_);
  output_.reserve(config.max_num_seqs);
  running_.reserve(config.max_num_seqs);
}

// ---- requests come and go ----

AddStatus Scheduler::add_request(const RequestSpec& spec) {
  const AddStatus status = validate(spec);
  if (status == AddStatus::kOk) enqueue(requests_.add(spec, config_.max_model_len));
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
  if (config_.blocks_for(static_cast<int32_t>(num_prompt + num_output)) > memory_.num_blocks()) {
    return AddStatus::kTooLong;
  }
  if (!config_.enable_chunked_prefill && num_prompt > config_.max_num_batched_tokens) return AddStatus::kTooLong;
  if (waiting_.size() >= static_cast<size_t>(config_.max_num_waiting)) return AddStatus::kQueueFull;
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
    std::erase(running_, slot);
  }
  end_request(slot, FinishReason::kAbort);
  return true;
}

void Scheduler::end_request(Slot slot, FinishReason reason) {
  if (requests_.row[slot] != kNone) memory_.release(requests_.row[slot]);
  ++counters_.num_finished[static_cast<size_t>(reason)];
  requests_.free(slot);
}

void Scheduler::enqueue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), slot, before), slot);
}

void Scheduler::dequeue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  const auto place = std::lower_bound(waiting_.begin(), waiting_.end(), slot, before);
  HOCKET_CHECK(place != waiting_.end() && *place == slot, "a waiting request is not in its place");
  waiting_.erase(place);
}

// ---- schedule ----

const BatchPlan& Scheduler::schedule(double now) {
  HOCKET_CHECK(!is_open_, "schedule() while a plan is open");
  now_ = now;
  budget_ = config_.max_num_batched_tokens;
  plan_.preempted_ids.clear();
  plan_.block_table_index.clear();
  plan_.block_table_unit.clear();

  preempted_.clear();
  composition_.grants.clear();
  policy_->compose(snapshot(), &composition_);
  bool is_admitting = true;
  for (const Grant& grant : composition_.grants) {
    if (budget_ == 0) break;
    if (!grant.is_admission) {
      grant_running(grant.slot, grant.max_tokens);
    } else if (is_admitting) {
      is_admitting = !overtakes_preempted(grant.slot) && admit(grant.slot, grant.max_tokens);
    }
  }

  writer_.write(requests_, running_, &plan_);
  memory_.flush_changes(&plan_);
  is_open_ = !plan_.empty();
  if (is_open_) {
    ++plan_.step_id;
    ++counters_.num_steps;
  }
  return plan_;
}

Snapshot Scheduler::snapshot() const {
  return {now_, requests_, running_, waiting_, config_.max_num_batched_tokens, memory_.num_free_rows()};
}

// The request may have been preempted since the policy granted it tokens: then there is nothing to do.
void Scheduler::grant_running(Slot slot, int32_t max_tokens) {
  if (requests_.state[slot] != RequestState::kRunning) return;
  const int32_t num_tokens = std::min({max_tokens, requests_.num_uncomputed_tokens(slot), budget_});
  const int32_t end = requests_.num_computed_tokens[slot] + num_tokens;
  if (!memory_.grow(requests_.row[slot], end) && !grow_by_preemption(slot, end)) return;
  requests_.num_scheduled_tokens[slot] = num_tokens;
  budget_ -= num_tokens;
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

// Admits a waiting request with up to max_tokens of its tokens. False if it has to wait, and then nothing has changed.
bool Scheduler::admit(Slot slot, int32_t max_tokens) {
  const auto known = requests_.known_tokens(slot);
  const int32_t num_cached = memory_.open(requests_.cache_salt[slot], known);
  const int32_t num_left = static_cast<int32_t>(known.size()) - num_cached;
  const bool is_whole = !config_.enable_chunked_prefill && num_left <= config_.max_num_batched_tokens;
  if ((is_whole && num_left > budget_) || !make_room(slot)) {
    memory_.close();
    return false;
  }
  seat(slot, num_cached);
  grant_running(slot, max_tokens);
  return true;
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
  if (requests_.num_cached_tokens[slot] != kNone) return;
  requests_.num_cached_tokens[slot] = num_cached_tokens;
  counters_.num_cached_prompt_tokens += num_cached_tokens;
  counters_.num_queried_prompt_tokens += requests_.num_prompt_tokens[slot];
}

void Scheduler::preempt(Slot slot) {
  memory_.release(requests_.row[slot]);
  std::erase(running_, slot);
  budget_ += requests_.num_scheduled_tokens[slot];
  requests_.num_scheduled_tokens[slot] = 0;
  requests_.num_computed_tokens[slot] = 0;
  requests_.row[slot] = kNone;
  requests_.state[slot] = RequestState::kWaiting;
  enqueue(slot);
  preempted_.push_back(slot);
  plan_.preempted_ids.push_back(requests_.id[slot]);
  ++counters_.num_preemptions;
}

// ---- commit ----

const StepOutput& Scheduler::commit(std::span<const int32_t> sampled, double now) {
  HOCKET_CHECK(is_open_, "commit() without an open plan");
  HOCKET_CHECK(sampled.size() == plan_.sample_seqs.size(), "commit() needs one token per entry of sample_seqs");
  HOCKET_CHECK(std::ranges::all_of(sampled, [](int32_t token) { return token >= 0; }), "a sampled token is negative");
  is_open_ = false;
  now_ = now;
  output_.clear();

  const auto slots = writer_.seq_slots();
  bool any_ended = false;
  size_t next_sample = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    const Slot slot = slots[s];
    commit_tokens(slot);
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
    std::erase_if(running_, [&](Slot slot) { return requests_.state[slot] == RequestState::kFree; });
  }
  return output_;
}

// The tokens scheduled for the step have their cache now.
void Scheduler::commit_tokens(Slot slot) {
  requests_.num_computed_tokens[slot] += requests_.num_scheduled_tokens[slot];
  requests_.num_scheduled_tokens[slot] = 0;
  memory_.index(requests_.row[slot], requests_.computed_tokens(slot));
}

FinishReason Scheduler::commit_sample(Slot slot, int32_t token) {
  requests_.append_token(slot, token);
  const FinishReason reason = requests_.finish_reason(slot, token);
  const int32_t num_output = requests_.num_output_tokens(slot);
  ++counters_.num_output_tokens;
  if (num_output == 1) counters_.num_prompt_tokens += requests_.num_prompt_tokens[slot];
  output_.request_ids.push_back(requests_.id[slot]);
  output_.token_ids.push_back(token);
  output_.finish_reasons.push_back(static_cast<uint8_t>(reason));
  output_.num_output_tokens.push_back(num_output);
  output_.num_cached_tokens.push_back(requests_.num_cached_tokens[slot]);
  return reason;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.counters = counters_;
  for (const Slot slot : running_) ++stats.num_running[requests_.request_class[slot]];
  for (const Slot slot : waiting_) {
    ++stats.num_waiting[requests_.request_class[slot]];
    stats.num_waiting_tokens += requests_.num_tokens[slot];
  }
  const BlockPool& pool = memory_.pool();
  stats.num_units = pool.unit_pool().num_units();
  stats.num_free_units = pool.unit_pool().num_free();
  stats.num_cached_units = int64_t{memory_.cache().num_evictable_blocks()} * pool.units_per_block();
  stats.num_evicted_blocks = memory_.cache().num_evicted_blocks();
  return stats;
}

}  // namespace hocket
