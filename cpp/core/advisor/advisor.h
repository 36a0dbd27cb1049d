// Our policies for an engine that keeps its own memory and its own lists, such as vLLM: it says what is, and is told
// what to do next.
//
//   compose(now, ...)      what the coming step should do: tokens for whom, who may come in, who gives way
//   note_scheduled(...)    what the engine has made of it; what it refused is simply not there
//   commit(now, ...)       whose step has ended with how many new tokens: time is learnt, targets are watched
//
// Steps may overlap, as in engines that plan a step before the one before has ended: compose() and note_scheduled() of
// several steps may come before the first one's commit(); commits come in the order of the steps.
//
// Nothing told is assumed to be done: who runs is what the engine says at the next compose(). A request that runs there
// no longer has been preempted, and waits here again.
//
// What the scheduler does itself with memory, and this cannot: forms other than K and V, tiers, leases, and eviction by
// what waiting requests will use. A policy that weighs them finds that there are none.
//
// Thread safety: none. No allocation per step in steady state.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "advisor/borrowed_memory.h"
#include "advisor/open_step.h"
#include "base/config.h"
#include "base/ids.h"
#include "estimates/estimates.h"
#include "estimates/latency_refiner.h"
#include "estimates/memory_forecast.h"
#include "estimates/output_forecast.h"
#include "offline/offline_queue.h"
#include "policies/policy.h"
#include "requests/overload_control.h"
#include "requests/request.h"
#include "requests/tenants.h"
#include "stages/idle_share.h"

namespace hocket {

// Of one step. Requests are named by their slots.
struct Advice {
  std::vector<Slot> preempted;  // to be put out before the step
  std::vector<Slot> admitted;   // that may come in, in this order, and nobody else
  std::vector<Slot> granted;    // running and admitted ones; whoever is not here rests, and keeps its memory
  std::vector<int32_t> tokens;  // as long as `granted`: at most so many in this step
  std::vector<Slot> limited;    // of running ones, who gets fewer tokens than it has uncomputed ones; and all admitted
  std::vector<int32_t> limits;  // as long as `limited`: their grants, 0 of who rests
  std::vector<Slot> order;      // all that run on, who gives way last first; empty: there is memory for everybody
  int32_t num_tokens = 0;       // of all grants
};

struct AdvisorCounters {
  int64_t num_steps = 0;  // that had tokens
  std::array<int64_t, kNumRequestClasses> num_preempted = {};
  std::array<double, kNumRequestClasses> class_seconds = {};  // of steps, split by scheduled tokens
  double offline_only_seconds = 0.0;                          // of steps without online tokens
};

class Advisor {
 public:
  // Throws std::invalid_argument naming the bad field, or for what an engine of its own memory cannot do.
  explicit Advisor(const SchedulerConfig& config, const Estimates& estimates = Estimates());

  // Whether an online request may come in, by config.max_ttft_ms (requests/overload_control.h); nothing is taken.
  // num_cached: of its prompt's tokens, in the engine's cache.
  bool accepts(const RequestSpec& spec, int32_t num_cached) { return overload_.accepts(spec, {}, num_cached); }
  // Until one like the last that was not accepted would be, as it seems now.
  double retry_seconds() const { return overload_.retry_seconds(); }
  // Seconds until the first token of an online request that came now, with a short prompt.
  double predicted_ttft() const { return overload_.predicted_ttft(); }

  // A request waits in the engine. Throws std::invalid_argument: its prompt is empty or too long for the model, or it
  // may not sample a token. spec.id is not read.
  Slot add_request(const RequestSpec& spec);
  // Of a waiting request: its first tokens that the engine's cache has.
  void set_cached(Slot slot, int32_t num_tokens);
  // It has ended, or was aborted. is_complete: of itself, so that its length teaches what answers are like.
  void remove(Slot slot, bool is_complete);

  // running: whom the engine runs; num_computed: of each, the tokens that have their cache, those of steps under way
  // among them. num_free_blocks: of the engine's, that nobody holds, cached ones included. The advice is valid until
  // the next call. REQUIRES: live slots, each once; at most max_num_seqs.
  const Advice& compose(double now, std::span<const Slot> running, std::span<const int32_t> num_computed,
                        int32_t num_free_blocks);

  // The same where nothing has come between but steps that were noted: who runs, and how much of each is computed, is
  // known then. Null if the engine runs another number of requests than is known: it has to tell them.
  const Advice* compose_known(double now, int32_t num_running, int32_t num_free_blocks);

  // The step has so many tokens of these requests, behind so many that are computed already. An empty step is none.
  void note_scheduled(double now, std::span<const Slot> slots, std::span<const int32_t> num_tokens,
                      std::span<const int32_t> num_computed);
  // The step is the last advice, token for token. admitted: who came in, behind so many tokens that were found cached.
  void note_advised(double now, std::span<const Slot> admitted, std::span<const int32_t> num_found);
  // The engine has put these out: as advised, or for want of memory.
  void note_preempted(std::span<const Slot> slots);

  // The oldest step that was noted has ended; so many tokens were sampled for each of these.
  void commit(double now, std::span<const Slot> slots, std::span<const int32_t> num_sampled);

  // The same where each request whose known tokens were all computed by the step has one more. False, and nothing is
  // changed, if those that still live are not so many: they have to be told.
  bool commit_expected(double now, int32_t num_outputs);

  // Who runs, and how much of each is computed, as of the last step that was composed.
  std::vector<std::pair<Slot, int32_t>> running() const;
  std::array<int64_t, kNumRequestClasses> num_running() const { return count(running_); }
  std::array<int64_t, kNumRequestClasses> num_waiting() const { return count(waiting_); }
  const AdvisorCounters& counters() const { return counters_; }
  const LatencyRefiner& latency() const { return refiner_; }

  // Throws CoreError on the first broken invariant.
  void check_invariants() const;

 private:
  Snapshot snapshot() const;
  std::array<int64_t, kNumRequestClasses> count(std::span<const Slot> slots) const;
  bool is_queued_offline(Slot slot) const { return offline_ && requests_.request_class[slot] == kOfflineClass; }
  void enqueue(Slot slot);
  void dequeue(Slot slot);
  void note_admitted(Slot slot, int32_t num_cached);
  void seat(Slot slot);
  void unseat(Slot slot);
  void observe(Slot slot, int32_t num_computed);
  void begin_step(double now, int32_t num_free_blocks);
  void synchronize(std::span<const Slot> running, std::span<const int32_t> num_computed);
  void synchronize_known();
  void unseat_untold();
  const Advice& decide();
  void observe_online_use();

  void take(const Grant& grant);
  bool take_admission(const Grant& grant);
  bool make_room(Slot slot);
  bool fits(Slot slot) const;
  void put_out(Slot slot);
  void ensure_progress();
  void rank_running();
  void list_limited();

  const SchedulerConfig config_;
  const std::unique_ptr<Policy> policy_;
  Estimates estimates_;
  LatencyRefiner refiner_;
  OutputForecast output_forecast_;
  MemoryForecast online_use_;
  IdleShare offline_share_;
  BorrowedMemory memory_;
  RequestTable requests_;
  Tenants tenants_{&requests_};
  std::unique_ptr<OfflineQueue> offline_;  // if the policy asks for it
  std::vector<Slot> running_;              // in order of admission
  std::vector<Slot> waiting_;              // sorted by policy_->precedes()
  OverloadControl overload_{{config_, requests_, tenants_, memory_, estimates_, output_forecast_, running_, waiting_}};
  std::vector<int32_t> num_sampled_;   // by slot: output tokens that have come
  std::vector<int32_t> num_found_;     // by slot: tokens that its admission found cached
  std::vector<int32_t> num_believed_;  // by slot: computed ones, those of noted steps among them
  std::vector<Slot> newcomers_;        // admitted by noted steps, and not seated yet
  std::vector<Slot> lost_;             // put out by the engine, and still seated
  uint64_t next_id_ = 1;

  // The step
  double now_ = 0.0;
  double limit_seconds_ = 0.0;
  int32_t budget_ = 0;       // tokens left
  int64_t spare_units_ = 0;  // that nobody holds or was promised, less what this step's newcomers will take
  int32_t spare_rows_ = 0;
  Composition composition_;
  Advice advice_;
  std::vector<uint8_t> is_out_;   // by slot: put out in this step
  std::vector<uint8_t> is_told_;  // scratch, by slot
  std::vector<int32_t> granted_;  // scratch, by slot: its tokens of the step
  std::vector<Slot> sampled_;     // scratch
  std::vector<int32_t> counts_;   // scratch
  std::vector<Slot> victims_;     // scratch
  std::vector<Slot> displaced_;   // scratch
  std::deque<OpenStep> open_;
  std::vector<OpenStep> spare_steps_;  // whose memory is used again
  double last_commit_ = 0.0;
  AdvisorCounters counters_;
};

}  // namespace hocket
