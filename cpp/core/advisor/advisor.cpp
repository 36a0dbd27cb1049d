#include "advisor/advisor.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/check.h"
#include "requests/starving_turns.h"
#include "stages/class_order.h"
#include "stages/residents.h"

namespace hocket {
namespace {

SchedulerConfig validated(SchedulerConfig config) {
  config.validate();
  if (config.has_forms() || config.has_kinds() || config.num_host_blocks > 0 || config.num_host_units > 0) {
    throw std::invalid_argument("an advised engine keeps K and V in its own memory: no forms, no host tier");
  }
  if (!config.enable_mixed_steps) throw std::invalid_argument("an advised engine mixes prompts and decodes in a step");
  return config;
}

}  // namespace

Advisor::Advisor(const SchedulerConfig& config, const Estimates& estimates)
    : config_(validated(config)),
      policy_(make_policy(config_)),
      estimates_(estimates),
      refiner_(estimates.latency, {.prior_deviation = estimates.latency_deviation}),
      output_forecast_(config.length_quantile),
      memory_(config_) {
  if (policy_->needs_offline_queue()) offline_ = std::make_unique<OfflineQueue>(config_, &requests_, &memory_);
  estimates_.margin.set_quantile(config_.deadline_quantile);
  composition_.reserve(config_.max_num_seqs);
}

// ---- requests come and go ----

Slot Advisor::add_request(const RequestSpec& spec) {
  const auto is_negative = [](int32_t token) { return token < 0; };
  if (spec.prompt.empty() || std::ranges::any_of(spec.prompt, is_negative)) {
    throw std::invalid_argument("a prompt has at least one token, and none is negative");
  }
  if (std::ssize(spec.prompt) >= config_.max_model_len) throw std::invalid_argument("the prompt fills the context");
  if (spec.max_tokens < 1 || !std::isfinite(spec.arrival_time)) {
    throw std::invalid_argument("a request samples at least one token, and its arrival is finite");
  }
  if (spec.request_class < 0 || spec.request_class >= kNumRequestClasses) {
    throw std::invalid_argument("there is no such request class");
  }
  if (spec.num_prior_tokens < 0 || spec.num_prior_tokens >= std::ssize(spec.prompt) ||
      !std::isfinite(spec.last_token_time)) {
    throw std::invalid_argument("prior tokens leave a prompt, and the last of them has a time");
  }
  RequestSpec own = spec;
  own.id = next_id_++;
  const Slot slot = requests_.add(own, config_.max_model_len);
  const auto num_slots = static_cast<size_t>(requests_.num_slots());
  num_sampled_.resize(num_slots);
  num_found_.resize(num_slots);
  is_out_.resize(num_slots);
  is_told_.resize(num_slots);
  num_believed_.resize(num_slots);
  granted_.resize(num_slots);
  num_sampled_[slot] = static_cast<int32_t>(spec.num_prior_tokens);
  num_found_[slot] = 0;
  num_believed_[slot] = 0;
  tenants_.on_added(slot, spec.tenant);
  if (offline_) offline_->add(slot);
  enqueue(slot);
  return slot;
}

void Advisor::set_cached(Slot slot, int32_t num_tokens) {
  if (requests_.state[slot] != RequestState::kWaiting) return;
  const int32_t num_cached = std::clamp(num_tokens, 0, requests_.num_tokens[slot] - 1);
  requests_.num_cached_hint[slot] = num_cached / config_.block_size * config_.block_size;
  requests_.num_loadable_tokens[slot] = num_cached;  // there without being computed
}

void Advisor::remove(Slot slot, bool is_complete) {
  if (is_complete && num_sampled_[slot] > 0) {
    output_forecast_.observe(requests_.request_class[slot], num_sampled_[slot]);
  }
  if (requests_.state[slot] == RequestState::kRunning) {
    memory_.release(requests_.row[slot]);
    std::erase(running_, slot);
    std::erase(lost_, slot);
  } else {
    dequeue(slot);
    std::erase(newcomers_, slot);
  }
  tenants_.on_ended(slot);
  requests_.forget_id(slot);
  requests_.free(slot);
}

void Advisor::enqueue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), slot, before), slot);
  if (is_queued_offline(slot)) offline_->insert(slot);
}

void Advisor::dequeue(Slot slot) {
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  const auto place = std::lower_bound(waiting_.begin(), waiting_.end(), slot, before);
  HOCKET_CHECK(place != waiting_.end() && *place == slot, "a waiting request is not in its place");
  waiting_.erase(place);
  if (is_queued_offline(slot)) offline_->take(slot);
}

// The engine has let it in. It is seated when that is told: who gave way for it is still seated now.
void Advisor::note_admitted(Slot slot, int32_t num_cached) {
  newcomers_.push_back(slot);
  num_found_[slot] = num_cached;
  begin_turn(&requests_, slot, now_);
  if (requests_.num_cached_tokens[slot] == kNone) requests_.num_cached_tokens[slot] = num_cached;
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  const double max_wait_ms = is_online ? config_.max_wait_ms : config_.max_offline_wait_ms;
  requests_.is_starved[slot] |= requests_.pending_seconds(slot, now_) * 1000 > max_wait_ms;
}

void Advisor::seat(Slot slot) {
  dequeue(slot);
  running_.push_back(slot);
  requests_.state[slot] = RequestState::kRunning;
  requests_.row[slot] = memory_.seat(num_found_[slot]);
  requests_.num_loadable_tokens[slot] = 0;
  num_found_[slot] = 0;
}

// It waits again with what has been sampled, and nothing computed. REQUIRES: it is taken out of running_ by the caller.
void Advisor::unseat(Slot slot) {
  memory_.release(requests_.row[slot]);
  requests_.row[slot] = kNone;
  requests_.state[slot] = RequestState::kWaiting;
  requests_.num_computed_tokens[slot] = 0;
  requests_.num_last_scheduled[slot] = 0;
  const int32_t num_tokens = requests_.num_prompt_tokens[slot] + num_sampled_[slot];
  requests_.num_tokens[slot] = std::min(num_tokens, requests_.limits[slot].max_total_tokens);
  for (int32_t i = requests_.num_prompt_tokens[slot]; i < requests_.num_tokens[slot]; ++i)
    requests_.tokens[slot][i] = 0;
  enqueue(slot);
  ++counters_.num_preempted[requests_.request_class[slot]];
}

// ---- what is ----

// A token that is sampled and not told yet counts as known: the engine plans with it. Its value is never read, and not
// written either: each is a line of memory of its own, which nobody else in a step touches.
void Advisor::observe(Slot slot, int32_t num_computed) {
  const int32_t limit = requests_.limits[slot].max_total_tokens;
  num_computed = std::clamp(num_computed, 0, limit - 1);
  const int32_t num_sampled = std::min(requests_.num_prompt_tokens[slot] + num_sampled_[slot], limit);
  const int32_t num_known = std::max(num_sampled, num_computed + 1);
  requests_.num_tokens[slot] = num_known;
  requests_.num_computed_tokens[slot] = num_computed;
  memory_.observe(requests_.row[slot], num_computed, num_known);
}

void Advisor::synchronize(std::span<const Slot> running, std::span<const int32_t> num_computed) {
  std::ranges::fill(is_told_, uint8_t{0});
  for (const Slot slot : running) {
    HOCKET_CHECK(slot >= 0 && slot < requests_.num_slots() && !is_told_[slot], "a slot is told twice, or is none");
    HOCKET_CHECK(requests_.state[slot] != RequestState::kFree, "a request runs that has ended");
    is_told_[slot] = 1;
  }
  unseat_untold();
  for (size_t i = 0; i < running.size(); ++i) {
    const Slot slot = running[i];
    if (requests_.state[slot] == RequestState::kWaiting) seat(slot);
    num_believed_[slot] = num_computed[i];
    observe(slot, num_computed[i]);
  }
  for (const Slot slot : newcomers_) {
    if (!is_told_[slot]) requests_.num_computed_tokens[slot] = 0;
  }
  newcomers_.clear();
  lost_.clear();
}

void Advisor::synchronize_known() {
  if (!lost_.empty()) {
    std::ranges::fill(is_told_, uint8_t{1});
    for (const Slot slot : lost_) is_told_[slot] = 0;
    unseat_untold();
    lost_.clear();
  }
  for (const Slot slot : newcomers_) seat(slot);
  newcomers_.clear();
  for (const Slot slot : running_) observe(slot, num_believed_[slot]);
}

void Advisor::unseat_untold() {
  std::erase_if(running_, [&](Slot slot) {
    if (is_told_[slot]) return false;
    unseat(slot);
    return true;
  });
}

void Advisor::observe_online_use() {
  int64_t num_units = 0;
  for (const Slot slot : running_) {
    if (requests_.request_class[slot] == kOnlineClass) num_units += memory_.num_held_units(requests_.row[slot]);
  }
  online_use_.update(now_, num_units);
}

Snapshot Advisor::snapshot() const {
  return {now_,
          requests_,
          tenants_,
          running_,
          waiting_,
          memory_,
          estimates_,
          output_forecast_,
          offline_.get(),
          reserve_units(config_, *policy_, online_use_),
          config_.max_num_batched_tokens,
          nullptr,
          offline_share_.saved_seconds(now_)};
}

// ---- what to do ----

const Advice& Advisor::compose(double now, std::span<const Slot> running, std::span<const int32_t> num_computed,
                               int32_t num_free_blocks) {
  HOCKET_CHECK(running.size() == num_computed.size(), "compose() needs a count per running request");
  HOCKET_CHECK(std::ssize(running) <= config_.max_num_seqs, "more requests run than max_num_seqs");
  begin_step(now, num_free_blocks);
  synchronize(running, num_computed);
  return decide();
}

const Advice* Advisor::compose_known(double now, int32_t num_running, int32_t num_free_blocks) {
  if (std::ssize(running_) + std::ssize(newcomers_) - std::ssize(lost_) != num_running) return nullptr;
  begin_step(now, num_free_blocks);
  synchronize_known();
  return &decide();
}

void Advisor::begin_step(double now, int32_t num_free_blocks) {
  now_ = now;
  memory_.set_free_blocks(num_free_blocks);
  tenants_.begin_step();
}

const Advice& Advisor::decide() {
  end_turns(config_, running_, waiting_, now_, &requests_);
  if (offline_) observe_online_use();
  for (auto* slots : {&advice_.preempted, &advice_.admitted, &advice_.granted, &advice_.limited, &advice_.order}) {
    slots->clear();
  }
  advice_.tokens.clear();
  advice_.limits.clear();
  std::ranges::fill(is_out_, uint8_t{0});
  budget_ = config_.max_num_batched_tokens;
  spare_units_ = memory_.num_available_units() - memory_.num_promised_units();
  spare_rows_ = memory_.num_free_rows();
  const bool is_beside_online = any_online(requests_, running_);
  limit_seconds_ =
      std::min(offline_step_seconds(config_, estimates_, is_beside_online), tightest_slack(snapshot(), running_));

  composition_.clear();
  policy_->compose(snapshot(), &composition_);
  for (const Slot slot : composition_.preemptions) put_out(slot);
  bool is_admitting = true;
  for (const Grant& grant : composition_.grants) {
    if (budget_ == 0) break;
    if (!grant.is_admission) {
      take(grant);
    } else if (is_admitting) {
      is_admitting = take_admission(grant) || !composition_.is_strict;
    }
  }
  if (advice_.granted.empty()) ensure_progress();
  advice_.num_tokens = config_.max_num_batched_tokens - budget_;
  rank_running();
  list_limited();
  return advice_;
}

void Advisor::take(const Grant& grant) {
  const Slot slot = grant.slot;
  if (is_out_[slot] || requests_.state[slot] != RequestState::kRunning) return;
  const int32_t num_tokens = std::min({grant.max_tokens, requests_.num_uncomputed_tokens(slot), budget_});
  if (num_tokens <= 0) return;
  advice_.granted.push_back(slot);
  advice_.tokens.push_back(num_tokens);
  budget_ -= num_tokens;
}

bool Advisor::take_admission(const Grant& grant) {
  const Slot slot = grant.slot;
  if (is_out_[slot] || requests_.state[slot] != RequestState::kWaiting) return false;
  const int32_t num_left = requests_.num_tokens[slot] - requests_.num_loadable_tokens[slot];
  const bool is_whole = !config_.enable_chunked_prefill && num_left <= config_.max_num_batched_tokens;
  const int32_t num_tokens = std::min(is_whole ? num_left : grant.max_tokens, budget_);
  if (num_tokens <= 0 || (is_whole && num_left > budget_) || !make_room(slot)) return false;
  spare_units_ -= units_needed(config_, snapshot(), slot).kv;
  --spare_rows_;
  advice_.admitted.push_back(slot);
  advice_.granted.push_back(slot);
  advice_.tokens.push_back(num_tokens);
  budget_ -= num_tokens;
  return true;
}

// Beside others, a block for each of them is left: nobody is preempted for lack of memory soon after.
bool Advisor::fits(Slot slot) const {
  const auto num_others = std::ssize(running_) - std::ssize(advice_.preempted) + std::ssize(advice_.admitted);
  const int64_t headroom = num_others > 0 ? (num_others + 1) * config_.units_per_block() : 0;
  return spare_rows_ > 0 && units_needed(config_, snapshot(), slot).kv + headroom <= spare_units_;
}

// Puts out as few of those that `slot` may displace as it takes, or nobody if that is not enough.
bool Advisor::make_room(Slot slot) {
  if (fits(slot)) return true;
  victims_.clear();
  policy_->victims(snapshot(), slot, &victims_);
  std::erase_if(victims_, [&](Slot victim) { return is_out_[victim] != 0; });
  std::ranges::sort(victims_, [&](Slot a, Slot b) { return policy_->yields_before(requests_, a, b); });
  const int64_t units = spare_units_;
  const int32_t rows = spare_rows_;
  displaced_.clear();
  for (const Slot victim : victims_) {
    if (fits(slot)) break;
    const Row row = requests_.row[victim];
    spare_units_ += memory_.num_held_units(row) + memory_.num_promised_units(row);
    ++spare_rows_;
    displaced_.push_back(victim);
  }
  const bool is_enough = fits(slot);
  spare_units_ = units;
  spare_rows_ = rows;
  if (!is_enough) return false;
  for (const Slot victim : displaced_) put_out(victim);
  return true;
}

void Advisor::put_out(Slot slot) {
  if (is_out_[slot] || requests_.state[slot] != RequestState::kRunning) return;
  is_out_[slot] = 1;
  advice_.preempted.push_back(slot);
  const Row row = requests_.row[slot];
  spare_units_ += memory_.num_held_units(row) + memory_.num_promised_units(row);
  ++spare_rows_;
  const auto place = std::ranges::find(advice_.granted, slot);
  if (place == advice_.granted.end()) return;
  const auto tokens = advice_.tokens.begin() + (place - advice_.granted.begin());
  budget_ += *tokens;
  advice_.tokens.erase(tokens);
  advice_.granted.erase(place);
}

// In order and without limits of time: what a policy leaves undone is made good.
void Advisor::ensure_progress() {
  for (const Slot slot : running_) take({slot, requests_.num_uncomputed_tokens(slot), false});
  if (!advice_.granted.empty() || waiting_.empty() || std::ssize(running_) > std::ssize(advice_.preempted)) return;
  const Slot first = waiting_.front();
  const int32_t num_tokens = std::min(budget_, requests_.num_tokens[first]);
  advice_.admitted.push_back(first);
  advice_.granted.push_back(first);
  advice_.tokens.push_back(num_tokens);
  budget_ -= num_tokens;
}

// The engine takes memory from the last of its list when it has none. Only where that may come is the order worth its
// time.
void Advisor::rank_running() {
  int64_t num_wanted = std::ssize(running_);
  for (const int32_t num_tokens : advice_.tokens) num_wanted += num_tokens / config_.block_size;
  if (num_wanted * config_.units_per_block() <= memory_.num_available_units()) return;
  for (const Slot slot : running_) {
    if (!is_out_[slot]) advice_.order.push_back(slot);
  }
  std::ranges::sort(advice_.order, [&](Slot a, Slot b) { return policy_->yields_before(requests_, b, a); });
}

// Who is not told gets all that it has left, and costs the engine no question.
void Advisor::list_limited() {
  for (const Slot slot : running_) granted_[slot] = 0;
  for (const Slot slot : advice_.admitted) granted_[slot] = 0;
  for (size_t i = 0; i < advice_.granted.size(); ++i) granted_[advice_.granted[i]] = advice_.tokens[i];
  for (const Slot slot : running_) {
    if (!is_out_[slot] && granted_[slot] < requests_.num_uncomputed_tokens(slot)) advice_.limited.push_back(slot);
  }
  advice_.limited.insert(advice_.limited.end(), advice_.admitted.begin(), advice_.admitted.end());
  for (const Slot slot : advice_.limited) advice_.limits.push_back(granted_[slot]);
}

// ---- what came of it ----

void Advisor::note_scheduled(double now, std::span<const Slot> slots, std::span<const int32_t> num_tokens,
                             std::span<const int32_t> num_computed) {
  HOCKET_CHECK(slots.size() == num_tokens.size() && slots.size() == num_computed.size(),
               "note_scheduled() needs two counts per request");
  if (slots.empty()) return;
  OpenStep step;
  if (!spare_steps_.empty()) {
    step = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  }
  step.reset(now, limit_seconds_);
  for (size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    if (requests_.state[slot] == RequestState::kWaiting) note_admitted(slot, num_computed[i]);
    num_believed_[slot] = num_computed[i] + num_tokens[i];
    step.prompt_seconds += overload_.prompt_seconds(slot, num_computed[i], num_tokens[i]);
    requests_.num_last_scheduled[slot] = num_tokens[i];
    tenants_.on_served(slot, num_tokens[i], 0);
    step.add(requests_, slot, num_tokens[i], num_computed[i]);
    requests_.num_computed_tokens[slot] = num_believed_[slot];  // nobody waits for it any more
  }
  open_.push_back(std::move(step));
  ++counters_.num_steps;
}

void Advisor::note_advised(double now, std::span<const Slot> admitted, std::span<const int32_t> num_found) {
  HOCKET_CHECK(admitted.size() == num_found.size(), "note_advised() needs a count per request");
  for (size_t i = 0; i < admitted.size(); ++i) num_believed_[admitted[i]] = num_found[i];
  counts_.clear();
  for (const Slot slot : advice_.granted) counts_.push_back(num_believed_[slot]);
  note_scheduled(now, advice_.granted, advice_.tokens, counts_);
}

void Advisor::note_preempted(std::span<const Slot> slots) {
  for (const Slot slot : slots) {
    HOCKET_CHECK(slot >= 0 && slot < requests_.num_slots(), "a slot that was put out is none");
    const bool is_noted = std::ranges::find(lost_, slot) != lost_.end();
    if (requests_.state[slot] == RequestState::kRunning && !is_noted) lost_.push_back(slot);
    if (std::erase(newcomers_, slot) > 0) requests_.num_computed_tokens[slot] = 0;
  }
}

bool Advisor::commit_expected(double now, int32_t num_outputs) {
  HOCKET_CHECK(!open_.empty(), "commit_expected() without a step that was noted");
  open_.front().list_live_samplers(requests_, &sampled_);
  if (std::ssize(sampled_) != num_outputs) return false;
  counts_.assign(sampled_.size(), 1);
  commit(now, sampled_, counts_);
  return true;
}

void Advisor::commit(double now, std::span<const Slot> slots, std::span<const int32_t> num_sampled) {
  HOCKET_CHECK(!open_.empty(), "commit() without a step that was noted");
  HOCKET_CHECK(slots.size() == num_sampled.size(), "commit() needs a count per request");
  OpenStep step = std::move(open_.front());
  open_.pop_front();
  const double seconds = now - std::max(step.began, last_commit_);
  last_commit_ = now;
  if (config_.refine_latency) {
    estimates_.margin.observe(estimates_.latency.predict(step.features), seconds, step.limit_seconds);
    refiner_.observe(step.features, seconds);
    estimates_.latency = refiner_.model();
  }
  overload_.note_step(step.prompt_seconds, seconds);
  int64_t num_all = 0;
  for (const int64_t n : step.num_tokens) num_all += n;
  for (size_t i = 0; i < step.num_tokens.size(); ++i) {
    counters_.class_seconds[i] += seconds * static_cast<double>(step.num_tokens[i]) / static_cast<double>(num_all);
  }
  const bool has_online = step.num_tokens[kOnlineClass] > 0;
  const bool has_offline = step.num_tokens[kOfflineClass] > 0;
  if (has_offline && !has_online) counters_.offline_only_seconds += seconds;
  offline_share_.note_step(has_online, has_offline, now);
  for (size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    if (num_sampled[i] <= 0 || requests_.state[slot] == RequestState::kFree) continue;
    num_sampled_[slot] += num_sampled[i];
    tenants_.on_served(slot, 0, num_sampled[i]);
    const int32_t num_known = requests_.num_tokens[slot];
    const int32_t num_tokens = requests_.num_prompt_tokens[slot] + num_sampled_[slot];
    requests_.num_tokens[slot] = std::min(num_tokens, requests_.limits[slot].max_total_tokens);
    requests_.note_token(slot, now);  // by what has come, not by what is under way
    requests_.num_tokens[slot] = std::max(requests_.num_tokens[slot], num_known);
  }
  spare_steps_.push_back(std::move(step));
}

// ---- what is asked of it ----

std::vector<std::pair<Slot, int32_t>> Advisor::running() const {
  std::vector<std::pair<Slot, int32_t>> found;
  for (const Slot slot : running_) found.emplace_back(slot, num_believed_[slot]);
  return found;
}

std::array<int64_t, kNumRequestClasses> Advisor::count(std::span<const Slot> slots) const {
  std::array<int64_t, kNumRequestClasses> counts = {};
  for (const Slot slot : slots) ++counts[requests_.request_class[slot]];
  return counts;
}

void Advisor::check_invariants() const {
  HOCKET_CHECK(std::ssize(running_) + std::ssize(waiting_) == requests_.num_live(), "a request is lost");
  HOCKET_CHECK(std::ssize(running_) + memory_.num_free_rows() == config_.max_num_seqs, "a row is lost");
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  HOCKET_CHECK(std::is_sorted(waiting_.begin(), waiting_.end(), before), "the waiting list is out of order");
  int64_t num_promised = 0;
  for (const Slot slot : running_) {
    HOCKET_CHECK(requests_.state[slot] == RequestState::kRunning, "the running list holds another state's");
    num_promised += memory_.num_promised_units(requests_.row[slot]);
  }
  HOCKET_CHECK(num_promised == memory_.num_promised_units(), "a promise is lost");
  for (const Slot slot : waiting_) {
    HOCKET_CHECK(requests_.state[slot] == RequestState::kWaiting, "the waiting list holds another state's");
  }
  if (offline_) offline_->check_invariants();
}

}  // namespace hocket
