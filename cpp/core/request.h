// What the core knows of the live requests: flat arrays, one entry per slot.
//
// Progress is counters, not phases:
//
//   [0, num_computed_tokens)             have their cache
//   [num_computed_tokens, num_tokens)    known, not computed: one token when decoding, more after arrival or preemption
//   num_scheduled_tokens                 of these are computed by the step that is running now
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

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_key.h"
#include "ids.h"

namespace hocket {

// The values of schedcore.types.RequestClass.
inline constexpr int32_t kNumRequestClasses = 3;
inline constexpr int32_t kOnlineClass = 0;
inline constexpr int32_t kOfflineClass = 1;
inline constexpr int32_t kAdvisoryClass = 2;

// The values of schedcore.types.FinishReason.
enum class FinishReason : uint8_t { kNone = 0, kStop = 1, kLength = 2, kAbort = 3, kError = 4 };
inline constexpr int32_t kNumFinishReasons = 5;

// Restoring: it waits until what other tiers have of it is there. Draft: it computes a session's draft, in steps that
// have room, and holds nothing in between.
enum class RequestState : uint8_t { kFree, kWaiting, kRunning, kRestoring, kDraft };

// A request as it is handed in. Views are read during the call only.
struct RequestSpec {
  uint64_t id = 0;
  std::span<const int32_t> prompt;
  int64_t max_tokens = 1;                                        // output tokens
  int64_t min_tokens = 0;                                        // output tokens before a stop token may end it
  std::span<const int32_t> stop_token_ids;                       // end of sequence included
  int32_t request_class = 0;                                     // < kNumRequestClasses
  int64_t priority = 0;                                          // smaller is more important; see class_order.h
  double arrival_time = 0.0;                                     // seconds
  double ttft_target = std::numeric_limits<double>::infinity();  // seconds
  double itl_target = std::numeric_limits<double>::infinity();   // seconds
  std::string_view cache_salt;
  std::string_view tenant;      // with the salt and
  std::string_view session_id;  // this, names the session; empty: none
};

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

  std::span<const int32_t> known_tokens(Slot slot) const { return {tokens[slot].get(), size_t(num_tokens[slot])}; }
  std::span<const int32_t> computed_tokens(Slot slot) const {
    return {tokens[slot].get(), size_t(num_computed_tokens[slot])};
  }
  int32_t num_output_tokens(Slot slot) const { return num_tokens[slot] - num_prompt_tokens[slot]; }
  int32_t num_uncomputed_tokens(Slot slot) const { return num_tokens[slot] - num_computed_tokens[slot]; }

  void append_token(Slot slot, int32_t token) {
    tokens[slot][num_tokens[slot]++] = token;
    last_token[slot] = token;
  }

  // A token was sampled at `now`. A request is late for good once its first token came after the TTFT target, or more
  // than one in a hundred of its gaps exceed the ITL target, the first one apart: its P99 may still meet it.
  void note_token(Slot slot, double now);

  // Seconds since the last token, or since arrival.
  double pending_seconds(Slot slot, double now) const { return now - last_token_time[slot]; }
  // When the next token is due: TTFT counts from arrival, ITL from the last token. Infinite without a target.
  double deadline(Slot slot) const {
    return num_tokens[slot] == num_prompt_tokens[slot] ? arrival_time[slot] + ttft_target[slot]
                                                       : last_token_time[slot] + itl_target[slot];
  }

  // Why the request ends with the token appended last, or kNone. A stop token counts from min_tokens output tokens on.
  FinishReason finish_reason(Slot slot, int32_t last_token) const;

  // Identity and limits, constant while live
  std::vector<uint64_t> id;
  std::vector<uint64_t> sequence;  // order of add(); unique
  std::vector<int32_t> num_prompt_tokens;
  std::vector<int32_t> max_total_tokens;  // prompt + output
  std::vector<int32_t> min_total_tokens;  // before which no stop token ends it
  std::vector<uint64_t> stop_mask;        // bit t % 64 is set for every stop token t: most tokens need no search
  std::vector<std::vector<int32_t>> stop_token_ids;
  std::vector<std::string> cache_salt;

  // What policies weigh, constant while live
  std::vector<uint8_t> request_class;
  std::vector<int64_t> priority;
  std::vector<double> arrival_time;
  std::vector<double> ttft_target;
  std::vector<double> itl_target;

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
  std::vector<int32_t> num_unstored_tokens;        // from the start, to be recomputed with the next step
  std::vector<uint8_t> is_starved;                 // was admitted after its longest wait: keeps its place until it ends
  std::vector<double> last_token_time;             // seconds; of the last output token, arrival before the first
  std::vector<int32_t> num_late_gaps;              // gaps between output tokens above the ITL target
  std::vector<uint8_t> is_late;                    // has missed a target for good: see note_token()
  std::vector<int32_t> num_saved_tokens;           // of a waiting request, whose vectors are on the host
  std::vector<int64_t> num_saved_units;            // that they take there
  std::vector<std::unique_ptr<int32_t[]>> tokens;  // room for max_total_tokens

  // Sessions and tiers
  std::vector<int32_t> session;              // SessionId, or kNone
  std::vector<uint64_t> session_serial;      // the session of that id may be another by now
  std::vector<uint8_t> is_draft;             // computes its session's draft, and ends without sampling
  std::vector<std::vector<BlockKey>> keys;   // of its first complete blocks; empty without tiers
  std::vector<uint8_t> num_restores;         // since it began to wait
  std::vector<int32_t> num_loadable_tokens;  // of a waiting request, behind what is cached, for its first step to load
  std::vector<int32_t> num_leased_tokens;    // of a waiting request, restored for it and leased until it is admitted
  std::vector<int32_t> num_loaded_tokens;    // that came from the host before its first admission
  std::vector<int32_t> num_fetched_tokens;   // that came from the disk to the host before
  std::vector<double> seconds_saved;         // predicted, by those
  std::vector<int32_t> num_copied_blocks;  // complete ones that were offered to the host; not those before an uncached
  std::vector<int32_t> num_loaded_layers;  // of its unstored tokens, in the last step that computed something of it

  std::unordered_map<uint64_t, Slot> slot_of_id;
  std::vector<Slot> free_slots;
  uint64_t next_sequence = 0;

 private:
  Slot take_slot();
};

}  // namespace hocket
