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
// What a policy leaves undone is made good: if a composition schedules nothing although there is work, the requests are
// taken in order, without time limits.
//
// Progress: as long as has_work(), schedule() returns a plan that is not empty. add_request() refuses what the pool
// could not hold alone up to its last possible token, and under pressure all but the most important request give way,
// so every accepted request ends.
//
// Every accepted request ends exactly once: its last entry in a StepOutput carries a finish reason, or abort() was
// called on it and returned true.
//
// Invariants: see check_invariants().
// Thread safety: none. No allocation in schedule() and commit() in steady state (same requests decoding).
#pragma once

#include <cstdint>
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
#include "step_output.h"

namespace hocket {

enum class AddStatus : uint8_t {
  kOk,
  kQueueFull,    // max_num_waiting requests are waiting
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

  // Ends a request; false if no live request has that id. The id is free at once. So is the memory, unless the request
  // is in the open plan: then it comes back with the commit, which leaves the request out of the StepOutput.
  bool abort(uint64_t request_id);

  // Plans the next step. The plan is valid until the next schedule(); it is empty if and only if there is no work, and
  // then needs no commit. REQUIRES: no plan is open.
  const BatchPlan& schedule(double now);

  // Closes the open plan. sampled: one token per plan.sample_seqs, in that order. The result is valid until the next
  // commit(). Throws CoreError if no plan is open, the size differs, or a token is negative.
  const StepOutput& commit(std::span<const int32_t> sampled, double now);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  SchedulerStats stats() const;
  const LatencyRefiner& latency() const { return refiner_; }

  // Drops every cached block that nobody runs; returns how many.
  int32_t reset_prefix_cache() { return memory_.reset_cache(); }

  // Tokens of the row's request, from its start, for which the block table has no block. For tests.
  int32_t num_missing_tokens(Row row) const { return memory_.form(row).num_uncached_blocks * config_.block_size; }

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
  bool admit(Slot slot, int32_t max_tokens, CacheForm form);
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

  void commit_tokens(Slot slot);
  FinishReason commit_sample(Slot slot, int32_t token);
  void end_request(Slot slot, FinishReason reason);

  void observe_online_use();
  bool is_queued_offline(Slot slot) const { return offline_ && requests_.request_class[slot] == kOfflineClass; }
  void enqueue(Slot slot);
  void dequeue(Slot slot);

  void check_lists() const;
  void check_request(Slot slot) const;

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

  // The step
  double now_ = 0.0;
  int32_t budget_ = 0;            // tokens left
  int32_t num_private_rows_ = 0;  // running requests of another form than KV
  enum class StepKind : uint8_t { kAny, kPrefill, kDecode } step_kind_ = StepKind::kAny;
  std::vector<Slot> preempted_;  // by this schedule()
  bool is_open_ = false;
  BatchPlan plan_;
  StepOutput output_;
  PlanWriter writer_;

  SchedulerCounters counters_;

  // Scratch
  Composition composition_;
  std::vector<Slot> victims_;
  std::vector<Slot> displaced_;
};

}  // namespace hocket
