#include "requests/request.h"

#include <algorithm>
#include <limits>

namespace hocket {

Slot RequestTable::take_slot() {
  if (!free_slots.empty()) {
    const Slot slot = free_slots.back();
    free_slots.pop_back();
    return slot;
  }
  const auto grow = [](auto&... arrays) { (arrays.emplace_back(), ...); };
  grow(id, sequence, num_prompt_tokens, limits, cache_salt);
  grow(request_class, priority, arrival_time, targets);
  grow(state, is_aborted, row, num_tokens, last_token, num_computed_tokens, num_scheduled_tokens, num_cached_tokens,
       tokens, tails);
  grow(num_recomputed_tokens, num_last_scheduled, num_cached_hint, is_starved, pace, delays, num_saved_tokens);
  grow(keys, num_loadable_tokens, num_loaded_layers);
  free_slots.reserve(id.size());
  return num_slots() - 1;
}

Slot RequestTable::add(const RequestSpec& spec, int32_t max_model_len) {
  const Slot slot = take_slot();
  const auto num_known = static_cast<int32_t>(spec.prompt.size());
  const auto num_prompt = static_cast<int32_t>(num_known - spec.num_prior_tokens);
  const auto total = [&](int32_t begin, int64_t num_output) {
    return static_cast<int32_t>(begin + std::min<int64_t>(num_output, max_model_len - begin));
  };
  id[slot] = spec.id;
  sequence[slot] = next_sequence++;
  num_prompt_tokens[slot] = num_prompt;
  RequestLimits& limit = limits[slot];
  limit.max_total_tokens = total(num_known, spec.max_tokens);
  limit.min_total_tokens = total(num_prompt, spec.min_tokens);
  limit.stop_mask = 0;
  for (const int32_t token : spec.stop_token_ids) limit.stop_mask |= uint64_t{1} << (token & 63);
  cache_salt[slot] = spec.cache_salt;

  request_class[slot] = static_cast<uint8_t>(spec.request_class);
  priority[slot] = spec.priority;
  arrival_time[slot] = spec.arrival_time;
  targets[slot] = spec.targets;

  state[slot] = RequestState::kWaiting;
  is_aborted[slot] = 0;
  row[slot] = kNone;
  num_tokens[slot] = num_known;
  last_token[slot] = spec.prompt.back();
  num_computed_tokens[slot] = 0;
  num_scheduled_tokens[slot] = 0;
  num_cached_tokens[slot] = kNone;
  num_recomputed_tokens[slot] = 0;
  num_last_scheduled[slot] = 0;
  num_cached_hint[slot] = 0;
  is_starved[slot] = 0;
  pace[slot] = pace_of(spec);
  delays[slot] = {};
  num_saved_tokens[slot] = 0;
  keys[slot].clear();
  num_loadable_tokens[slot] = 0;
  num_loaded_layers[slot] = 0;
  tokens[slot] = std::make_unique_for_overwrite<int32_t[]>(limit.max_total_tokens + 1 + spec.stop_token_ids.size());
  std::ranges::copy(spec.prompt, tokens[slot].get());
  int32_t* behind = tokens[slot].get() + limit.max_total_tokens;
  *behind++ = static_cast<int32_t>(spec.stop_token_ids.size());
  std::ranges::copy(spec.stop_token_ids, behind);
  slot_of_id.emplace(spec.id, slot);
  return slot;
}

// Without a TTFT target, prior tokens count as on time: nobody knows when the first of them came.
Pace RequestTable::pace_of(const RequestSpec& spec) {
  const double due = spec.arrival_time + spec.targets.ttft;
  if (spec.num_prior_tokens == 0) return {.last_token_time = spec.arrival_time, .first_due = due};
  const bool has_due = due < std::numeric_limits<double>::infinity();
  const bool has_tpot = spec.targets.tpot < std::numeric_limits<double>::infinity();
  const double ran_for = has_tpot ? static_cast<double>(spec.num_prior_tokens - 1) * spec.targets.tpot : 0.0;
  return {.last_token_time = spec.last_token_time, .first_due = has_due ? due : spec.last_token_time - ran_for};
}

void RequestTable::free(Slot slot) {
  state[slot] = RequestState::kFree;
  tokens[slot].reset();
  tails[slot].num = 0;
  free_slots.push_back(slot);
}

Slot RequestTable::find(uint64_t request_id) const {
  const auto found = slot_of_id.find(request_id);
  return found == slot_of_id.end() ? kNone : found->second;
}

void RequestTable::note_first_token(Slot slot, double ttft) {
  delays[slot].is_late |= ttft > targets[slot].ttft;
  if (targets[slot].ttft == std::numeric_limits<double>::infinity()) pace[slot].first_due = pace[slot].last_token_time;
}

void RequestTable::note_late_token(Slot slot, bool is_late_gap, bool is_late_token) {
  Delays& of = delays[slot];
  const auto is_too_many = [&](int32_t num_late) { return num_late * 100 > num_output_tokens(slot) + 100; };
  if (is_late_gap) of.is_late |= is_too_many(++of.num_late_gaps);
  if (is_late_token) of.is_late |= is_too_many(++of.num_late_tokens);
}

bool RequestTable::is_stopped_by(Slot slot, int32_t last_token) const {
  const auto stops = stop_tokens(slot);
  return num_tokens[slot] >= limits[slot].min_total_tokens && std::ranges::find(stops, last_token) != stops.end();
}

}  // namespace hocket
