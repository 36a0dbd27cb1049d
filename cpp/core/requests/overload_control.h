// Which online requests are accepted: those whose first token can still come in time. Who would come too late is told
// so at once, and when to try again; nobody who is accepted starves for it (docs/scheduling.md, "Overload").
//
//   predicted TTFT = prompt work that waits, the request's own included / share of the time that prompts have had
//
// Prompt work is in predicted seconds: what waiting online requests, those that gave way among them, and prompts under
// way have left, less what is cached. The share is what the last seconds had in which somebody waited: it is small
// where decodes take the steps, and where prompts wait for memory. While nobody waits it is forgotten, and everybody is
// accepted.
//
// Where fewer may run than want to, that is no sooner than a place is free: as many have to leave first as are before
// the request beyond the places, each after the answer it is expected to give or, once max_wait_ms is over, after its
// turn. Short prompts with long answers wait for places: their prompts are no work to speak of.
//
// Predictions err: the share swings with how many decode. So they are taken times what first tokens took over what was
// predicted for them, by the quantile kInTime, of those that had to wait for a good part of the limit. That is
// forgotten once steps have gone by for kMemorySeconds in which nobody waited.
//
// Beside that, the known tokens of all accepted online requests may take kMostMemory of the pool: who gives way to
// others comes back, and they must all have their turn.
//
// Of several tenants that wait, one with less than its equal part of that time is accepted as long as all of them
// together stay below twice the limit: whoever has filled the queue keeps nobody else out.
//
// Under the default policy nobody who is accepted is then without a token for longer than
//
//   max_wait_ms + (1 + kTimesComputing) max_ttft_ms + kMostTurns x starving_turn_ms
//
// as argued in docs/scheduling.md.
//
// Offline requests and drafts are always accepted: they wait behind people.
// Thread safety: none. No allocation in note_step().
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/memory_view.h"
#include "estimates/estimates.h"
#include "estimates/output_forecast.h"
#include "estimates/quantile_sketch.h"
#include "requests/request.h"
#include "requests/tenants.h"

namespace hocket {

// What is looked at: a scheduler's, or an advisor's, who has no memory of its own.
struct LoadView {
  const SchedulerConfig& config;
  const RequestTable& requests;
  const Tenants& tenants;
  const MemoryView& memory;
  const Estimates& estimates;
  const OutputForecast& outputs;
  const std::vector<Slot>& running;
  const std::vector<Slot>& waiting;
};

class OverloadControl {
 public:
  static constexpr double kMostMemory = 4.0;  // of the pool
  static constexpr double kMostTurns = 2 * kMostMemory / SchedulerConfig::kStarvingShare;
  static constexpr double kMemorySeconds = 5.0;  // of the share of prompts: what is older counts less and less
  static constexpr double kPriorSeconds = 0.5;   // for which prompts are taken to have had the whole time
  static constexpr double kLeastShare = 0.01;
  static constexpr double kLeastRetrySeconds = 1.0;
  static constexpr double kInTime = 0.95;     // of who is accepted
  static constexpr double kWorstError = 3.0;  // beyond it, something else was the matter
  static constexpr double kMemoryTokens = 500;
  static constexpr double kFewTokens = 20;    // from which nothing is learnt yet
  static constexpr double kLongShare = 0.25;  // of the limit, that a prediction is to be for it to be learnt from

  // What is viewed outlives this.
  explicit OverloadControl(const LoadView& load) : load_(load) {}

  // Takes nothing. `restoring`: who waits for other tiers. num_cached: of its prompt's tokens, where the memory in view
  // does not know.
  bool accepts(const RequestSpec& spec, std::span<const Slot> restoring = {}, int32_t num_cached = 0);
  // What was predicted for the last accepted request; 0: nobody waited, or nobody asks.
  double accepted_ttft() const { return accepted_ttft_; }
  // That came `ttft` seconds after the request, for which accepted_ttft() was that.
  void note_first_token(double predicted, double ttft);
  // That the last refused request was told.
  double retry_seconds() const { return retry_seconds_; }

  // Seconds until the first token of a request that came now with next to no prompt. 0 while nothing is known of steps.
  double predicted_ttft(std::span<const Slot> restoring = {}) const;

  // Predicted, of a running request's part in a step: 0 if it is a decode or not online, or nobody asks.
  double prompt_seconds(Slot slot, int32_t num_computed, int32_t num_tokens) const;
  // A step ends that took `seconds`, and in which prompts had so much.
  void note_step(double prompt_seconds, double seconds);

 private:
  // Of online requests, running or waiting.
  struct Work {
    double seconds = 0.0;  // of prompts
    int64_t num_requests = 0;
    int64_t num_tokens = 0;    // known
    double num_outputs = 0.0;  // expected yet

    void operator+=(const Work& other) {
      seconds += other.seconds;
      num_requests += other.num_requests;
      num_tokens += other.num_tokens;
      num_outputs += other.num_outputs;
    }
  };
  struct Backlog {
    Work all;
    Work own;  // of it, the tenant's
  };

  bool is_enabled() const { return load_.config.max_ttft_ms < std::numeric_limits<double>::infinity(); }
  double share() const { return std::max(kLeastShare, (prompt_seconds_ + kPriorSeconds) / (seconds_ + kPriorSeconds)); }
  Backlog backlog(std::span<const Slot> restoring, int32_t tenant) const;
  // Until one more has its first token whose prompt takes so long, if it may have one of so many equal parts.
  double ttft_behind(const Work& before, double prompt_seconds, double num_parts) const;
  // Until one of so many places is free for who comes behind all of these.
  double place_seconds(const Work& before, double num_places) const;
  double waiting_seconds(Slot slot) const;
  double running_seconds(Slot slot) const;
  int64_t num_waiting_tenants(int32_t own);

  const LoadView load_;
  double prompt_seconds_ = 0.0;  // predicted, of what was computed while somebody waited; fades
  double seconds_ = 0.0;         // that this took; fades
  double retry_seconds_ = kLeastRetrySeconds;
  double accepted_ttft_ = 0.0;
  QuantileSketch errors_{kMemoryTokens};  // what first tokens took over what was predicted
  double error_ = 1.0;                    // that is reckoned with
  double quiet_seconds_ = 0.0;            // of steps in a row in which nobody waited
  std::vector<int32_t> tenants_;          // scratch
};

}  // namespace hocket
