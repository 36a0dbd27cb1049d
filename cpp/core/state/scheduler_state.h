// What the parts of the scheduler share: the live requests and their lists, the memory and its tiers, what is believed
// of times, and the step that is being planned. A part keeps what only it needs to itself, by request if need be
// (per_request.h).
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/batch_plan.h"
#include "base/block_key.h"
#include "base/config.h"
#include "base/ids.h"
#include "estimates/estimates.h"
#include "estimates/memory_forecast.h"
#include "estimates/output_forecast.h"
#include "memory/device_memory.h"
#include "offline/offline_queue.h"
#include "policies/policy.h"
#include "requests/request.h"
#include "requests/tenants.h"
#include "stages/idle_share.h"
#include "state/scheduler_stats.h"
#include "tiers/tiers.h"

namespace hocket {

struct SchedulerState {
  // Throws std::invalid_argument naming the bad field.
  SchedulerState(const SchedulerConfig& config, const Estimates& estimates);
  SchedulerState(const SchedulerState&) = delete;
  SchedulerState& operator=(const SchedulerState&) = delete;

  const SchedulerConfig config;
  const std::unique_ptr<Policy> policy;
  Estimates estimates;
  OutputForecast output_forecast;
  MemoryForecast online_use;
  IdleShare offline_share;

  DeviceMemory memory;
  Tiers tiers;
  RequestTable requests;
  Tenants tenants{&requests};
  std::unique_ptr<OfflineQueue> offline;  // if the policy asks for it
  std::vector<Slot> running;              // in order of admission
  std::vector<Slot> waiting;              // sorted by policy->precedes()

  // The step
  double now = 0.0;    // seconds
  int32_t budget = 0;  // tokens left
  BatchPlan plan;
  SchedulerCounters counters;

  Snapshot snapshot() const;

  // A request takes its place in the waiting list, or leaves it.
  void enqueue(Slot slot);
  void dequeue(Slot slot);
  bool is_queued_offline(Slot slot) const { return offline && requests.request_class[slot] == kOfflineClass; }

  // The keys of the request's complete blocks among its first `num_tokens` known ones, and maybe more.
  std::span<const BlockKey> update_keys(Slot slot, int32_t num_tokens);

  int32_t num_running() const { return static_cast<int32_t>(running.size()); }
};

}  // namespace hocket
