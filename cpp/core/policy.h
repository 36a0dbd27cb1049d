// Who computes, who holds memory in which form, and who gives way: the seam between the scheduler and its policies.
//
// A policy is a pure function of a snapshot: it reads the request arrays and answers with a composition. It keeps no
// state between calls (scratch memory and counters aside), sees no clock but `now`, and owns no memory. The scheduler
// carries the answer out: it looks up the prefix cache, allocates, evicts, preempts, and cuts grants to what tokens and
// memory are left. A policy may therefore promise too much; it can never break an invariant.
//
// One policy per file. A new one is a class behind these questions and a line in make_policy().
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache_form.h"
#include "config.h"
#include "device_memory.h"
#include "estimates.h"
#include "ids.h"
#include "offline_queue.h"
#include "output_forecast.h"
#include "request.h"
#include "tiers.h"

namespace hocket {

struct Snapshot {
  double now;                     // seconds
  const RequestTable& requests;   // indexed by the slots below
  std::span<const Slot> running;  // in order of admission
  std::span<const Slot> waiting;  // sorted by Policy::precedes()
  const DeviceMemory& memory;
  const Estimates& estimates;
  const OutputForecast& outputs;
  const OfflineQueue* offline;    // of the waiting offline requests; null unless the policy asks for it
  int64_t reserve_units;          // that offline work must leave free (memory_forecast.h)
  int32_t max_num_tokens;         // budget of the step
  const Tiers* copies = nullptr;  // where uncached tokens may be loaded from; null: nowhere
};

// Up to `max_tokens` of the request's uncomputed tokens in this step. A waiting request is admitted by it, in that
// form; what the prefix cache or the host holds of it costs nothing.
struct Grant {
  Slot slot;
  int32_t max_tokens;
  bool is_admission;  // the request is waiting
  CacheForm form = {};
};

// A running request's tokens are kept in another form from now on (DeviceMemory::reshape()).
struct Reshape {
  Slot slot;
  CacheForm form;
};

// Carried out in this order: preemptions, reshapes, grants until the step's tokens are spent.
// Strict admission: the first admission that does not fit, or that would overtake a request preempted in this step,
// closes admission for the step, so that a large request is not overtaken for ever. Otherwise others are tried.
struct Composition {
  std::vector<Slot> preemptions;
  std::vector<Reshape> reshapes;
  std::vector<Grant> grants;
  bool is_strict = true;

  // Most policies offer no more waiting requests than there are rows.
  void reserve(int32_t max_num_seqs) {
    preemptions.reserve(max_num_seqs);
    reshapes.reserve(max_num_seqs);
    grants.reserve(3 * static_cast<size_t>(max_num_seqs));
  }

  void clear() {
    preemptions.clear();
    reshapes.clear();
    grants.clear();
    is_strict = true;
  }
};

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
};

// "fcfs, priority, ..."
std::string policy_names();
bool is_policy(std::string_view name);

// The policy of config.policy. REQUIRES: is_policy(config.policy).
std::unique_ptr<Policy> make_policy(const SchedulerConfig& config);

std::unique_ptr<Policy> make_fcfs_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_priority_policy();
std::unique_ptr<Policy> make_apt_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_echo_policy(const SchedulerConfig& config, std::string_view name);
std::unique_ptr<Policy> make_ellm_policy(const SchedulerConfig& config);
std::unique_ptr<Policy> make_hocket_policy(const SchedulerConfig& config);

}  // namespace hocket
