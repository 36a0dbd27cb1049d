// Guesses of what requests will say next, verified by the step that computes them (the field says speculative decoding,
// and drafts; a draft here is a message that is still being typed).
//
// A guess is where the request's text went on when it last said what it says now (repetition_index.h), or where the
// answers went on that others of its tenant and salt had lately (guess_scopes.h), whichever agrees with more of it; or
// what a small model says that comes next (ask_model() and suggest()), where that is right more often; or what nothing
// but can follow in the form that its answer has (force()): such a guess is taken to be right. In the plan a guessed
// token is a decode of the same request, one position further: its K and V are written before anybody
// attends, so that it attends to the guesses before it, and what is sampled from it is what would be sampled if they
// are right. commit() keeps sampled tokens as long as each equals the guess that the next one was computed from. So the
// tokens are those that would have come without guesses, whatever the sampling: greedy, or by noise that belongs to the
// output index.
//
// Vectors of wrong guesses lie behind the computed tokens, where later ones overwrite them. Their blocks are never
// complete with computed tokens, so that nobody shares them.
//
// How many tokens are guessed is decided every step, after all else (guess_lengths.h), from how often guesses were
// right (acceptance.h) and what they cost, by the latency model and as measured beyond it (row_costs.h). Where no guess
// could pay, nobody looks for any, and where looking takes more than a small share of the step, those whose guesses
// were wrong look in some steps only. Nobody gives way for a guess: it takes rows of the batch and memory that nobody
// else wants, and no deadline is missed for it.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "requests/per_request.h"
#include "speculation/acceptance.h"
#include "speculation/guess_counts.h"
#include "speculation/guess_lengths.h"
#include "speculation/guess_scopes.h"
#include "speculation/model_guesses.h"
#include "speculation/repetition_index.h"
#include "speculation/row_costs.h"
#include "state/scheduler_state.h"

namespace hocket {

// Who is to be guessed by a small model, and how many tokens of each; none where that does not pay.
struct ModelQuestion {
  int32_t num_tokens = 0;
  std::vector<Slot> slots;
};

class Speculation {
 public:
  // `state` outlives this.
  explicit Speculation(SchedulerState* state);

  bool is_enabled() const { return state_.config.max_guessed_tokens > 0; }

  // Says how many tokens behind the known ones the plan's decodes are to compute as well, and puts them there, behind
  // num_tokens. Returns whether there are any. REQUIRES: is_enabled(); the plan's batch is written.
  bool guess();

  // The tokens that come next, if the caller is right; until one has come, or others are named. None: it is not known.
  void force(Slot slot, std::span<const int32_t> tokens) {
    of_[slot].forced.assign(tokens.begin(), tokens.end());
    is_open_[slot] = true;
  }

  // What a small model is to say before the next step. Asking changes no plan.
  const ModelQuestion& ask_model(double now);
  // What it said: guesses of the request's next tokens, which count until one has come.
  void suggest(Slot slot, std::span<const int32_t> tokens) {
    if (!of_[slot].scope) return;
    of_[slot].suggested.assign(tokens.begin(), tokens.end());
    is_open_[slot] = true;
  }
  // How long it took for so many tokens of each of so many requests. Until that is known nobody is to be guessed by it.
  void on_model(int32_t num_requests, int32_t num_tokens, double seconds) {
    model_times_.observe(num_requests, num_tokens, seconds);
  }

  void on_added(Slot slot, const RequestSpec& spec);
  // Of the open plan.
  const GuessCounts& num_guessed() const { return num_guessed_; }
  // The same of one request, which has none from now on.
  int32_t take_guesses(Slot slot) { return num_guessed_.take(slot); }

  // The open plan's step took so long, where the latency model says `predicted`.
  void on_step(const BatchFeatures& features, double predicted_seconds, double seconds) {
    row_costs_.observe(features, has_guesses_, predicted_seconds, seconds);
  }
  // The request's last `num_sampled` tokens were sampled in this step, the others were known before.
  void learn(Slot slot, int32_t num_sampled);
  // REQUIRES: its tokens are still there.
  void on_ended(Slot slot);
  // Nobody is guessed by others' texts before new ones have come. REQUIRES: no plan is open.
  void forget_texts() { scopes_.clear(); }

 private:
  struct OfRequest {
    std::shared_ptr<GuessScope> scope;  // null: nothing is guessed for it but what is forced
    RepetitionIndex index;
    std::vector<int32_t> next;       // that a match of what it says now has; empty: there is none
    int32_t match_length = 0;        // in tokens
    GuessSource source = {};         // of the match
    std::vector<int32_t> suggested;  // by the small model
    bool takes_suggestion = false;   // rather than the match
    bool was_right = false;          // a guess of the last step
    std::vector<int32_t> forced;     // that come next; then there is nothing else
    AcceptanceBySource acceptance;
  };

  bool find_guesses();
  int64_t looking_stride(double step_seconds) const;
  void collect(int64_t stride);
  bool look(Slot slot, OfRequest* of);
  const std::vector<int32_t>& guesses(const OfRequest& of) const;
  void learn(OfRequest* of, GuessSource source, int32_t length, std::span<const int32_t> guesses,
             std::span<const int32_t> sampled);
  Acceptance::Rates rates(const OfRequest& of, GuessSource source) const;
  bool is_for_model(const OfRequest& of) const;
  GuessCandidate forced_candidate(Slot slot);
  int32_t most_guesses(Slot slot) const;
  void write(Slot slot, int32_t num_guesses);
  double max_seconds(double now) const;

  static constexpr float kRequestMemory = 32.0F;  // observations, beyond which older ones count less
  static constexpr float kMemory = 512.0F;
  static constexpr float kFirstRate = 0.4F;
  static constexpr float kFirstModelRate = 0.6F;
  static constexpr int32_t kNoLength = 2;     // of a match, where there is none
  static constexpr int32_t kSureLength = 16;  // tokens: no match elsewhere is better than the text's own of that length
  static constexpr int32_t kContext = 16;     // of a prompt's last tokens, that are kept before the answer
  // Guesses have to gain a little more than they cost: what they gain is expected, and a token that comes earlier saves
  // no step where others are served as long as before.
  static constexpr double kMargin = 1.15;
  // To look costs about as much, with what is read of the text and of others' and what is learnt from it: between two
  // steps the model's weights leave none of that in a near cache. Beyond that share of a step only those are looked at
  // every time who were just right.
  static constexpr double kLookSeconds = 2e-6;
  static constexpr double kLookingShare = 0.005;
  // Where the small model does not seem to pay, one request is guessed by it now and then.
  static constexpr int32_t kStepsBetweenTrials = 256;
  static constexpr int32_t kTrialTokens = 2;

  SchedulerState& state_;
  PerRequest<OfRequest> of_;
  // Whether there are guesses of it, or the last ones were right: of most requests nothing else is read in a step.
  PerRequest<bool> is_open_;
  GuessCounts num_guessed_;
  GuessScopes scopes_;
  GuessLengths lengths_;
  RowCosts row_costs_;
  ModelTimes model_times_;
  ModelQuestion question_;
  int32_t num_unasked_ = 0;                 // times that nobody was to be guessed by the small model, in a row
  bool has_guesses_ = false;                // the open plan
  std::vector<GuessCandidate> candidates_;  // of the step
};

}  // namespace hocket
