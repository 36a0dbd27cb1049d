#include "speculation/speculation.h"

#include <algorithm>

#include "offline/plan_features.h"
#include "stages/class_order.h"

namespace hocket {
namespace {

// By which guesses have to gain more than they cost. Who is alone saves a step with every right guess; of many, one
// that is ahead of the others saves its row in a later step only.
double margin(double least, int32_t num_samples) { return least + 0.15 * (1.0 - 1.0 / num_samples); }

}  // namespace

Speculation::Speculation(SchedulerState* state)
    : state_(*state), of_(&state->requests), is_open_(&state->requests), num_guessed_(&state->requests) {
  candidates_.reserve(state->config.max_num_seqs);
  question_.slots.reserve(state->config.max_num_seqs);
}

void Speculation::on_added(Slot slot, const RequestSpec& spec) {
  if (spec.is_guessable) of_[slot].scope = scopes_.find(spec.tenant, spec.cache_salt);
}

// Its answer, behind the end of its prompt: earlier turns stand in the prompt of the next one.
void Speculation::on_ended(Slot slot) {
  OfRequest& of = of_[slot];
  const int32_t num_output = state_.requests.num_output_tokens(slot);
  if (of.scope && state_.config.enable_prefix_caching && num_output > 0) {
    const auto known = state_.requests.known_tokens(slot);
    scopes_.add_text(of.scope.get(), known.last(std::min(known.size(), static_cast<size_t>(num_output + kContext))));
  }
  of = OfRequest();
}

bool Speculation::guess() {
  has_guesses_ = find_guesses();
  return has_guesses_;
}

bool Speculation::find_guesses() {
  if (state_.plan.empty() || !state_.estimates.knows_latency()) return false;
  const auto num_samples = static_cast<int32_t>(state_.plan.sample_seqs.size());
  if (num_samples == 0) return false;
  const BatchFeatures batch = plan_features(state_.plan);
  const double least_gain = margin(kMargin, num_samples);
  const StepTimes times{state_.estimates.latency, row_costs_};
  if (!GuessLengths::may_pay(times, batch, num_samples, least_gain)) return false;
  collect(looking_stride(state_.estimates.latency.predict(batch)));
  if (candidates_.empty()) return false;
  const int32_t num_rows = state_.config.max_num_seqs - state_.plan.num_seqs();
  const GuessLimits limits{max_seconds(state_.now), std::min(num_rows, state_.budget), least_gain};
  if (lengths_.choose(times, batch, num_samples, limits, candidates_) == 0) return false;
  for (const GuessCandidate& candidate : candidates_) {
    if (candidate.num_guesses > 0) write(candidate.slot, candidate.num_guesses);
  }
  return true;
}

// In one of how many steps a request is looked at whose last guesses were not right.
int64_t Speculation::looking_stride(double step_seconds) const {
  const auto num_looks = std::max(int64_t{1}, static_cast<int64_t>(kLookingShare / kLookSeconds * step_seconds));
  return (state_.num_running() + num_looks - 1) / num_looks;
}

// Requests of this step that decode, and whose text repeats itself or others, or has to go on in one way.
void Speculation::collect(int64_t stride) {
  candidates_.clear();
  RequestTable& requests = state_.requests;
  for (const Slot slot : state_.running) {
    const bool is_decode = requests.num_scheduled_tokens[slot] == 1 && requests.num_uncomputed_tokens(slot) == 1;
    if (!is_decode || requests.num_output_tokens(slot) == 0) continue;
    if (!is_open_[slot] && (state_.plan.step_id + slot) % stride != 0) continue;
    OfRequest& of = of_[slot];
    if (!of.forced.empty()) {
      candidates_.push_back(forced_candidate(slot));
      continue;
    }
    if (!of.scope) continue;
    const bool is_found = look(slot, &of);
    is_open_[slot] = is_found || !of.suggested.empty();
    if (!is_open_[slot]) continue;
    const int32_t length = is_found ? of.match_length : kNoLength;
    Acceptance::Rates chances = rates(of, of.source);
    of.takes_suggestion = !is_found;
    if (is_found && !of.suggested.empty()) {
      const Acceptance::Rates of_model = rates(of, GuessSource::kModel);
      of.takes_suggestion = of_model[0] > chances[Acceptance::length_index(length)];
    }
    if (of.takes_suggestion) chances = rates(of, GuessSource::kModel);
    const auto num_next = static_cast<int32_t>(guesses(of).size());
    candidates_.push_back({slot, requests.num_tokens[slot], of.takes_suggestion ? kNoLength : length,
                           std::min(most_guesses(slot), num_next), chances});
  }
}

// Finds how its text went on before, one token more than may be guessed: that one is learnt from. A match that reaches
// the text's end goes on with what it says itself.
bool Speculation::look(Slot slot, OfRequest* of) {
  const auto text = state_.requests.known_tokens(slot);
  const auto most = static_cast<size_t>(state_.config.max_guessed_tokens) + 1;
  of->next.clear();
  const RepetitionIndex::Match own = of->index.find(text);
  if (own.length < kSureLength) {
    const RecentTexts::Match match = of->scope->texts.find(text);
    if (match.length > own.length) {
      of->source = GuessSource::kRecentTexts;
      of->match_length = match.length;
      const auto next = match.next.first(std::min(most, match.next.size()));
      of->next.assign(next.begin(), next.end());
      return true;
    }
  }
  if (!own.is_found()) return false;
  of->source = GuessSource::kOwnText;
  of->match_length = own.length;
  const auto begin = static_cast<size_t>(own.next);
  for (size_t j = 0; j < most; ++j) {
    of->next.push_back(begin + j < text.size() ? text[begin + j] : of->next[begin + j - text.size()]);
  }
  return true;
}

const std::vector<int32_t>& Speculation::guesses(const OfRequest& of) const {
  if (!of.forced.empty()) return of.forced;
  return of.takes_suggestion ? of.suggested : of.next;
}

// As the request's own guesses were, or else its scope's. REQUIRES: it has one.
Acceptance::Rates Speculation::rates(const OfRequest& of, GuessSource source) const {
  Acceptance::Rates first;
  first.fill(source == GuessSource::kModel ? kFirstModelRate : kFirstRate);
  const auto i = static_cast<size_t>(source);
  return of.acceptance[i].rates(of.scope->acceptance[i].rates(first));
}

const ModelQuestion& Speculation::ask_model(double now) {
  question_.num_tokens = 0;
  question_.slots.clear();
  if (!state_.estimates.knows_latency() || !state_.waiting.empty()) return question_;
  const RequestTable& requests = state_.requests;
  BatchFeatures batch;
  candidates_.clear();
  for (const Slot slot : state_.running) {
    if (requests.num_uncomputed_tokens(slot) > 1) return question_;  // a step with prompts has no idle arithmetic
    batch.add_decode(requests.num_tokens[slot]);
    const OfRequest& of = of_[slot];
    if (!is_for_model(of) || requests.num_output_tokens(slot) == 0) continue;
    candidates_.push_back(
        {slot, requests.num_tokens[slot], kNoLength, most_guesses(slot), rates(of, GuessSource::kModel)});
  }
  if (candidates_.empty()) return question_;
  const int32_t num_running = state_.num_running();
  const int32_t num_rows = state_.config.max_num_seqs - num_running;
  const int32_t most = std::min(state_.config.max_guessed_tokens, num_rows / static_cast<int32_t>(candidates_.size()));
  const GuessLimits limits{max_seconds(now), most, margin(kMargin, num_running)};
  const StepTimes times{state_.estimates.latency, row_costs_};
  question_.num_tokens = model_depth(model_times_, times, batch, num_running, limits, candidates_);
  if (question_.num_tokens > 0) {
    num_unasked_ = 0;
    for (const GuessCandidate& candidate : candidates_) question_.slots.push_back(candidate.slot);
  } else if (++num_unasked_ >= kStepsBetweenTrials && model_times_.of_token(1) > 0 && most > 0) {
    num_unasked_ = 0;
    question_.num_tokens = std::min(kTrialTokens, most);
    question_.slots.push_back(candidates_[static_cast<size_t>(state_.plan.step_id) % candidates_.size()].slot);
  }
  return question_;
}

// Not where a form forces its tokens, or while its text repeats itself at length.
bool Speculation::is_for_model(const OfRequest& of) const {
  const bool repeats = of.was_right && !of.takes_suggestion && of.match_length >= kSureLength;
  return of.scope && of.forced.empty() && !repeats;
}

GuessCandidate Speculation::forced_candidate(Slot slot) {
  const auto num_forced = static_cast<int32_t>(of_[slot].forced.size());
  GuessCandidate candidate{slot, state_.requests.num_tokens[slot], kNoLength, std::min(most_guesses(slot), num_forced)};
  candidate.rates.fill(1.0F);
  return candidate;
}

// The last token that it may have is not guessed: nothing would be sampled behind it.
int32_t Speculation::most_guesses(Slot slot) const {
  const int32_t num_left = state_.requests.limits[slot].max_total_tokens - state_.requests.num_tokens[slot];
  return std::min(state_.config.max_guessed_tokens, num_left - 1);
}

// Fewer where memory is short.
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
  std::copy_n(guesses(of_[slot]).begin(), num_guesses, tokens + num_tokens);
  num_guessed_.set(slot, num_guesses);
  state_.budget -= num_guesses;
  state_.counters.num_guessed_tokens += num_guesses;
}

// That the step may be predicted to take: no guess makes a token late, or makes others wait longer than a prompt might.
double Speculation::max_seconds(double now) const {
  Snapshot snapshot = state_.snapshot();
  snapshot.now = now;
  const auto running = std::span<const Slot>(state_.running);
  const bool any_offline =
      std::ranges::any_of(running, [&](Slot slot) { return state_.requests.request_class[slot] != kOnlineClass; });
  const double seconds =
      std::min(seconds_before_deadline(snapshot, running), seconds_beside_readers(state_.config, snapshot, running));
  if (!any_offline) return seconds;
  const bool is_beside_online = any_online(state_.requests, running);
  return std::min(seconds, offline_step_seconds(state_.config, state_.estimates, is_beside_online));
}

void Speculation::learn(Slot slot, int32_t num_sampled) {
  if (!is_open_[slot]) return;
  OfRequest& of = of_[slot];
  of.forced.clear();
  of.was_right = num_sampled > 1;
  const auto sampled = state_.requests.known_tokens(slot).last(num_sampled);
  learn(&of, of.source, of.match_length, of.next, sampled);
  learn(&of, GuessSource::kModel, kNoLength, of.suggested, sampled);
  of.next.clear();
  of.suggested.clear();
  is_open_[slot] = of.was_right;
}

// Of guesses that were computed or not.
void Speculation::learn(OfRequest* of, GuessSource source, int32_t length, std::span<const int32_t> guesses,
                        std::span<const int32_t> sampled) {
  const auto i = static_cast<size_t>(source);
  for (size_t j = 0; j < std::min(sampled.size(), guesses.size()); ++j) {
    const bool is_right = guesses[j] == sampled[j];
    const int32_t here = std::min(length + static_cast<int32_t>(j), RepetitionIndex::kMostCompared);
    of->acceptance[i].observe(here, is_right, kRequestMemory);
    of->scope->acceptance[i].observe(here, is_right, kMemory);
    if (!is_right) break;
  }
}

}  // namespace hocket
