// The scheduler: continuous batching with chunked prefill in one token budget.
//
//   schedule(now)          who computes how many tokens in this step, and where: a BatchPlan
//   commit(sampled, now)   what the step yielded: counters move, requests end, memory is indexed or comes back
//
// schedule() and commit() alternate; add_request() and abort() may come at any time between any two calls. The caller
// brings the time. The same calls with the same arguments make the same decisions.
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
// With room on the host a preempted request's computed tokens are saved there and come back with its next admission;
// otherwise they are recomputed, as far as the prefix cache has not kept them.
//
// With a host tier (tiers.h), what was computed is saved as it completes. A request whose prompt is there, or on disk,
// is restored where that is predicted to be faster than computing it. Either it leaves the waiting list, its blocks
// come into the prefix cache beside the steps of others, and it waits again until it is admitted with them; or it is
// admitted at once, and its blocks land while its first step runs, layer group by layer group. Moves are in the plan,
// and complete_moves() says when they are done.
//
// Sessions (session_table.h): advise() announces a request. What the session's last one left in the cache is leased: it
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

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "batch_plan.h"
#include "config.h"
#include "device_memory.h"
#include "estimates.h"
#include "ids.h"
#include "latency_refiner.h"
#include "memory_forecast.h"
#include "offline_queue.h"
#include "output_forecast.h"
#include "plan_writer.h"
#include "policy.h"
#include "request.h"
#include "scheduler_stats.h"
#include "session_table.h"
#include "step_output.h"
#include "tiers.h"

namespace hocket {

enum class AddStatus : uint8_t {
  kOk,
  kQueueFull,    // max_num_waiting requests are waiting
  kTooLong,      // can never be computed, see add_request()
  kDuplicateId,  // the id is live
  kInvalid,      // empty prompt, negative token id, max_tokens < 1, min_tokens < 0, unknown class, arrival not finite
};

// The values of schedcore.types.AdvisoryEvent, in order.
enum class AdvisoryEvent : int32_t { kTyping = 0, kAgentStep = 1, kCancel = 2, kQuery = 3, kRelease = 4 };
inline constexpr int32_t kNumAdvisoryEvents = 5;

// The values of schedcore.types.SessionAction, in order.
enum class SessionAction : int32_t {
  kNone = 0,
  kPin = 1,
  kPrefetch = 2,
  kDraftPrefill = 3,
  kRelease = 4,
  kRefused = 5
};

struct AdvisorySpec {
  SessionName session;
  AdvisoryEvent event = AdvisoryEvent::kQuery;
  double lease_seconds = 0.0;
  std::span<const int32_t> draft;  // the prompt as far as it is known; may be empty
};

struct SessionReport {
  bool is_known = false;
  int32_t num_tokens = 0;                   // of the session's last request
  std::array<int32_t, 3> tier_tokens = {};  // of the announced prompt or the last request: device, host, disk
  SessionAction action = SessionAction::kNone;
  double lease_seconds = -1.0;  // that are left; negative: no lease
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

  // Ends a request; false if no live request has that id. The id is free at once. So is the memory, unless the request
  // is in the open plan: then it comes back with the commit, which leaves the request out of the StepOutput.
  bool abort(uint64_t request_id);

  // Plans the next step. The plan is valid until the next schedule(); it is empty if and only if there is no work, and
  // then needs no commit. REQUIRES: no plan is open.
  const BatchPlan& schedule(double now);

  // Closes the open plan. sampled: one token per plan.sample_seqs, in that order. The result is valid until the next
  // commit(). Throws CoreError if no plan is open, the size differs, or a token is negative.
  const StepOutput& commit(std::span<const int32_t> sampled, double now);

  bool has_work() const { return !running_.empty() || !waiting_.empty() || !restoring_.empty(); }

  // ---- tiers and sessions ----

  // Moves of earlier plans have been carried out, or failed (only stores and fetches may). At any time between two
  // calls.
  void complete_moves(std::span<const int32_t> done, std::span<const int32_t> failed);
  bool has_moves() const { return tiers_.has_moves(); }

  // Whether schedule() may have something to do although there is no work: blocks to write to disk.
  bool has_background_work() const { return tiers_.has_unwritten(); }

  // The disk has these blocks, from an earlier life; or it has them no longer.
  void note_on_disk(std::span<const BlockKey> keys) { tiers_.note_on_disk(keys); }
  void forget_on_disk(std::span<const BlockKey> keys) { tiers_.forget_on_disk(keys); }

  // Announces a session's next request, takes that back, or only asks. An unknown session is left unknown, and costs
  // nothing. At any time between two calls.
  SessionReport advise(const AdvisorySpec& spec, double now);
  SchedulerStats stats() const;
  const LatencyRefiner& latency() const { return refiner_; }

  // Drops every cached block that nobody runs; returns how many.
  int32_t reset_prefix_cache() { return memory_.reset_cache(); }

  // Tokens of the row's request, from its start, for which the block table has no block. For tests.
  int32_t num_missing_tokens(Row row) const { return memory_.form(row).num_uncached_blocks * config_.block_size; }
  bool is_row_in_use(Row row) const { return memory_.tables().is_in_use(row); }  // for tests

  // Of a live request, a draft among them. For tests.
  std::span<const int32_t> known_tokens(uint64_t id) const { return requests_.known_tokens(requests_.find(id)); }
  const std::string& cache_salt(uint64_t id) const { return requests_.cache_salt[requests_.find(id)]; }
  static bool is_draft_id(uint64_t id) { return id >= kDraftIds; }

  // Throws CoreError on the first broken invariant: free + owned + cached units = total, pins = rows = running
  // requests, the tree, counters, lists and ids agree. O(everything); also valid while a plan is open.
  void check_invariants() const;

 private:
  AddStatus validate(const RequestSpec& spec) const;
  Snapshot snapshot() const;

  void hand_out_grants();
  bool is_allowed(const Grant& grant) const;
  void ensure_progress();
  void grant_running(Slot slot, int32_t max_tokens);
  int32_t num_uncached_tokens(Slot slot) const;
  bool grow_by_preemption(Slot slot, int32_t num_tokens);
  void collect_victims(Slot needy);
  Slot take_victim();
  bool overtakes_preempted(Slot slot) const;
  enum class Admission : uint8_t { kAdmitted, kRefused, kRestoring };
  Admission admit(Slot slot, int32_t max_tokens, CacheForm form);
  bool make_room(Slot slot);
  void seat(Slot slot, int32_t num_cached_tokens);
  void preempt(Slot slot);
  void save(Slot slot);
  bool can_restore(Slot slot, CacheForm form) const;
  CacheKind saved_kind(Slot slot) const;
  void restore(Slot slot);
  void drop_saved(Slot slot);
  void reshape(const Reshape& reshape);
  void write_forms();
  void count_conversion(CacheForm from, CacheForm to);
  void count_forms(SchedulerStats* stats) const;

  void learn_from_step(double seconds);
  void count_seconds(double seconds);
  void commit_tokens(Slot slot);
  FinishReason commit_sample(Slot slot, int32_t token);
  void end_request(Slot slot, FinishReason reason);

  // scheduler_tiers.cpp
  void save_completed(Slot slot, int32_t begin, int32_t end);
  std::span<const BlockKey> update_keys(Slot slot, int32_t num_tokens);
  enum class RestoreStep : uint8_t { kNothing, kLater, kFetch, kLoad };
  struct RestoreChoice {
    RestoreStep step = RestoreStep::kNothing;
    int32_t begin = 0;  // blocks
    int32_t end = 0;
  };
  RestoreChoice choose_restore(Slot slot);
  bool is_restore_faster(int32_t num_tokens, int32_t num_cached_blocks, const Tiers::Extent& extent) const;
  void restore_waiting();
  bool can_overlap(Slot slot, const RestoreChoice& choice, CacheForm form) const;
  double seconds_with(Slot slot, int32_t num_computed) const;
  void begin_step_load(Slot slot, const RestoreChoice& choice);
  void drop_step_load(Slot slot);
  void write_step_loads();
  void begin_fetch(Slot slot, const RestoreChoice& choice);
  void begin_load(Slot slot, const RestoreChoice& choice, int32_t num_open_units);
  void note_load(Slot slot, const RestoreChoice& choice, double copy_seconds);
  void wait_for_restore(Slot slot);
  void end_restore(Slot slot);
  void drop_lease(Slot slot);
  void count_hits(Slot slot, int32_t num_cached_tokens);

  // scheduler_copies.cpp
  void save_copies(Slot slot);
  bool has_copies(Slot slot, int32_t num_blocks) const;
  void begin_behind_copies(Slot slot);
  void bring_back(Slot slot, int32_t end);
  void drop_idle_returns();
  void write_copies();
  bool can_load(Slot slot) const;
  BatchFeatures features_beside_copies() const;
  void let_go_of_copies();

  // scheduler_sessions.cpp
  Session* session_of(Slot slot);
  void join_session(Slot slot, const RequestSpec& spec);
  void note_admission(Slot slot);
  void remember(Slot slot);
  bool set_draft(Session* session, std::span<const int32_t> draft);
  void announce(SessionId id, double lease_seconds, double now);
  void retarget(SessionId id);
  void end_announcement(SessionId id);
  void renew_lease(Session* session);
  SessionAction plan_for(const Session& session) const;
  void report(const Session& session, double now, SessionReport* report) const;
  void advance_sessions();
  bool advance(SessionId id);
  bool restore_session(SessionId id, int32_t num_cached);
  bool begin_draft(SessionId id);
  void drop_draft(Session* session);
  bool grant_draft();
  int32_t draft_chunk(Slot slot, int32_t num_cached) const;
  void end_draft_step(Slot slot);

  void observe_online_use();
  bool is_queued_offline(Slot slot) const { return offline_ && requests_.request_class[slot] == kOfflineClass; }
  void enqueue(Slot slot);
  void dequeue(Slot slot);

  void check_lists() const;
  void check_sessions() const;
  void check_request(Slot slot) const;

  static constexpr uint64_t kDraftIds = uint64_t{1} << 63;  // ids of drafts in plans start here
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  const SchedulerConfig config_;
  const std::unique_ptr<Policy> policy_;
  Estimates estimates_;
  LatencyRefiner refiner_;
  DeviceMemory memory_;
  RequestTable requests_;
  std::unique_ptr<OfflineQueue> offline_;  // if the policy asks for it
  MemoryForecast online_use_;
  OutputForecast output_forecast_;
  int64_t num_host_units_ = 0;  // taken by saved requests
  std::vector<Slot> running_;   // in order of admission
  std::vector<Slot> waiting_;   // sorted by policy_->precedes()

  Tiers tiers_;
  std::vector<Slot> restoring_;
  SessionTable sessions_;
  std::vector<SessionId> active_sessions_;  // those that are, by their flag, in the order of their announcements
  double next_lease_end_ = kNever;          // seconds; no lease ends before
  int32_t num_leases_ = 0;
  uint64_t num_drafts_ = 0;  // ever

  // The step
  double now_ = 0.0;
  int32_t budget_ = 0;            // tokens left
  int32_t num_private_rows_ = 0;  // running requests of another form than KV
  enum class StepKind : uint8_t { kAny, kPrefill, kDecode } step_kind_ = StepKind::kAny;
  std::vector<Slot> preempted_;  // by this schedule()
  struct StepLoad {
    Slot slot;
    int32_t begin;  // blocks
    int32_t end;
    bool is_return = false;  // of blocks that were uncached
  };
  std::vector<StepLoad> step_loads_;  // of this schedule()
  std::vector<Slot> copied_;          // whose uncached tokens the open plan loads
  bool is_open_ = false;
  double limit_seconds_ = 0.0;  // that a deadline, or the bound of offline steps, leaves the step
  BatchPlan plan_;
  StepOutput output_;
  PlanWriter writer_;

  SchedulerCounters counters_;

  // Scratch
  Composition composition_;
  std::vector<Slot> victims_;
  std::vector<Slot> displaced_;
  std::vector<Slot> candidates_;
  std::vector<RestoreOwner> restored_;
  std::vector<BlockKey> draft_keys_;
};

}  // namespace hocket
