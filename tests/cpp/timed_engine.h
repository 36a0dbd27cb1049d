// A FakeEngine whose steps take what the latency model says, or as much longer as they are told, and a log of who was
// served when.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fake_engine.h"
#include "offline/plan_features.h"
#include "policy_world.h"
#include "simulation/step_errors.h"

namespace hocket::testing {

// Blocks of 4 tokens, 2 units each as K and V.
inline SchedulerConfig timed_config(const char* policy, int32_t num_blocks, int32_t num_rows = 16) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_num_seqs = num_rows;
  config.max_num_batched_tokens = 256;
  config.max_model_len = 512;
  config.policy = policy;
  return config;
}

struct Event {
  double begin = 0.0;  // when the step was planned, seconds
  double end = 0.0;
  std::set<uint64_t> served;  // got tokens
  std::set<uint64_t> sampled;
  std::set<uint64_t> preempted;
  BatchPlan plan;
};

class TimedEngine {
 public:
  explicit TimedEngine(const SchedulerConfig& config, const Estimates& estimates = linear_seconds(0.010, 0.001),
                       const StepErrors& errors = StepErrors({}, 0))
      : engine(config, /*vocab_size=*/5, estimates), latency_(estimates.latency), errors_(errors) {
    engine.pause = 0.0;
  }

  FakeEngine engine;
  std::map<uint64_t, RequestOf> specs;  // of what was accepted, by id

  // The request arrives now, no two at once. Its prompt is its own unless its first token says otherwise.
  uint64_t add(const RequestOf& request) {
    CHECK_EQ(offer(request), AddStatus::kOk);
    return last_id();
  }

  AddStatus offer(RequestOf request) {
    const uint64_t id = next_id_++;
    request.arrival = last_arrival_ = std::max(engine.now, last_arrival_ + 1e-5);
    RequestSpec spec;
    spec.id = id;
    spec.max_tokens = request.max_tokens;
    spec.priority = request.priority;
    spec.request_class = request.request_class;
    spec.arrival_time = request.arrival;
    spec.targets = request.targets();
    spec.tenant = request.tenant;
    Tokens prompt(request.num_prompt);
    for (int32_t i = 0; i < request.num_prompt; ++i) {
      prompt[i] = request.first_token == 1 ? static_cast<int32_t>(1000 * id) + i : request.first_token + i;
    }
    const AddStatus status = engine.add(spec, prompt);
    if (status == AddStatus::kOk) specs[id] = request;
    return status;
  }
  uint64_t last_id() const { return next_id_ - 1; }

  Event step() {
    Event event;
    event.begin = engine.now;
    event.plan = engine.step(
        [&](const BatchPlan& plan) { engine.now += latency_.predict(plan_features(plan)) * errors_.next(); });
    event.end = engine.now;
    event.served.insert(event.plan.request_ids.begin(), event.plan.request_ids.end());
    event.preempted.insert(event.plan.preempted_ids.begin(), event.plan.preempted_ids.end());
    for (const int32_t s : event.plan.sample_seqs) event.sampled.insert(event.plan.request_ids[s]);
    engine.scheduler.check_invariants();
    return event;
  }

  std::vector<Event> run(int32_t max_steps = 100000) {
    std::vector<Event> events;
    while (engine.scheduler.has_work()) {
      CHECK(std::ssize(events) < max_steps);
      events.push_back(step());
    }
    return events;
  }

  bool has_ended(uint64_t id) const { return engine.requests.at(id).reason != FinishReason::kNone; }
  bool is_online(uint64_t id) const { return specs.at(id).request_class == kOnlineClass; }
  int64_t num_waiting() const {
    int64_t num_waiting = 0;
    for (const int64_t count : engine.scheduler.stats().num_waiting) num_waiting += count;
    return num_waiting;
  }
  int64_t num_preemptions() const { return engine.scheduler.stats().counters.num_preemptions; }

 private:
  const LatencyModel latency_;
  StepErrors errors_;
  uint64_t next_id_ = 1;
  double last_arrival_ = -1.0;
};

}  // namespace hocket::testing
