// What a policy reads and what it answers: the snapshot of one step, and its composition.
//
// The scheduler carries a composition out: it looks up the prefix cache, allocates, evicts, preempts, and cuts grants
// to what tokens and memory are left. A policy may therefore promise too much; it can never break an invariant.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cache_form.h"
#include "base/ids.h"
#include "base/memory_view.h"
#include "estimates/estimates.h"
#include "estimates/output_forecast.h"
#include "offline/offline_queue.h"
#include "requests/request.h"
#include "requests/tenants.h"
#include "solvers/residency.h"
#include "tiers/tiers.h"

namespace hocket {

struct Snapshot {
  double now;                    // seconds
  const RequestTable& requests;  // indexed by the slots below
  const Tenants& tenants;
  std::span<const Slot> running;  // in order of admission
  std::span<const Slot> waiting;  // in the order of the policy (policy.h)
  const MemoryView& memory;
  const Estimates& estimates;
  const OutputForecast& outputs;
  const OfflineQueue* offline;    // of the waiting offline requests; null unless the policy asks for it
  int64_t reserve_units;          // that offline work must leave free (memory_forecast.h)
  int32_t max_num_tokens;         // budget of the step
  const Tiers* copies = nullptr;  // where uncached tokens may be loaded from; null: nowhere
  double idle_seconds = 0.0;      // that offline work has saved up to stretch a step with online decodes (idle_share.h)
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
  Residency residency;  // of what the b/r solver decided, for metrics

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
    residency = {};
  }
};

}  // namespace hocket
