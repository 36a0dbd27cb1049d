// A snapshot of the scheduler for metrics and admission. Counters grow monotonically from construction.
#pragma once

#include <array>
#include <cstdint>

#include "base/cache_form.h"
#include "requests/request.h"
#include "solvers/residency.h"
#include "tiers/tiers.h"

namespace hocket {

// Changes of form that running requests went through (DeviceMemory::reshape()). To int8 also: admitted in it.
enum class Conversion : uint8_t { kHiddenToKv = 0, kKvToUncached = 1, kUncachedToKv = 2, kToInt8 = 3 };
inline constexpr int kNumConversions = 4;

struct SchedulerCounters {
  int64_t num_steps = 0;                  // plans with work
  int64_t num_prompt_tokens = 0;          // of prompts that have been completed, computed or served from the cache
  int64_t num_output_tokens = 0;          // sampled, of requests not aborted
  int64_t num_guessed_tokens = 0;         // computed before anybody knew that they come
  int64_t num_right_guesses = 0;          // of these, those that came
  int64_t num_cached_prompt_tokens = 0;   // of those queried
  int64_t num_queried_prompt_tokens = 0;  // of requests at their first admission
  int64_t num_preemptions = 0;
  std::array<int64_t, kNumRequestClasses> num_preempted = {};  // of these, by class of who gave way
  std::array<double, kNumRequestClasses> class_seconds = {};   // of steps, split by scheduled tokens
  double offline_only_seconds = 0.0;                           // of steps without online tokens: idle time put to use
  std::array<int64_t, kNumFinishReasons> num_finished = {};    // by FinishReason

  std::array<int64_t, 3> num_hit_tokens = {};  // of num_cached_prompt_tokens: found on the device, the host, the disk
  int64_t num_restores = 0;                    // requests that waited for a tier
  double restore_seconds_saved = 0;            // predicted, against computing the tokens again
  int64_t num_announced_requests = 0;          // requests that came under a lease
  int64_t num_prepared_tokens = 0;             // restored or computed for announced requests
  int64_t num_wasted_tokens = 0;               // of these, those whose lease ended without a request

  std::array<int64_t, kNumConversions> num_conversions = {};   // requests, by Conversion
  int64_t num_recomputed_tokens = 0;                           // uncached ones, through all layers, summed over steps
  int64_t num_loaded_tokens = 0;                               // likewise, through fewer: the rest came from the host
  std::array<int64_t, kNumRatioReasons> num_ratio_steps = {};  // by what the b/r solver said in them
};

struct SchedulerStats {
  SchedulerCounters counters;
  std::array<int64_t, kNumRequestClasses> num_running = {};  // by request class
  std::array<int64_t, kNumRequestClasses> num_waiting = {};
  int64_t num_units = 0;
  int64_t num_free_units = 0;
  int64_t num_cached_units = 0;                              // evictable
  std::array<int64_t, kNumCacheKinds> num_kind_tokens = {};  // computed, on the device; that requests share count once
  std::array<int64_t, kNumCacheKinds> num_kind_units = {};   // of the blocks that hold them
  int64_t num_uncached_tokens = 0;                           // of running requests, recomputed in every step
  Residency residency;                                       // of the last step
  int64_t num_evicted_blocks = 0;
  int64_t num_host_blocks = 0;
  int64_t num_free_host_blocks = 0;
  double predicted_ttft_seconds = 0.0;  // of an online request that came now, with a short prompt
  double promised_itl_seconds = 0.0;    // to who reads along without a target; 0: nothing is known of step times
  double reader_margin = 0.0;           // by which steps beside them are planned shorter than that
  int64_t num_sessions = 0;
  int64_t num_leases = 0;
  TierCounters tiers;
};

}  // namespace hocket
