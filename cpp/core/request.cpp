#include "request.h"

#include <algorithm>

namespace hocket {

Slot RequestTable::take_slot() {
  if (!free_slots.empty()) {
    const Slot slot = free_slots.back();
    free_slots.pop_back();
    return slot;
  }
  const auto grow = [](auto&... arrays) { (arrays.emplace_back(), ...); };
  grow(id, sequence, num_prompt_tokens, max_total_tokens, min_total_tokens, stop_mask, stop_token_ids, cache_salt);
  grow(request_class, priority, arrival_time, ttft_target, itl_target);
  grow(state, is_aborted, row, num_tokens, last_token, num_computed_tokens, num_scheduled_tokens, num_cached_tokens,
       tokens);
  grow(num_unstored_tokens, num_last_scheduled, num_cached_hint, is_starved, last_token_time, num_late_gaps, is_late,
       num_saved_tokens, num_saved_units);
  grow(session, session_serial, is_draft, keys, num_restores, num_loadable_tokens, num_leased_tokens, num_loaded_tokens,
       num_fetched_tokens, seconds_saved, num_copied_blocks, num_loaded_layers);
  free_slots.reserve(id.size());
  return num_slots() - 1;
}

Slot RequestTable::add(const RequestSpec& spec, int32_t max_model_len) {
  const Slot slot = take_slot();
  const auto num_prompt = static_cast<int32_t>(spec.prompt.size());
  const auto total = [&](int64_t num_output) {
    return static_cast<int32_t>(num_prompt + std::min<int64_t>(num_output, max_model_len - num_prompt));
  };
  id[slot] = spec.id;
  sequence[slot] = next_sequence++;
  num_prompt_tokens[slot] = num_prompt;
  max_total_tokens[slot] = total(spec.max_tokens);
  min_total_tokens[slot] = total(spec.min_tokens);
  stop_token_ids[slot].assign(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  stop_mask[slot] = 0;
  for (const int32_t token : spec.stop_token_ids) stop_mask[slot] |= uint64_t{1} << (token & 63);
  cache_salt[slot] = spec.cache_salt;

  request_class[slot] = static_cast<uint8_t>(spec.request_class);
  priority[slot] = spec.priority;
  arrival_time[slot] = spec.arrival_time;
  ttft_target[slot] = spec.ttft_target;
  itl_target[slot] = spec.itl_target;

  state[slot] = RequestState::kWaiting;
  is_aborted[slot] = 0;
  row[slot] = kNone;
  num_tokens[slot] = num_prompt;
  last_token[slot] = spec.prompt.back();
  num_computed_tokens[slot] = 0;
  num_scheduled_tokens[slot] = 0;
  num_cached_tokens[slot] = kNone;
  num_unstored_tokens[slot] = 0;
  num_last_scheduled[slot] = 0;
  num_cached_hint[slot] = 0;
  is_starved[slot] = 0;
  last_token_time[slot] = spec.arrival_time;
  num_late_gaps[slot] = 0;
  is_late[slot] = 0;
  num_saved_tokens[slot] = 0;
  num_saved_units[slot] = 0;
  session[slot] = kNone;
  session_serial[slot] = 0;
  is_draft[slot] = 0;
  keys[slot].clear();
  num_restores[slot] = 0;
  num_loadable_tokens[slot] = num_leased_tokens[slot] = num_loaded_tokens[slot] = num_fetched_tokens[slot] = 0;
  seconds_saved[slot] = 0.0;
  num_copied_blocks[slot] = num_loaded_layers[slot] = 0;
  tokens[slot] = std::make_unique_for_overwrite<int32_t[]>(max_total_tokens[slot]);
  std::copy(spec.prompt.begin(), spec.prompt.end(), tokens[slot].get());
  slot_of_id.emplace(spec.id, slot);
  return slot;
}

void RequestTable::free(Slot slot) {
  state[slot] = RequestState::kFree;
  tokens[slot].reset();
  free_slots.push_back(slot);
}

Slot RequestTable::find(uint64_t request_id) const {
  const auto found = slot_of_id.find(request_id);
  return found == slot_of_id.end() ? kNone : found->second;
}

void RequestTable::note_token(Slot slot, double now) {
  const double gap = now - last_token_time[slot];
  const int32_t num_output = num_output_tokens(slot);
  if (num_output == 1) {
    is_late[slot] |= gap > ttft_target[slot];
  } else if (gap > itl_target[slot]) {
    is_late[slot] |= ++num_late_gaps[slot] * 100 > num_output + 100;
  }
  last_token_time[slot] = now;
}

FinishReason RequestTable::finish_reason(Slot slot, int32_t last_token) const {
  if ((stop_mask[slot] >> (last_token & 63)) & 1 && num_tokens[slot] >= min_total_tokens[slot]) {
    const auto& stops = stop_token_ids[slot];
    if (std::find(stops.begin(), stops.end(), last_token) != stops.end()) return FinishReason::kStop;
  }
  return num_tokens[slot] == max_total_tokens[slot] ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace hocket
