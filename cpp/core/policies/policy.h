// Who computes, who holds memory in which form, and who gives way: the seam between the scheduler and its policies.
//
// A policy is a pure function of a snapshot: it reads the request arrays and answers with a composition
// (stages/composition.h), from whose stages it is built. It keeps no state between calls (scratch memory and counters
// aside), sees no clock but `now`, and owns no memory.
//
// One policy per file. A new one is a class behind these questions and a line in make_policy().
//
// Thread safety: none.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "estimates/memory_forecast.h"
#include "requests/request.h"
#include "stages/composition.h"

namespace hocket {

class Policy {
 public:
  virtual ~Policy() = default;

  // Whether `a` stands before `b` in the waiting list. A strict total order over live requests that does not change
  // while they live: a preempted request returns to its place.
  virtual bool precedes(const RequestTable& requests, Slot a, Slot b) const = 0;

  // Appends the step's decisions, each request at most once per list. Waiting requests beyond the first max_num_tokens
  // need no grant.
  virtual void compose(const Snapshot& snapshot, Composition* composition) = 0;

  // Appends the running requests that may be preempted for `needy`, in any order.
  // If `needy` is running, it is among them: at its turn it gives way itself, and somebody always runs on.
  // If it is waiting, they are those that it may displace, for memory or for a row.
  virtual void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const = 0;

  // Whether victim `a` goes before victim `b`. A strict total order over running requests.
  virtual bool yields_before(const RequestTable& requests, Slot a, Slot b) const = 0;

  // Whether waiting offline requests are to be held in an OfflineQueue as well.
  virtual bool needs_offline_queue() const { return false; }
  // Whether cached blocks that those will use are evicted last.
  virtual bool has_task_aware_eviction() const { return false; }
  // By how many deviations the memory that offline work leaves exceeds the mean of what online requests hold.
  virtual double reserve_deviations() const { return 2; }
};

// Units that offline work must leave free: by config.reserve_deviations or by the policy's; 0 without a reserve.
int64_t reserve_units(const SchedulerConfig& config, const Policy& policy, const MemoryForecast& online_use);

std::span<const std::string_view> policy_names();
bool is_policy(std::string_view name);
// Throws std::invalid_argument naming all policies if there is none of that name.
void require_policy(std::string_view name);

// The policy of config.policy. Throws as require_policy() does.
std::unique_ptr<Policy> make_policy(const SchedulerConfig& config);

std::unique_ptr<Policy> make_fcfs_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_priority_policy();
std::unique_ptr<Policy> make_apt_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_echo_policy(const SchedulerConfig& config, std::string_view name);
std::unique_ptr<Policy> make_ellm_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_hocket_policy(const SchedulerConfig& config);

}  // namespace hocket
