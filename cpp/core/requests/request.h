// What the core knows of the live requests: flat arrays, one entry per slot. What only one part of the scheduler needs
// of a request is kept by that part (per_request.h).
//
// Progress is counters, not phases:
//
//   [0, num_computed_tokens)             have their cache
//   [num_computed_tokens, num_tokens)    known, not computed: one token when decoding, more after arrival or preemption
//   num_scheduled_tokens                 of these are computed by the step that is running now, maybe with others that
//                                        are guessed and stand behind num_tokens meanwhile (speculation.h)
//
// so prefill, chunked prefill, decode, resume and recompute are the same arithmetic. num_tokens counts the prompt and
// the output sampled so far. A step that reaches num_tokens samples the next token.
//
// Policies read these arrays; the scheduler alone writes them.
//
// Invariants: 0 <= num_computed + num_scheduled <= num_tokens <= max_total_tokens; a waiting request has no row and
// nothing computed.
// Thread safety: none. Allocation: in add() only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"
#include "base/request_class.h"

namespace hocket {

// Why a request ended; every accepted request ends with exactly one that is not kNone.
enum class FinishReason : uint8_t {
  kNone = 0,
  kStop = 1,    // a stop token or the end-of-sequence token was sampled
  kLength = 2,  // max_tokens, or the model's context is full
  kAbort = 3,   // the client or an operator ended it
  kError = 4,   // refused or failed
};
inline constexpr int32_t kNumFinishReasons = 5;

// Restoring: it waits until what other tiers have of it is there. Draft: it computes a session's draft, in steps that
// have room, and holds nothing in between.
enum class RequestState : uint8_t { kFree, kWaiting, kRunning, kRestoring, kDraft };

// What a request is to see, in seconds; infinite: it does not say. RequestTable has the deadlines that follow.
struct Targets {
  double ttft = std::numeric_limits<double>::infinity();  // from arrival to the first token
  double itl = std::numeric_limits<double>::infinity();   // between two tokens
  double tpot = std::numeric_limits<double>::infinity();  // per token after the first, all of them together

  // That a step may take if all steps took as long.
  double seconds_per_token() const { return std::min(itl, tpot); }
};

// A request as it is handed in. Views are read during the call only.
struct RequestSpec {
  uint64_t id = 0;
  std::span<const int32_t> prompt;
  int64_t max_tokens = 1;                   // output tokens to come
  int64_t min_tokens = 0;                   // output tokens, prior ones included, before a stop token may end it
  std::span<const int32_t> stop_token_ids;  // end of sequence included
  int32_t request_class = 0;                // < kNumRequestClasses
  int64_t priority = 0;                     // smaller is more important; see class_order.h
  double arrival_time = 0.0;                // seconds
  Targets targets;
  std::string_view cache_salt;
  std::string_view tenant;      // with the salt and
  std::string_view session_id;  // this, names the session; empty: none

  bool is_guessable = true;  // whether the worker can sample behind tokens that are only guessed (speculation.h)

  // Of a request that goes on where another engine's ended: as if it had been preempted here.
  int64_t num_prior_tokens = 0;  // the prompt's last ones, that are output already
  double last_token_time = 0.0;  // seconds; of the last of them. Meaningless without
};

// When a request ends.
struct RequestLimits {
  int32_t max_total_tokens = 0;  // prompt + output
  int32_t min_total_tokens = 0;  // before which no stop token ends it
  uint64_t stop_mask = 0;        // bit t % 64 is set for every stop token t: most tokens need no search
};

// How its tokens come: what every step reads and writes of every request, so that it is small.
struct Pace {
  double last_token_time = 0.0;  // seconds; of the last output token, arrival before the first
  double first_due = 0.0;        // seconds; when the first token was due or, without a TTFT target, came
};

// What it has had to wait for.
struct Delays {
  int32_t num_late_gaps = 0;    // gaps between output tokens above the ITL target
  int32_t num_late_tokens = 0;  // tokens after the first that came after their cumulative deadline
  double seated_at = 0.0;       // seconds; its last admission
  double unserved_until = 0.0;  // seconds; as late as others waited too long, it had got no token since that
  double waited_since = 0.0;    // seconds; last_token_time as it was then
  bool is_late = false;         // has missed a target for good: see RequestTable::note_token()
  float predicted_ttft = 0.0F;  // seconds, when it was accepted; 0: nobody waited then
};

// A request's last tokens, which are not in its array yet: a step appends one to each of many requests, and each array
// is a line of memory, and a page, that nothing has touched since the step before. These lie side by side.
struct TokenTail {
  int32_t num = 0;
  int32_t tokens[15];
};
static_assert(sizeof(TokenTail) == 64);

struct RequestTable {
  // REQUIRES: spec is valid (see Scheduler::add_request) and its id is not live.
  Slot add(const RequestSpec& spec, int32_t max_model_len);

  // The id stops naming the slot; the slot lives on until free().
  void forget_id(Slot slot) { slot_of_id.erase(id[slot]); }
  void free(Slot slot);

  // The live slot of that id, or kNone.
  Slot find(uint64_t request_id) const;

  int32_t num_slots() const { return static_cast<int32_t>(id.size()); }
  int32_t num_live() const { return num_slots() - static_cast<int32_t>(free_slots.size()); }

  std::span<const int32_t> known_tokens(Slot slot) const {
    write_tail(slot);
    return {tokens[slot].get(), size_t(num_tokens[slot])};
  }
  std::span<const int32_t> computed_tokens(Slot slot) const {
    return known_tokens(slot).first(size_t(num_computed_tokens[slot]));
  }
  std::span<const int32_t> stop_tokens(Slot slot) const {
    const int32_t* behind = tokens[slot].get() + limits[slot].max_total_tokens;
    return {behind + 1, size_t(behind[0])};
  }
  int32_t num_output_tokens(Slot slot) const { return num_tokens[slot] - num_prompt_tokens[slot]; }
  int32_t num_uncomputed_tokens(Slot slot) const { return num_tokens[slot] - num_computed_tokens[slot]; }

  void append_token(Slot slot, int32_t token) {
    TokenTail& tail = tails[slot];
    if (tail.num == std::ssize(tail.tokens)) write_tail(slot);
    tail.tokens[tail.num++] = token;
    ++num_tokens[slot];
    last_token[slot] = token;
  }

  // A token was sampled at `now`. A request is late for good once its first token came after the TTFT target, or more
  // than one in a hundred of its gaps exceed the ITL target, the first one apart: its P99 may still meet it; or as many
  // of its tokens have come after their cumulative deadlines.
  void note_token(Slot slot, double now) {
    Pace& of = pace[slot];
    const Targets& target = targets[slot];
    const int32_t num_output = num_output_tokens(slot);
    const double gap = now - of.last_token_time;
    of.last_token_time = now;
    if (num_output == 1) return note_first_token(slot, gap);
    const bool is_late_gap = gap > target.itl;
    const bool is_late_token = now > of.first_due + (num_output - 1) * target.tpot;
    if (is_late_gap || is_late_token) note_late_token(slot, is_late_gap, is_late_token);
  }

  // Seconds since the last token, or since arrival.
  double pending_seconds(Slot slot, double now) const { return now - pace[slot].last_token_time; }

  // When the next token is due, by either kind of deadline, in seconds; infinite without its target.
  //
  //   gap          of token i > 0   time of token i - 1 + ITL       no pause is longer
  //   cumulative   of token i >= 0  arrival + TTFT + i x TPOT       whoever ran ahead may pause for as long (Echo, 5.1)
  //
  // Without a TTFT target cumulative deadlines count from when the first token came.
  double gap_deadline(Slot slot) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    return num_output_tokens(slot) == 0 ? kNever : pace[slot].last_token_time + targets[slot].itl;
  }
  double cumulative_deadline(Slot slot) const {
    const int32_t i = num_output_tokens(slot);
    return i == 0 ? pace[slot].first_due : pace[slot].first_due + i * targets[slot].tpot;
  }
  // The tighter of the two.
  double deadline(Slot slot) const { return std::min(gap_deadline(slot), cumulative_deadline(slot)); }

  // Why the request ends with the token appended last, or kNone. A stop token counts from min_tokens output tokens on.
  FinishReason finish_reason(Slot slot, int32_t last_token) const {
    const RequestLimits& limit = limits[slot];
    if ((limit.stop_mask >> (last_token & 63)) & 1 && is_stopped_by(slot, last_token)) return FinishReason::kStop;
    return num_tokens[slot] == limit.max_total_tokens ? FinishReason::kLength : FinishReason::kNone;
  }

  // Identity and limits, constant while live
  std::vector<uint64_t> id;
  std::vector<uint64_t> sequence;  // order of add(); unique
  std::vector<int32_t> num_prompt_tokens;
  std::vector<RequestLimits> limits;
  std::vector<std::string> cache_salt;

  // What policies weigh, constant while live
  std::vector<uint8_t> request_class;
  std::vector<int64_t> priority;
  std::vector<double> arrival_time;
  std::vector<Targets> targets;

  // Progress
  std::vector<RequestState> state;
  std::vector<uint8_t> is_aborted;  // ends at the commit of the open plan
  std::vector<Row> row;             // kNone unless running
  std::vector<int32_t> num_tokens;
  std::vector<int32_t> last_token;  // = tokens[num_tokens - 1]: a decode reads it without missing the cache
  std::vector<int32_t> num_computed_tokens;
  std::vector<int32_t> num_scheduled_tokens;
  std::vector<int32_t> num_cached_tokens;   // prompt tokens that were cached at the first admission; kNone before
  std::vector<int32_t> num_last_scheduled;  // tokens that its last step gave it; 0 once preempted
  std::vector<int32_t> num_cached_hint;     // of a waiting request: known tokens that were cached when it began to wait
  std::vector<int32_t> num_recomputed_tokens;  // from the start, to be recomputed with the next step
  std::vector<uint8_t> is_starved;             // was admitted after its longest wait: keeps its place until it ends
  std::vector<Pace> pace;
  std::vector<Delays> delays;
  std::vector<int32_t> num_saved_tokens;  // of a waiting request, whose vectors are on the host
  // Room for max_total_tokens, then how many stop tokens, and they. The last known ones may be in the tail instead;
  // behind them stands what is guessed (speculation.h).
  std::vector<std::unique_ptr<int32_t[]>> tokens;
  mutable std::vector<TokenTail> tails;

  // What other tiers have of it
  std::vector<std::vector<BlockKey>> keys;   // of its first complete blocks; empty without tiers
  std::vector<int32_t> num_loadable_tokens;  // of a waiting request, behind what is cached, for its first step to load
  std::vector<int32_t> num_loaded_layers;    // of its recomputed tokens, in the last step that computed something of it

  std::unordered_map<uint64_t, Slot> slot_of_id;
  std::vector<Slot> free_slots;
  uint64_t next_sequence = 0;

 private:
  void write_tail(Slot slot) const {
    TokenTail& tail = tails[slot];
    std::copy_n(tail.tokens, tail.num, tokens[slot].get() + num_tokens[slot] - tail.num);
    tail.num = 0;
  }
  Slot take_slot();
  static Pace pace_of(const RequestSpec& spec);
  bool is_stopped_by(Slot slot, int32_t last_token) const;
  void note_first_token(Slot slot, double ttft);  // in seconds
  void note_late_token(Slot slot, bool is_late_gap, bool is_late_token);
};

}  // namespace hocket
