#include "speculation/speculation.h"

#include <algorithm>

#include "offline/plan_features.h"
#include "stages/class_order.h"

namespace hocket {

Speculation::Speculation(SchedulerState* state)
    : state_(*state), of_(&state->requests), num_guessed_(&state->requests) {
  candidates_.reserve(state->config.max_num_seqs);
}

bool Speculation::guess() {
  if (state_.plan.empty() || !state_.estimates.knows_latency()) return false;
  collect();
  if (candidates_.empty()) return false;
  const auto num_samples = static_cast<int32_t>(state_.plan.sample_seqs.size());
  const int32_t num_rows = state_.config.max_num_seqs - state_.plan.num_seqs();
  const GuessLimits limits{max_seconds(), std::min(num_rows, state_.budget)};
  const int32_t num_guesses =
      lengths_.choose(state_.estimates.latency, plan_features(state_.plan), num_samples, limits, candidates_);
  if (num_guesses == 0) return false;
  for (const GuessCandidate& candidate : candidates_) {
    if (candidate.num_guesses > 0) write(candidate.slot, candidate.num_guesses);
  }
  return true;
}

// Requests of this step that decode, and whose text repeats itself or has to go on in one way.
void Speculation::collect() {
  candidates_.clear();
  RequestTable& requests = state_.requests;
  Acceptance::Rates first;
  first.fill(kFirstRate);
  const Acceptance::Rates expected = acceptance_.rates(first);
  for (const Slot slot : state_.running) {
    const bool is_decode = requests.num_scheduled_tokens[slot] == 1 && requests.num_uncomputed_tokens(slot) == 1;
    if (!is_decode || requests.num_output_tokens(slot) == 0) continue;
    OfRequest& of = of_[slot];
    if (!of.forced.empty()) {
      candidates_.push_back(forced_candidate(slot));
      continue;
    }
    if (!of.is_guessable) continue;
    of.match = of.index.find(requests.known_tokens(slot));
    if (!of.match.is_found()) continue;
    candidates_.push_back(
        {slot, requests.num_tokens[slot], of.match.length, most_guesses(slot), of.acceptance.rates(expected)});
  }
}

GuessCandidate Speculation::forced_candidate(Slot slot) {
  const auto num_forced = static_cast<int32_t>(of_[slot].forced.size());
  GuessCandidate candidate{slot, state_.requests.num_tokens[slot], kForcedLength,
                           std::min(most_guesses(slot), num_forced)};
  candidate.rates.fill(1.0F);
  return candidate;
}

// The last token that it may have is not guessed: nothing would be sampled behind it.
int32_t Speculation::most_guesses(Slot slot) const {
  const int32_t num_left = state_.requests.limits[slot].max_total_tokens - state_.requests.num_tokens[slot];
  return std::min(state_.config.max_guessed_tokens, num_left - 1);
}

// Fewer where memory is short. A match that reaches the text's end goes on with what was guessed.
void Speculation::write(Slot slot, int32_t num_guesses) {
  RequestTable& requests = state_.requests;
  const int32_t num_tokens = requests.num_tokens[slot];
  const Row row = requests.row[slot];
  const int32_t num_there = state_.memory.num_blocks(row) * state_.config.block_size - num_tokens;
  if (num_guesses > num_there) {
    const int32_t num_blocks = state_.config.blocks_for(num_tokens + num_guesses) - state_.memory.num_blocks(row);
    const bool has_room = state_.memory.has_room_for(num_blocks, state_.num_running());
    if (!has_room || !state_.memory.grow(row, num_tokens + num_guesses)) num_guesses = num_there;
  }
  int32_t* tokens = requests.tokens[slot].get();
  const OfRequest& of = of_[slot];
  const int32_t* next = of.forced.empty() ? tokens + of.match.next : of.forced.data();
  for (int32_t j = 0; j < num_guesses; ++j) tokens[num_tokens + j] = next[j];
  num_guessed_.set(slot, num_guesses);
  state_.budget -= num_guesses;
  state_.counters.num_guessed_tokens += num_guesses;
}

// That the step may be predicted to take: no guess makes a token late, or makes others wait longer than a prompt might.
double Speculation::max_seconds() const {
  const Snapshot snapshot = state_.snapshot();
  const auto running = std::span<const Slot>(state_.running);
  const bool any_offline =
      std::ranges::any_of(running, [&](Slot slot) { return state_.requests.request_class[slot] != kOnlineClass; });
  const double seconds =
      std::min(seconds_before_deadline(snapshot, running), seconds_beside_readers(state_.config, snapshot, running));
  return any_offline ? std::min(seconds, offline_step_seconds(state_.config, state_.estimates)) : seconds;
}

// Behind the match stands what would have been guessed, as far as it was right: a match that reaches what was then the
// text's end goes on in what has been sampled.
void Speculation::learn(Slot slot, int32_t num_sampled) {
  OfRequest& of = of_[slot];
  of.forced.clear();
  if (!of.match.is_found()) return;
  const auto tokens = state_.requests.known_tokens(slot);
  const auto sampled = tokens.last(num_sampled);
  for (int32_t j = 0; j < num_sampled; ++j) {
    const bool is_right = tokens[of.match.next + j] == sampled[j];
    const int32_t length = std::min(of.match.length + j, RepetitionIndex::kMostCompared);
    of.acceptance.observe(length, is_right, kRequestMemory);
    acceptance_.observe(length, is_right, kMemory);
    if (!is_right) break;
  }
  of.match = {};
}

}  // namespace hocket
