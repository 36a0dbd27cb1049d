#include "scheduler/scheduler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "offline/plan_features.h"
#include "stages/class_order.h"

namespace hocket {
Scheduler::Scheduler(const SchedulerConfig& config, const Estimates& estimates)
    : state_(config, estimates),
      refiner_(estimates.latency, {.prior_deviation = estimates.latency_deviation}),
      announcements_(&state_),
      loads_(&state_),
      restores_(&state_, &announcements_, &loads_),
      saves_(&state_),
      forms_(&state_, &loads_),
      admission_(&state_, {announcements_, restores_, saves_, forms_}),
      overload_({state_.config, state_.requests, state_.tenants, state_.memory, state_.estimates,
                 state_.output_forecast, state_.running, state_.waiting}),
      speculation_(&state_) {
  writer_.reserve(config.max_num_seqs, config.max_num_batched_tokens, &state_.plan);
  output_.begin(config.max_num_seqs);
  composition_.reserve(config.max_num_seqs);
  const auto num_changes = static_cast<size_t>(std::min(config.num_units, 1 << 16));  // of block tables in one step
  state_.plan.table.index.reserve(num_changes);
  state_.plan.table.unit.reserve(num_changes);
  if (config.has_forms()) {
    FormPlan& forms = state_.plan.forms;
    forms.projections.reserve(num_changes);
    for (auto* units : {&forms.projected_units, &forms.copy_slots}) units->reserve(num_changes);
    forms.recomputed_layers.reserve(config.max_num_seqs);
  }
  if (config.int8_units_per_group > 0) {
    state_.plan.forms.roundings.reserve(num_changes);
    state_.plan.forms.rounded_units.reserve(num_changes);
  }
  state_.tiers.reserve(&state_.plan.moves);
}

// ---- requests come and go ----

AddStatus Scheduler::add_request(const RequestSpec& spec) {
  const AddStatus status = validate(spec);
  if (status != AddStatus::kOk) return status;
  if (!overload_.accepts(spec, restores_.restoring())) return AddStatus::kOverloaded;
  const Slot slot = state_.requests.add(spec, state_.config.max_model_len);
  state_.requests.delays[slot].predicted_ttft = static_cast<float>(overload_.accepted_ttft());
  state_.tenants.on_added(slot, spec.tenant);
  if (!spec.session_id.empty()) announcements_.on_added(slot, spec);
  if (speculation_.is_enabled()) speculation_.on_added(slot, spec);
  if (has_tiers(slot)) {
    state_.requests.keys[slot].reserve(state_.config.blocks_for(state_.requests.limits[slot].max_total_tokens));
  }
  if (state_.offline) state_.offline->add(slot);
  state_.enqueue(slot);
  return status;
}

AddStatus Scheduler::validate(const RequestSpec& spec) const {
  const auto is_negative = [](int32_t token) { return token < 0; };
  if (spec.prompt.empty() || std::ranges::any_of(spec.prompt, is_negative)) return AddStatus::kInvalid;
  if (spec.max_tokens < 1 || spec.min_tokens < 0 || !std::isfinite(spec.arrival_time)) return AddStatus::kInvalid;
  if (spec.request_class < 0 || spec.request_class >= kNumRequestClasses) return AddStatus::kInvalid;
  const auto num_known = static_cast<int64_t>(spec.prompt.size());
  if (spec.num_prior_tokens < 0 || spec.num_prior_tokens >= num_known) return AddStatus::kInvalid;
  if (spec.num_prior_tokens > 0 && !std::isfinite(spec.last_token_time)) return AddStatus::kInvalid;
  if (state_.requests.find(spec.id) != kNone) return AddStatus::kDuplicateId;

  if (num_known + 1 > state_.config.max_model_len) return AddStatus::kTooLong;
  const int64_t num_output = std::min<int64_t>(spec.max_tokens, state_.config.max_model_len - num_known);
  if (state_.config.blocks_for(static_cast<int32_t>(num_known + num_output)) > state_.memory.num_kv_blocks()) {
    return AddStatus::kTooLong;
  }
  const int64_t num_prompt = num_known - spec.num_prior_tokens;
  const bool is_whole = !state_.config.enable_chunked_prefill;
  if (is_whole && num_prompt > state_.config.max_num_batched_tokens) return AddStatus::kTooLong;
  const size_t num_waiting = state_.waiting.size() + restores_.restoring().size();
  const bool is_full = num_waiting >= static_cast<size_t>(state_.config.max_num_waiting);
  return is_full ? AddStatus::kQueueFull : AddStatus::kOk;
}

bool Scheduler::abort(uint64_t request_id) {
  const Slot slot = state_.requests.find(request_id);
  if (slot == kNone) return false;
  state_.requests.forget_id(slot);
  if (state_.requests.num_scheduled_tokens[slot] > 0) {
    state_.requests.is_aborted[slot] = 1;
    return true;
  }
  switch (state_.requests.state[slot]) {
    case RequestState::kWaiting:
      state_.dequeue(slot);
      break;
    case RequestState::kRestoring:
      restores_.forget(slot);
      break;
    default:
      std::erase(state_.running, slot);
  }
  end_request(slot, FinishReason::kAbort);
  return true;
}

bool Scheduler::force(uint64_t request_id, std::span<const int32_t> tokens) {
  HOCKET_CHECK(!is_open_, "force() while a plan is open");
  HOCKET_CHECK(std::ranges::all_of(tokens, [](int32_t token) { return token >= 0; }), "a forced token is negative");
  const Slot slot = speculation_.is_enabled() ? state_.requests.find(request_id) : kNone;
  if (slot == kNone) return false;
  speculation_.force(slot, tokens);
  return true;
}

const ModelQuestion& Scheduler::ask_model(double now) {
  HOCKET_CHECK(!is_open_, "ask_model() while a plan is open");
  return speculation_.ask_model(now);
}

bool Scheduler::suggest(uint64_t request_id, std::span<const int32_t> tokens) {
  HOCKET_CHECK(!is_open_, "suggest() while a plan is open");
  HOCKET_CHECK(std::ranges::all_of(tokens, [](int32_t token) { return token >= 0; }), "a guessed token is negative");
  const Slot slot = speculation_.is_enabled() ? state_.requests.find(request_id) : kNone;
  if (slot == kNone) return false;
  speculation_.suggest(slot, tokens);
  return true;
}

void Scheduler::end_request(Slot slot, FinishReason reason) {
  announcements_.on_ended(slot);
  restores_.on_ended(slot);
  if (state_.requests.row[slot] != kNone) state_.memory.release(state_.requests.row[slot]);
  saves_.drop(slot);
  if (speculation_.is_enabled()) speculation_.on_ended(slot);
  state_.tenants.on_ended(slot);
  ++state_.counters.num_finished[static_cast<size_t>(reason)];
  state_.requests.free(slot);
}

// ---- schedule ----

const BatchPlan& Scheduler::schedule(double now) {
  HOCKET_CHECK(!is_open_, "schedule() while a plan is open");
  begin_step(now);
  if (state_.config.restores_from_tiers()) restores_.before_policy();

  if (state_.config.refine_latency) limit_seconds_ = seconds_limit();
  composition_.clear();
  state_.policy->compose(state_.snapshot(), &composition_);
  const Residency residency = composition_.residency;
  admission_.carry_out(composition_);
  if (state_.budget == state_.config.max_num_batched_tokens && has_work()) admission_.ensure_progress(&composition_);
  composition_.residency = residency;

  forms_.end_admission();
  write_batch();
  if (announcements_.advance()) write_batch();
  // Last, since guesses take rows of the batch that nobody else has.
  if (speculation_.is_enabled() && speculation_.guess()) write_batch();
  loads_.write();
  state_.tiers.write(&state_.plan.moves);
  state_.memory.flush_changes(&state_.plan.table);
  is_open_ = !state_.plan.empty();
  if (is_open_) {
    ++state_.plan.step_id;
    ++state_.counters.num_steps;
    if (state_.config.enable_partial_caching) {
      ++state_.counters.num_ratio_steps[static_cast<size_t>(residency.reason)];
    }
  }
  return state_.plan;
}

void Scheduler::begin_step(double now) {
  BatchPlan& plan = state_.plan;
  state_.now = now;
  state_.budget = state_.config.max_num_batched_tokens;
  plan.preempted_ids.clear();
  plan.table.clear();
  plan.transfers.clear();
  forms_.begin_step();
  loads_.clear();
  state_.tenants.begin_step();
  admission_.begin_step();
  if (state_.offline) observe_online_use();
}

// That a deadline, or the bound of offline steps, leaves the step.
double Scheduler::seconds_limit() const {
  const bool is_beside_online = any_online(state_.requests, state_.running);
  return std::min(offline_step_seconds(state_.config, state_.estimates, is_beside_online),
                  tightest_slack(state_.snapshot(), state_.running));
}

void Scheduler::write_batch() {
  writer_.write(state_.requests, state_.running, speculation_.num_guessed(), &state_.plan);
  forms_.write(writer_.seq_slots());
}

void Scheduler::observe_online_use() {
  int64_t num_units = 0;
  for (const Slot slot : state_.running) {
    const bool is_online = state_.requests.request_class[slot] == kOnlineClass;
    if (is_online) num_units += state_.memory.num_held_units(state_.requests.row[slot]);
  }
  state_.online_use.update(state_.now, num_units);
}

// ---- commit ----

const StepOutput& Scheduler::commit(std::span<const int32_t> sampled, double now) {
  HOCKET_CHECK(is_open_, "commit() without an open plan");
  HOCKET_CHECK(sampled.size() == state_.plan.sample_seqs.size(), "commit() needs one token per entry of sample_seqs");
  HOCKET_CHECK(std::ranges::all_of(sampled, [](int32_t token) { return token >= 0 || token == kNoToken; }),
               "a sampled token is negative");
  is_open_ = false;
  if (state_.config.refine_latency && !state_.plan.has_copies()) learn_from_step(now - state_.now);
  count_seconds(now - state_.now);
  state_.now = now;
  output_.begin(sampled.size());
  forms_.end_step();

  const auto slots = writer_.seq_slots();
  bool any_ended = false;
  size_t next_sample = 0;
  for (size_t s = 0; s < slots.size();) {
    const Slot slot = slots[s];
    const bool is_sampled =
        next_sample < sampled.size() && state_.plan.sample_seqs[next_sample] == static_cast<int32_t>(s);
    const bool is_draft = announcements_.is_draft(slot);
    const size_t num_seqs = 1 + speculation_.num_guessed()[slot];
    const auto of_request = sampled.subspan(next_sample, is_sampled ? num_seqs : 0);
    const bool has_answer = is_sampled && !is_draft && !state_.requests.is_aborted[slot];
    const FinishReason reason = has_answer ? commit_samples(slot, of_request, static_cast<int32_t>(next_sample))
                                           : commit_unanswered(slot, of_request, is_draft);
    next_sample += of_request.size();
    s += num_seqs;
    if (reason == FinishReason::kNone && !is_draft) continue;
    any_ended = true;
    if (is_draft) continue;
    if (reason != FinishReason::kAbort) state_.requests.forget_id(slot);
    end_request(slot, reason);
  }
  if (any_ended) {
    std::erase_if(state_.running, [&](Slot slot) { return state_.requests.state[slot] != RequestState::kRunning; });
  }
  output_.end();
  return output_;
}

void Scheduler::learn_from_step(double seconds) {
  const BatchFeatures features = plan_features(state_.plan);
  const double predicted = state_.estimates.latency.predict(features);
  state_.estimates.margin.observe(predicted, seconds, limit_seconds_);
  if (speculation_.is_enabled()) speculation_.on_step(features, predicted, seconds);
  refiner_.observe(features, seconds);
  state_.estimates.latency = refiner_.model();
}

// Whose tokens the step computed. REQUIRES: they are still counted as scheduled.
void Scheduler::count_seconds(double seconds) {
  std::array<int64_t, kNumRequestClasses> num_tokens = {};
  int64_t num_all = 0;
  double prompt_seconds = 0.0;
  const RequestTable& requests = state_.requests;
  for (const Slot slot : writer_.seq_slots()) {
    const int32_t num_scheduled = requests.num_scheduled_tokens[slot];
    num_tokens[requests.request_class[slot]] += num_scheduled;
    num_all += num_scheduled;
    prompt_seconds += overload_.prompt_seconds(slot, requests.num_computed_tokens[slot], num_scheduled);
  }
  overload_.note_step(prompt_seconds, seconds);
  if (num_all == 0) return;
  for (size_t i = 0; i < num_tokens.size(); ++i) {
    state_.counters.class_seconds[i] += seconds * static_cast<double>(num_tokens[i]) / static_cast<double>(num_all);
  }
  const bool has_online = num_tokens[kOnlineClass] > 0;
  const bool has_offline = num_tokens[kOfflineClass] > 0;
  if (has_offline && !has_online) state_.counters.offline_only_seconds += seconds;
  state_.offline_share.note_step(has_online, has_offline, state_.now + seconds);
  announcements_.note_step(has_online || has_offline, num_tokens[kAdvisoryClass] > 0, state_.now + seconds);
}

// Of a chunk that does not reach the end, of a draft, and of who was aborted meanwhile. sampled: nobody's answer.
FinishReason Scheduler::commit_unanswered(Slot slot, std::span<const int32_t> sampled, bool is_draft) {
  const bool is_sampled = !sampled.empty() && sampled[0] != kNoToken;
  state_.tenants.on_served(slot, state_.requests.num_scheduled_tokens[slot], is_sampled);
  commit_tokens(slot, sampled.empty() || is_sampled);
  speculation_.take_guesses(slot);
  if (is_draft) announcements_.end_draft_step(slot);
  return state_.requests.is_aborted[slot] && !is_draft ? FinishReason::kAbort : FinishReason::kNone;
}

// sampled: of its last known token and of each of its guesses.
FinishReason Scheduler::commit_samples(Slot slot, std::span<const int32_t> sampled, int32_t first_sample) {
  if (!speculation_.is_enabled()) return commit_sample(slot, sampled[0], first_sample);
  const int32_t num_before = state_.requests.num_tokens[slot];
  const FinishReason reason = commit_guesses(slot, sampled, first_sample);
  speculation_.learn(slot, state_.requests.num_tokens[slot] - num_before);
  return reason;
}

// As long as each equals the guess from which the next one was computed.
FinishReason Scheduler::commit_guesses(Slot slot, std::span<const int32_t> sampled, int32_t first_sample) {
  RequestTable& requests = state_.requests;
  const int32_t num_guessed = speculation_.take_guesses(slot);
  for (int32_t i = 0;; ++i) {
    const int32_t token = sampled[i];
    const bool is_guessed_next = i < num_guessed && requests.tokens[slot][requests.num_tokens[slot]] == token;
    const FinishReason reason = commit_sample(slot, token, first_sample + i);
    if (reason != FinishReason::kNone || !is_guessed_next) return reason;
    requests.num_scheduled_tokens[slot] = 1;  // the guess: it is known now
    ++state_.counters.num_right_guesses;
  }
}

// The tokens scheduled for the step have their cache now. It is kept for others if it is sound.
void Scheduler::commit_tokens(Slot slot, bool is_sound) {
  RequestTable& requests = state_.requests;
  requests.num_computed_tokens[slot] += requests.num_scheduled_tokens[slot];
  requests.num_last_scheduled[slot] = requests.num_scheduled_tokens[slot];
  requests.num_scheduled_tokens[slot] = 0;
  const Row row = requests.row[slot];
  const int32_t num_computed = requests.num_computed_tokens[slot];
  forms_.on_computed(slot, is_sound);
  if (!is_sound) return;
  if (!state_.memory.can_index(row, num_computed)) return;
  const int32_t num_indexed = state_.memory.num_indexed_blocks(row);
  const int32_t num_blocks = num_computed / state_.config.block_size;
  if (state_.offline) {
    const auto pending = state_.offline->pending_counts(slot, num_indexed, num_blocks);
    state_.memory.index(row, requests.computed_tokens(slot), pending);
    state_.offline->note_cached(slot, num_indexed, num_blocks);
  } else {
    state_.memory.index(row, requests.computed_tokens(slot));
  }
  if (has_tiers(slot)) save(slot, num_indexed);
}

bool Scheduler::has_tiers(Slot slot) const {
  return state_.tiers.is_enabled() && (!state_.config.save_sessions_only || announcements_.is_of_session(slot));
}

// Blocks that the cache has had from the request since num_indexed; or, where others' are not saved, all of its own and
// those that it found there.
void Scheduler::save(Slot slot, int32_t num_indexed) {
  const Row row = state_.requests.row[slot];
  const bool is_first = num_indexed == state_.memory.num_shared_blocks(row);
  const int32_t begin = state_.config.save_sessions_only && is_first ? 0 : num_indexed;
  const int32_t num_computed = state_.requests.num_computed_tokens[slot];
  const int32_t num_new = num_computed / state_.config.block_size - begin;
  const auto keys = state_.update_keys(slot, num_computed).subspan(begin, num_new);
  state_.tiers.save(keys, state_.memory.tables().blocks(row).subspan(begin, num_new));
}

FinishReason Scheduler::commit_sample(Slot slot, int32_t token, int32_t sample_index) {
  const bool has_failed = token == kNoToken;
  state_.tenants.on_served(slot, state_.requests.num_scheduled_tokens[slot], !has_failed);
  commit_tokens(slot, !has_failed);
  if (has_failed) {
    write_output(slot, token, FinishReason::kError, sample_index);
    return FinishReason::kError;
  }
  state_.requests.append_token(slot, token);
  state_.requests.note_token(slot, state_.now);
  const FinishReason reason = state_.requests.finish_reason(slot, token);
  const int32_t num_output = state_.requests.num_output_tokens(slot);
  if (reason != FinishReason::kNone) state_.output_forecast.observe(state_.requests.request_class[slot], num_output);
  ++state_.counters.num_output_tokens;
  if (num_output == 1) on_first_token(slot);
  write_output(slot, token, reason, sample_index);
  return reason;
}

void Scheduler::on_first_token(Slot slot) {
  const RequestTable& requests = state_.requests;
  state_.counters.num_prompt_tokens += requests.num_prompt_tokens[slot];
  overload_.note_first_token(requests.delays[slot].predicted_ttft, state_.now - requests.arrival_time[slot]);
}

void Scheduler::write_output(Slot slot, int32_t token, FinishReason reason, int32_t sample_index) {
  const RequestTable& requests = state_.requests;
  output_.add(requests.id[slot], token, reason, requests.num_output_tokens(slot), requests.num_cached_tokens[slot],
              sample_index);
}

// ---- what others are told ----

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.counters = state_.counters;
  for (const Slot slot : state_.running) ++stats.num_running[state_.requests.request_class[slot]];
  for (const Slot slot : state_.waiting) ++stats.num_waiting[state_.requests.request_class[slot]];
  for (const Slot slot : restores_.restoring()) ++stats.num_waiting[state_.requests.request_class[slot]];
  const BlockPool& pool = state_.memory.pool();
  stats.num_units = pool.num_units();
  stats.num_free_units = pool.num_free_units();
  stats.num_cached_units = int64_t{state_.memory.cache().num_evictable_blocks()} * pool.units_per_block();
  forms_.count(&stats);
  stats.residency = composition_.residency;
  if (!state_.config.enable_partial_caching) {
    stats.counters.num_ratio_steps[static_cast<size_t>(RatioReason::kNotAllowed)] = stats.counters.num_steps;
  }
  stats.num_evicted_blocks = state_.memory.cache().num_evicted_blocks();
  stats.num_host_blocks = state_.tiers.index().num_slots();
  stats.num_free_host_blocks = state_.tiers.index().num_free_slots();
  stats.predicted_ttft_seconds = overload_.predicted_ttft(restores_.restoring());
  stats.promised_itl_seconds = promised_itl_seconds(state_.config, state_.estimates);
  stats.reader_margin = state_.estimates.margin.of_readers();
  stats.num_sessions = announcements_.num_sessions();
  stats.num_leases = announcements_.num_leases();
  stats.tiers = state_.tiers.counters();
  return stats;
}

void Scheduler::check_invariants() const {
  check_lists();
  std::vector<Row> rows;
  for (const Slot slot : state_.running) rows.push_back(state_.requests.row[slot]);
  std::sort(rows.begin(), rows.end());
  HOCKET_CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end(), "two requests share a row");
  HOCKET_CHECK(static_cast<int32_t>(rows.size()) + state_.memory.num_free_rows() == state_.config.max_num_seqs,
               "a row is lost");
  const auto arrivals = state_.tiers.arrivals();
  state_.memory.check_invariants(rows, arrivals);
  state_.tiers.check_invariants();
  announcements_.check_invariants();
  saves_.check_invariants();
  if (state_.offline) {
    const auto num_offline =
        std::ranges::count_if(state_.waiting, [&](Slot slot) { return state_.is_queued_offline(slot); });
    HOCKET_CHECK(num_offline == state_.offline->size(), "the offline queue differs from the waiting list");
    state_.offline->check_invariants();
  }
  for (const Slot slot : restores_.restoring()) check_request(slot);
  for (const Slot slot : state_.running) check_request(slot);
  for (const Slot slot : state_.waiting) check_request(slot);
}

void Scheduler::check_lists() const {
  std::vector<uint8_t> seen(state_.requests.num_slots(), 0);
  size_t num_aborted = 0;
  using List = std::pair<std::span<const Slot>, RequestState>;
  for (const auto& [list, state] :
       {List{state_.running, RequestState::kRunning}, List{state_.waiting, RequestState::kWaiting},
        List{restores_.restoring(), RequestState::kRestoring}}) {
    for (const Slot slot : list) {
      HOCKET_CHECK(state_.requests.state[slot] == state && !seen[slot],
                   "a list holds a request twice, or another state's");
      seen[slot] = 1;
      num_aborted += state_.requests.is_aborted[slot] && !announcements_.is_draft(slot);
      HOCKET_CHECK(state_.requests.is_aborted[slot] || state_.requests.find(state_.requests.id[slot]) == slot,
                   "an id names another slot");
    }
  }
  const auto num_drafts = static_cast<size_t>(std::ranges::count(state_.requests.state, RequestState::kDraft));
  const size_t num_listed = state_.running.size() + state_.waiting.size() + restores_.restoring().size() + num_drafts;
  HOCKET_CHECK(num_listed == static_cast<size_t>(state_.requests.num_live()), "a request is lost");
  HOCKET_CHECK(state_.requests.slot_of_id.size() + num_aborted == num_listed, "an id is lost");
  const auto before = [&](Slot a, Slot b) { return state_.policy->precedes(state_.requests, a, b); };
  HOCKET_CHECK(std::is_sorted(state_.waiting.begin(), state_.waiting.end(), before),
               "the waiting list is out of order");
}

void Scheduler::check_request(Slot slot) const {
  const int32_t num_computed = state_.requests.num_computed_tokens[slot];
  const int32_t num_scheduled = state_.requests.num_scheduled_tokens[slot];
  const int32_t num_tokens = state_.requests.num_tokens[slot];
  HOCKET_CHECK(num_computed >= 0 && num_scheduled >= 0 && num_computed + num_scheduled <= num_tokens,
               "a request has more tokens computed than known");
  HOCKET_CHECK(state_.requests.known_tokens(slot).back() == state_.requests.last_token[slot],
               "a request's last token is another");
  const int32_t num_guessed = speculation_.num_guessed()[slot];
  HOCKET_CHECK(num_guessed >= 0 && (num_guessed == 0 || num_computed + num_scheduled == num_tokens),
               "tokens are guessed behind some that are not known");
  HOCKET_CHECK(num_tokens + num_guessed < state_.requests.limits[slot].max_total_tokens,
               "a request has more guesses than tokens left");
  HOCKET_CHECK(num_computed < num_tokens, "a live request has nothing left to compute");
  HOCKET_CHECK(num_tokens < state_.requests.limits[slot].max_total_tokens, "a live request has reached its length");
  HOCKET_CHECK(state_.requests.num_recomputed_tokens[slot] <= num_computed,
               "tokens are to be recomputed that never were");
  HOCKET_CHECK(is_open_ || (num_scheduled == 0 && num_guessed == 0 && !state_.requests.is_aborted[slot]),
               "a closed step left traces");
  if (state_.requests.state[slot] != RequestState::kRunning) {
    HOCKET_CHECK(state_.requests.row[slot] == kNone && num_computed == 0 && num_scheduled == 0,
                 "a waiting request holds memory");
    return;
  }
  const auto num_blocks = state_.memory.tables().num_blocks(state_.requests.row[slot]);
  HOCKET_CHECK(num_blocks * state_.config.block_size >= num_computed + num_scheduled + num_guessed,
               "a token has no block");
}

}  // namespace hocket
