// Discrete events over the very scheduler that serves live requests: arrivals and ends of steps under a virtual clock.
//
//   while anything is left:
//     hand over the requests that have arrived             Scheduler::add_request
//     hear of the moves that have ended                    Scheduler::complete_moves
//     plan the step at `now`                               Scheduler::schedule
//     now += what the latency model says of the plan       the executor's place
//            x how far a true step is from it              step_errors.h, where asked for
//     give every sequence that samples its next token      Scheduler::commit
//
// As in the live engine, a request that arrives during a step is seen after it. If there is nothing to run, time jumps
// to the next arrival, or the end of a move.
//
// Moves between tiers run beside steps and take the time that the estimates say; each direction carries one after the
// other. A step that loads blocks for itself waits for them layer group by layer group. The disk is as large as it
// needs to be and loses nothing. Answers end at their length: sampled tokens are synthetic and no stop token exists.
//
// A request either arrives at a time of its own, or follows another one: then it arrives `arrival_s` after that one has
// ended, as the next turn of a conversation does. A request that the scheduler refuses has ended at once.
//
// Time is a variable here: no clock, no I/O. The same arguments give the same records, bit by bit.
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "estimates/estimates.h"
#include "scheduler/scheduler.h"
#include "simulation/simulation_records.h"
#include "simulation/step_errors.h"
#include "simulation/synthetic_tokens.h"

namespace hocket {

// Views; the arrays have one entry per request and must outlive the loop.
struct SimulatedRequests {
  std::span<const double> arrival_s;     // seconds from the start, or after the end of the request that it follows
  std::span<const int32_t> follows;      // index of that request, or kNone
  std::span<const int32_t> num_outputs;  // tokens, >= 1
  std::span<const uint8_t> request_class;
  std::span<const int64_t> priority;
  std::span<const double> ttft_target_s;  // infinity: none
  std::span<const double> itl_target_s;   // infinity: none
  std::span<const double> tpot_target_s;  // infinity: none
  SyntheticPrompts prompts;

  size_t size() const { return arrival_s.size(); }
};

struct SimulationOptions {
  bool keep_token_times = false;
  double sample_interval_s = 0.0;        // 0: no samples
  bool overlap_transfers = true;         // copies from and to the host beside the computation; false: before it
  std::vector<double> step_errors = {};  // quantiles of true over predicted step times (step_errors.h); none: all are 1
  uint64_t error_seed = 0;
};

class SimulationLoop {
 public:
  // Throws std::invalid_argument if arrays disagree, a value is out of its range, two requests follow the same one, or
  // requests follow each other in a circle.
  // The estimates are what the scheduler believes at first. Here they are true, but for the step errors.
  SimulationLoop(const SchedulerConfig& config, const Estimates& estimates, const SimulatedRequests& requests,
                 const SimulationOptions& options);

  // Runs until everything has ended, or for `max_steps` steps; true if anything is left.
  bool run(int64_t max_steps);

  double now() const { return now_; }
  int64_t num_ended() const { return num_ended_; }

  const RequestRecords& records() const { return records_; }
  const SimulationSamples& samples() const { return samples_; }
  const TokenTimes& token_times() const { return token_times_; }
  const SimulationTotals& totals() const { return totals_; }
  // Gaps between the tokens of requests of that class.
  const ItlHistogram& itl_histogram(int32_t request_class) const { return itl_[request_class]; }

  const Scheduler& scheduler() const { return scheduler_; }

 private:
  using Index = int32_t;
  using Arrival = std::pair<double, Index>;
  using MoveEnd = std::pair<double, int32_t>;  // when, and the move's id
  static constexpr size_t kNumDirections = 4;  // to the host, to the device, to the disk, from the disk

  void check_requests() const;
  void link_followers();

  bool has_arrivals() const { return !arrivals_.empty(); }
  void admit_arrivals();
  void submit(Index request);
  void end(Index request);
  double begin_moves(const BatchPlan& plan);
  double move_seconds(MoveKind kind) const;
  void end_moves();
  void step(const BatchPlan& plan, double loaded_at);
  double step_seconds(const BatchPlan& plan) const;
  void sample(const BatchPlan& plan);
  void record_plan(const BatchPlan& plan);
  void record_token(Index request, int32_t num_output_tokens);
  double first_due(Index request) const;
  void take_samples();

  const SimulatedRequests requests_;
  const SimulationOptions options_;
  const Estimates estimates_;
  const SchedulerConfig config_;
  Scheduler scheduler_;

  double now_ = 0.0;
  int64_t num_ended_ = 0;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<Index> follower_;  // of each request, or kNone
  std::priority_queue<MoveEnd, std::vector<MoveEnd>, std::greater<>> move_ends_;
  std::array<double, kNumDirections> direction_free_s_ = {};  // when it has carried what was begun
  StepErrors errors_;
  const int32_t units_per_block_;
  const int32_t num_groups_;
  int64_t num_samples_ = 0;

  RequestRecords records_;
  SimulationSamples samples_;
  TokenTimes token_times_;
  SimulationTotals totals_;
  std::array<ItlHistogram, kNumRequestClasses> itl_;

  // Scratch
  std::vector<int32_t> ended_moves_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> sampled_;
};

}  // namespace hocket
