#include "simulation/simulation_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/check.h"
#include "stages/copy_stage.h"

namespace hocket {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

SimulationLoop::SimulationLoop(const SchedulerConfig& config, const Estimates& estimates,
                               const SimulatedRequests& requests, const SimulationOptions& options)
    : requests_(requests),
      options_(options),
      estimates_(estimates),
      config_(config),
      scheduler_(config, estimates),
      errors_(options.step_errors, options.error_seed),
      units_per_block_(config.units_per_block()),
      num_groups_(config.num_groups()),
      records_(requests.size()) {
  check_requests();
  link_followers();
}

void SimulationLoop::check_requests() const {
  const SimulatedRequests& r = requests_;
  const SyntheticPrompts& p = r.prompts;
  const size_t n = r.size();
  require(r.follows.size() == n && r.num_outputs.size() == n && r.request_class.size() == n && r.priority.size() == n &&
              r.ttft_target_s.size() == n && r.itl_target_s.size() == n && r.tpot_target_s.size() == n &&
              p.continuations.size() == n,
          "the requests' arrays must have one length");
  require(p.offsets.size() == n + 1 && p.offsets[0] == 0 && p.offsets[n] == static_cast<int64_t>(p.streams.size()) &&
              p.streams.size() == p.ends.size(),
          "the prompts' runs do not fit together");
  for (size_t i = 0; i < n; ++i) {
    require(std::isfinite(r.arrival_s[i]) && r.arrival_s[i] >= 0, "arrival_s must be finite and not negative");
    require(r.num_outputs[i] >= 1, "num_outputs must be at least 1");
    require(r.request_class[i] < kNumRequestClasses, "there is no such request class");
    require(r.ttft_target_s[i] >= 0 && r.itl_target_s[i] >= 0 && r.tpot_target_s[i] >= 0,
            "targets must not be negative");
    require(p.offsets[i] < p.offsets[i + 1], "a prompt must not be empty");
    for (int64_t run = p.offsets[i], end = 0; run < p.offsets[i + 1]; end = p.ends[run++]) {
      require(p.ends[run] > end, "the ends of a prompt's runs must ascend");
    }
  }
}

void SimulationLoop::link_followers() {
  const auto n = static_cast<Index>(requests_.size());
  follower_.assign(n, kNone);
  std::vector<Index> reached;
  for (Index i = 0; i < n; ++i) {
    const Index leader = requests_.follows[i];
    if (leader == kNone) {
      arrivals_.emplace(requests_.arrival_s[i], i);
      reached.push_back(i);
    } else {
      require(leader >= 0 && leader < n, "a request follows one that does not exist");
      require(follower_[leader] == kNone, "two requests follow the same one");
      follower_[leader] = i;
    }
  }
  for (size_t k = 0; k < reached.size(); ++k) {
    if (follower_[reached[k]] != kNone) reached.push_back(follower_[reached[k]]);
  }
  require(reached.size() == requests_.size(), "requests follow each other in a circle");
}

bool SimulationLoop::run(int64_t max_steps) {
  for (int64_t left = max_steps; left > 0;) {
    admit_arrivals();
    end_moves();
    if (!scheduler_.has_work() && !has_arrivals()) return false;
    const bool is_busy = scheduler_.has_work() || scheduler_.has_moves() || scheduler_.has_background_work();
    const BatchPlan* plan = is_busy ? &scheduler_.schedule(now_) : nullptr;
    const double loaded_at = plan != nullptr ? begin_moves(*plan) : now_;
    if (plan != nullptr && !plan->empty()) {
      step(*plan, loaded_at);
      --left;
      continue;
    }
    HOCKET_CHECK(has_arrivals() || !move_ends_.empty(),
                 "the scheduler has work, runs nothing, and nothing will arrive");
    const double next_arrival = has_arrivals() ? arrivals_.top().first : kNever;
    const double next_end = move_ends_.empty() ? kNever : move_ends_.top().first;
    now_ = std::max(now_, std::min(next_arrival, next_end));
  }
  return scheduler_.has_work() || has_arrivals();
}

// ---- requests come and go ----

void SimulationLoop::admit_arrivals() {
  while (has_arrivals() && arrivals_.top().first <= now_) {
    const auto [time, request] = arrivals_.top();
    arrivals_.pop();
    records_.arrival_s[request] = time;
    submit(request);
  }
}

void SimulationLoop::submit(Index request) {
  requests_.prompts.write(request, &prompt_);
  RequestSpec spec;
  spec.id = static_cast<uint64_t>(request);
  spec.prompt = prompt_;
  spec.max_tokens = requests_.num_outputs[request];
  spec.request_class = requests_.request_class[request];
  spec.priority = requests_.priority[request];
  spec.arrival_time = records_.arrival_s[request];
  spec.targets = {requests_.ttft_target_s[request], requests_.itl_target_s[request], requests_.tpot_target_s[request]};
  switch (scheduler_.add_request(spec)) {
    case AddStatus::kOk:
      return;
    case AddStatus::kQueueFull:
      records_.outcome[request] = SimulatedOutcome::kQueueFull;
      break;
    case AddStatus::kOverloaded:
      records_.outcome[request] = SimulatedOutcome::kOverloaded;
      break;
    case AddStatus::kTooLong:
      records_.outcome[request] = SimulatedOutcome::kTooLong;
      break;
    default:
      HOCKET_CHECK(false, "the simulator made an invalid request");
  }
  end(request);
}

void SimulationLoop::end(Index request) {
  ++num_ended_;
  const Index follower = follower_[request];
  if (follower != kNone) arrivals_.emplace(now_ + requests_.arrival_s[follower], follower);
}

// ---- moves ----

// Returns when what the plan's step waits for is there.
double SimulationLoop::begin_moves(const BatchPlan& plan) {
  double loaded_at = now_;
  for (size_t i = 0; i < plan.moves.ids.size(); ++i) {
    const auto kind = static_cast<MoveKind>(plan.moves.kinds[i]);
    const bool is_step_load = kind == MoveKind::kStepLoad;
    double& free_at = direction_free_s_[static_cast<size_t>(is_step_load ? MoveKind::kLoad : kind)];
    free_at = std::max(free_at, now_) + move_seconds(kind);
    move_ends_.emplace(free_at, plan.moves.ids[i]);
    if (is_step_load) loaded_at = free_at;
  }
  return loaded_at;
}

// Of one block.
double SimulationLoop::move_seconds(MoveKind kind) const {
  const bool is_disk = kind == MoveKind::kStore || kind == MoveKind::kFetch;
  return is_disk ? estimates_.disk_seconds(units_per_block_) : estimates_.transfer_seconds(units_per_block_);
}

void SimulationLoop::end_moves() {
  ended_moves_.clear();
  for (; !move_ends_.empty() && move_ends_.top().first <= now_; move_ends_.pop()) {
    ended_moves_.push_back(move_ends_.top().second);
  }
  if (!ended_moves_.empty()) scheduler_.complete_moves(ended_moves_, {});
}

// ---- steps ----

void SimulationLoop::step(const BatchPlan& plan, double loaded_at) {
  record_plan(plan);
  const double computed = step_seconds(plan) * errors_.next();
  const bool is_waiting = loaded_at > now_;
  const double seconds = is_waiting ? Estimates::overlapped_seconds(computed, loaded_at - now_, num_groups_) : computed;
  take_samples();
  now_ += seconds;
  totals_.busy_s += seconds;
  sample(plan);
  const StepOutput& output = scheduler_.commit(sampled_, now_);
  for (size_t i = 0; i < output.request_ids.size(); ++i) {
    const auto request = static_cast<Index>(output.request_ids[i]);
    record_token(request, output.num_output_tokens[i]);
    if (output.num_output_tokens[i] == 1) records_.num_cached_tokens[request] = output.num_cached_tokens[i];
    if (output.finish_reasons[i] == static_cast<uint8_t>(FinishReason::kNone)) continue;
    records_.outcome[request] = SimulatedOutcome::kFinished;
    end(request);
  }
}

// Both directions of the bus work at once.
double SimulationLoop::step_seconds(const BatchPlan& plan) const {
  const double compute = estimates_.latency.predict(computed_features(plan, config_.num_layers));
  if (!plan.forms.copy_slots.empty()) {
    return Estimates::overlapped_seconds(compute, copy_seconds(plan, config_, estimates_), config_.num_layers);
  }
  if (plan.transfers.empty()) return compute;
  int64_t num_to_host = 0, num_to_device = 0;
  for (const HostTransfer& transfer : plan.transfers) {
    (transfer.is_to_host ? num_to_host : num_to_device) += transfer.num_units;
  }
  const double transfer = estimates_.transfer_seconds(std::max(num_to_host, num_to_device));
  return options_.overlap_transfers ? std::max(compute, transfer) : compute + transfer;
}

void SimulationLoop::sample(const BatchPlan& plan) {
  sampled_.clear();
  for (const int32_t seq : plan.sample_seqs) {
    const uint64_t stream = requests_.prompts.continuations[plan.request_ids[seq]];
    sampled_.push_back(synthetic_token(stream, static_cast<uint64_t>(plan.seq_lens[seq])));
  }
}

void SimulationLoop::record_plan(const BatchPlan& plan) {
  ++totals_.num_steps;
  totals_.num_scheduled_tokens += plan.num_tokens();
  totals_.num_scheduled_seqs += plan.num_seqs();
  for (const uint64_t id : plan.preempted_ids) ++records_.num_preemptions[id];
  for (const uint64_t id : plan.request_ids) {
    if (std::isnan(records_.scheduled_s[id])) records_.scheduled_s[id] = now_;
  }
}

void SimulationLoop::record_token(Index request, int32_t num_output_tokens) {
  RequestRecords& r = records_;
  if (num_output_tokens == 1) {
    r.first_token_s[request] = now_;
  } else {
    const double gap = now_ - r.last_token_s[request];
    r.max_itl_s[request] = std::max(r.max_itl_s[request], gap);
    r.num_itl_violations[request] += gap > requests_.itl_target_s[request];
    r.num_tpot_violations[request] +=
        now_ > first_due(request) + (num_output_tokens - 1) * requests_.tpot_target_s[request];
    itl_[requests_.request_class[request]].add(gap);
  }
  r.last_token_s[request] = now_;
  r.num_output_tokens[request] = num_output_tokens;
  if (!options_.keep_token_times) return;
  token_times_.request.push_back(static_cast<uint32_t>(request));
  token_times_.time_s.push_back(now_);
}

// From which cumulative deadlines count: when the first token was due or, without a TTFT target, came.
double SimulationLoop::first_due(Index request) const {
  const double ttft_target = requests_.ttft_target_s[request];
  return ttft_target == kNever ? records_.first_token_s[request] : records_.arrival_s[request] + ttft_target;
}

// One sample per interval in which a step begins.
void SimulationLoop::take_samples() {
  if (options_.sample_interval_s <= 0 || now_ < num_samples_ * options_.sample_interval_s) return;
  num_samples_ = static_cast<int64_t>(now_ / options_.sample_interval_s) + 1;
  const SchedulerStats stats = scheduler_.stats();
  samples_.time_s.push_back(now_);
  samples_.num_running.push_back(stats.num_running);
  samples_.num_waiting.push_back(stats.num_waiting);
  samples_.num_free_units.push_back(stats.num_free_units);
  samples_.num_cached_units.push_back(stats.num_cached_units);
}

}  // namespace hocket
