// The scheduler: continuous batching with chunked prefill in one token budget.
//
//   schedule(now)          who computes how many tokens in this step, and where: a BatchPlan
//   commit(sampled, now)   what the step yielded: counters move, requests end, memory is indexed or comes back
//
// schedule() and commit() alternate; add_request() and abort() may come at any time between any two calls. The caller
// brings the time. The same calls with the same arguments make the same decisions.
//
// This class is the order of the phases. The work is that of its parts, which share a SchedulerState
// (scheduler_state.h):
//
//   overload_control.h            which online requests are accepted
//   admission.h                   who has a row: what the policy says, as far as tokens and memory reach
//   restores.h, step_loads.h      what waiting requests get from the tiers instead of computing it
//   announcements.h               sessions: leases and drafts
//   forms.h                       other forms than K and V, and what the host has of tokens that are not cached
//   saves.h                       how the papers' policies swap, in simulation
//   speculation.h                 tokens that requests are guessed to say, computed before they are known
//   plan_writer.h                 the plan's batch
//
// Every step, the policy grants tokens to running and waiting requests in some order (policy.h), and the scheduler
// carries the grants out until the budget is spent. Blocks are allocated for the tokens that a step computes. When the
// pool is empty, cached blocks that nobody runs are evicted, then running requests are preempted in the policy's order:
// a preempted request loses its row, its complete blocks stay cached as long as memory lasts, and it returns to its
// place in the waiting list with nothing computed. Its next admission is an ordinary one over prompt and output so far.
//
// Without chunked prefill a prompt is computed in one step, beside any decodes or, without mixed steps, beside other
// prompts only. A preempted request whose prompt and output exceed the budget of a step is then still recomputed in
// chunks: it could not return otherwise.
//
// With room on the host (saves.h) a preempted request's computed tokens are saved there and come back with its next
// admission; otherwise they are recomputed, as far as the prefix cache has not kept them.
//
// With a host tier (restores.h), what was computed is saved as it completes. A request whose prompt is there, or on
// disk, is restored where that is predicted to be faster than computing it. Either it leaves the waiting list, its
// blocks come into the prefix cache beside the steps of others, and it waits again until it is admitted with them; or
// it is admitted at once, and its blocks land while its first step runs, layer group by layer group. Moves are in the
// plan, and complete_moves() says when they are done.
//
// Sessions (announcements.h): advise() announces a request. What the session's last one left in the cache is leased: it
// is evicted after all else. What other tiers have of it is brought back while nobody needs the memory. A draft of the
// prompt is computed in what a step leaves over, behind offline work.
//
// What a policy leaves undone is made good: if a composition schedules nothing although there is work, the requests are
// taken in order, without time limits.
//
// Progress: as long as has_work(), schedule() returns a plan that is not empty, or moves are under way. add_request()
// refuses what the pool could not hold alone up to its last possible token, and under pressure all but the most
// important request give way, so every accepted request ends.
//
// Every accepted request ends exactly once: its last entry in a StepOutput carries a finish reason, or abort() was
// called on it and returned true.
//
// Invariants: see check_invariants().
// Thread safety: none. No allocation in schedule() and commit() in steady state (same requests decoding).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/batch_plan.h"
#include "base/config.h"
#include "base/ids.h"
#include "estimates/estimates.h"
#include "estimates/latency_refiner.h"
#include "policies/policy.h"
#include "requests/overload_control.h"
#include "requests/request.h"
#include "scheduler/admission.h"
#include "scheduler/forms.h"
#include "scheduler/plan_writer.h"
#include "scheduler/step_output.h"
#include "sessions/announcements.h"
#include "speculation/speculation.h"
#include "state/scheduler_state.h"
#include "state/scheduler_stats.h"
#include "transfers/restores.h"
#include "transfers/saves.h"
#include "transfers/step_loads.h"

namespace hocket {

enum class AddStatus : uint8_t {
  kOk,
  kQueueFull,    // max_num_waiting requests are waiting
  kOverloaded,   // the first token is predicted to come later than max_ttft_ms (overload_control.h)
  kTooLong,      // can never be computed, see add_request()
  kDuplicateId,  // the id is live
  kInvalid,      // empty prompt, negative token id, max_tokens < 1, min_tokens < 0, unknown class, arrival not finite
};

class Scheduler {
 public:
  // Throws std::invalid_argument naming the bad field.
  explicit Scheduler(const SchedulerConfig& config, const Estimates& estimates = Estimates());

  // Accepts a request, or says why not and changes nothing. kTooLong if
  //   prompt + 1 > max_model_len, or
  //   the blocks for min(prompt + max_tokens, max_model_len) tokens exceed the pool, or
  //   prompt > max_num_batched_tokens, without chunked prefill.
  AddStatus add_request(const RequestSpec& spec);

  // Until an online request like the one that was refused as kOverloaded last would be accepted, as it seems now.
  double retry_seconds() const { return overload_.retry_seconds(); }

  // Ends a request; false if no live request has that id. The id is free at once. So is the memory, unless the request
  // is in the open plan: then it comes back with the commit, which leaves the request out of the StepOutput.
  bool abort(uint64_t request_id);

  // The request's next tokens, as its answer's form leaves no others: worth computing in one step like any guess, and
  // compared like any guess with what is sampled, so that a wrong one costs time only. They count until one token of
  // the request has come, or others are named. False, and nothing is kept: no live request has that id, or nothing is
  // guessed. Throws CoreError while a plan is open, or if a token is negative.
  bool force(uint64_t request_id, std::span<const int32_t> tokens);

  // What a small model is to guess before the next step, of whom and how far; nothing where that does not pay, or
  // before note_model() has said what it takes (speculation/model_guesses.h). Changes no decision: what is suggested
  // does. Throws CoreError while a plan is open.
  const ModelQuestion& ask_model(double now);

  // The request's next tokens, as a small model guesses them. As force(), but taken to be right as often as they were.
  bool suggest(uint64_t request_id, std::span<const int32_t> tokens);

  // The small model took `seconds` for num_tokens tokens of each of num_requests.
  void note_model(int32_t num_requests, int32_t num_tokens, double seconds) {
    speculation_.on_model(num_requests, num_tokens, seconds);
  }

  // Plans the next step. The plan is valid until the next schedule(); it is empty if and only if there is no work, and
  // then needs no commit. REQUIRES: no plan is open.
  const BatchPlan& schedule(double now);

  // Closes the open plan. sampled: one token per plan.sample_seqs, in that order, or kNoToken where the model gave
  // nothing that makes sense: that request ends with kError, and nothing of which that came is shared. The
  // result is valid until the next commit(). Throws CoreError if no plan is open, the size differs, or a token is
  // negative and not kNoToken.
  const StepOutput& commit(std::span<const int32_t> sampled, double now);

  bool has_work() const { return !state_.running.empty() || !state_.waiting.empty() || !restores_.restoring().empty(); }

  // ---- tiers and sessions ----

  // Moves of earlier plans have been carried out, or failed (only stores and fetches may). At any time between two
  // calls.
  void complete_moves(std::span<const int32_t> done, std::span<const int32_t> failed) {
    restores_.complete(done, failed);
  }
  bool has_moves() const { return state_.tiers.has_moves(); }

  // Whether schedule() may have something to do although there is no work: blocks to write to disk.
  bool has_background_work() const { return state_.tiers.has_unwritten(); }

  // The disk has these blocks, from an earlier life; or it has them no longer.
  void note_on_disk(std::span<const BlockKey> keys) { state_.tiers.note_on_disk(keys); }
  void forget_on_disk(std::span<const BlockKey> keys) { state_.tiers.forget_on_disk(keys); }

  // Peers: engines on other machines, by numbers that the caller gives. See tiers.h.
  static constexpr int32_t kMaxPeers = Tiers::kMaxPeers;
  void note_on_peer(std::span<const BlockKey> keys, int32_t peer) { state_.tiers.note_on_peer(keys, peer); }
  void forget_peer(int32_t peer) { state_.tiers.forget_peer(peer); }
  void note_peer_rate(int32_t peer, double bytes_per_second) { state_.tiers.note_peer_rate(peer, bytes_per_second); }
  void lend(std::span<const BlockKey> keys, std::vector<int32_t>* slots) { state_.tiers.lend(keys, slots); }
  void take_back(std::span<const BlockKey> keys) { state_.tiers.take_back(keys); }
  bool has_in_tiers(const BlockKey& key) const {
    const EntryId entry = state_.tiers.index().find(key);
    return entry != kNone && (state_.tiers.index().is_on_host(entry) || state_.tiers.index().is_on_disk(entry));
  }
  bool has_tiers() const { return state_.tiers.is_enabled(); }
  bool adopt_session(const SessionName& name, std::span<const int32_t> tokens) {
    return announcements_.adopt(name, tokens);
  }
  int32_t pull_session(const SessionName& name) { return announcements_.pull(name); }
  template <typename Visit>
  void visit_recent_sessions(int32_t max, Visit visit) const {
    announcements_.visit_recent(max, visit);
  }

  // Announces a session's next request, takes that back, or only asks. An unknown session is left unknown, and costs
  // nothing. At any time between two calls.
  SessionState advise(const AdvisorySpec& spec, double now) { return announcements_.advise(spec, now); }

  // A session from an earlier life, and what one has computed: to be kept for a later life. See announcements.h.
  bool remember_session(const SessionName& name, std::span<const int32_t> tokens) {
    return announcements_.remember(name, tokens);
  }
  std::span<const int32_t> session_tokens(const SessionName& name) const { return announcements_.tokens(name); }

  SchedulerStats stats() const;
  const LatencyRefiner& latency() const { return refiner_; }

  // Drops every cached block that nobody runs; returns how many.
  int32_t reset_prefix_cache() {
    speculation_.forget_texts();
    return state_.memory.reset_cache();
  }

  // Tokens of the row's request, from its start, for which the block table has no block. For tests.
  int32_t num_missing_tokens(Row row) const {
    return state_.memory.form(row).num_uncached_blocks * state_.config.block_size;
  }
  bool is_row_in_use(Row row) const { return state_.memory.tables().is_in_use(row); }  // for tests

  // Of a live request, a draft among them.
  std::span<const int32_t> known_tokens(uint64_t id) const {
    return state_.requests.known_tokens(state_.requests.find(id));
  }
  const RequestTable& requests() const { return state_.requests; }
  const std::string& cache_salt(uint64_t id) const { return state_.requests.cache_salt[state_.requests.find(id)]; }
  static bool is_draft_id(uint64_t id) { return id >= kDraftIds; }

  // Throws CoreError on the first broken invariant: free + owned + cached units = total, pins = rows = running
  // requests, the tree, counters, lists and ids agree. O(everything); also valid while a plan is open.
  void check_invariants() const;

 private:
  AddStatus validate(const RequestSpec& spec) const;
  void end_request(Slot slot, FinishReason reason);

  void begin_step(double now);
  void observe_online_use();
  double seconds_limit() const;
  void write_batch();

  void learn_from_step(double seconds);
  void count_seconds(double seconds);
  FinishReason commit_unanswered(Slot slot, std::span<const int32_t> sampled, bool is_draft);
  FinishReason commit_samples(Slot slot, std::span<const int32_t> sampled, int32_t first_sample);
  FinishReason commit_guesses(Slot slot, std::span<const int32_t> sampled, int32_t first_sample);
  void commit_tokens(Slot slot, bool is_sound);
  bool has_tiers(Slot slot) const;
  void save(Slot slot, int32_t num_indexed);
  FinishReason commit_sample(Slot slot, int32_t token, int32_t sample_index);
  void on_first_token(Slot slot);
  void write_output(Slot slot, int32_t token, FinishReason reason, int32_t sample_index);

  void check_lists() const;
  void check_request(Slot slot) const;

  SchedulerState state_;
  LatencyRefiner refiner_;
  Announcements announcements_;
  StepLoads loads_;
  Restores restores_;
  Saves saves_;
  Forms forms_;
  Admission admission_;
  OverloadControl overload_;
  Speculation speculation_;
  PlanWriter writer_;

  Composition composition_;
  bool is_open_ = false;
  double limit_seconds_ = 0.0;  // of the open plan
  StepOutput output_;
};

}  // namespace hocket
