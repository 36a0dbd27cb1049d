// What the scheduler needs to know once, before it starts. Plain values, checked by validate(), then constant.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "base/cache_form.h"

namespace hocket {

struct SchedulerConfig {
  static constexpr double kStarvingShare = 0.25;  // of the memory: what starving requests get together

  // Memory
  int32_t num_units = 0;               // units of the device pool
  int32_t num_layers = 0;              // L, layers of the model
  int32_t layers_per_unit = 4;         // F; num_layers gives the classical layout
  int32_t block_size = 16;             // tokens per block; larger: less metadata, coarser prefix reuse
  int32_t hidden_units_per_group = 0;  // ceil(h / d_kv), units of a hidden block per layer group; 0: no hidden cache
  int32_t int8_units_per_group = 0;    // units of a block in int8 per layer group, beside float ones; 0: there are none
  int64_t num_host_units = 0;          // room for preempted requests; 0: they are recomputed
  int32_t num_host_blocks = 0;         // of the host tier, which holds what is computed (tiers.h); 0: there is none
  int32_t num_copy_blocks = 0;         // of uncached tokens, that a step may load from there; 0: all are recomputed
  bool enable_disk = false;            // whether the host tier is written to disk
  std::string cache_fingerprint;       // of model, dtype and layout: what is on disk is used under an equal one only
  int32_t max_num_sessions = 4096;     // that are remembered, of all tenants; who has most loses one (session_table.h)

  // Limits
  int32_t max_num_seqs = 256;             // running requests, rows of the block tables
  int32_t max_num_batched_tokens = 2048;  // tokens of one step; larger: better prefill throughput, longer ITL
  int32_t max_model_len = 4096;           // tokens of one request, prompt and output
  int32_t max_num_waiting = 4096;         // requests that add_request() queues before it answers kQueueFull

  // Behaviour
  std::string policy = "fcfs";
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;        // false: a prompt is computed in one step, see scheduler.h
  bool enable_mixed_steps = true;            // false: a step computes either prompts or decodes; needs whole prompts
  std::string token_composition = "greedy";  // of policy fcfs: prompts in order; "fastgen": short ones first, to fit
  std::string restore = "faster";            // from host and disk: where it beats computing, or "always"
  bool save_sessions_only = false;           // of what is computed, only what requests of sessions use goes to the host
  bool overlap_restores = true;              // the host's blocks land during the step that reads them, if that pays
  std::string preemption = "recompute";      // or what goes to the host: "swap" (K and V), "restore" (hidden states)
  std::string cache_kind = "kv";             // of policy fcfs, as which requests are kept: or "hidden", "int8"
  bool enable_partial_caching = false;       // tokens recomputed in every step, where that pays
  bool refine_latency = false;               // learn from the measured step times
  int32_t max_guessed_tokens = 0;            // of a request in one step (speculation.h); needs all cache as K and V

  // What policies weigh. Those of online requests unless the name says otherwise.
  double past_target_decay = 0.0;           // value of a request that missed its target: 0 nothing, 1 as before
  double max_wait_ms = 60'000;              // without a token; then a request is scheduled before all others
  double max_offline_wait_ms = 86'400'000;  // the same for offline requests
  // How long who was served for that keeps its place while others have waited as long; infinite: until it ends.
  double starving_turn_ms = std::numeric_limits<double>::infinity();
  // Online requests whose first token is predicted to come later are refused (overload_control.h); infinite: nobody is.
  double max_ttft_ms = std::numeric_limits<double>::infinity();
  // To which prompts may stretch a step in which online requests without a deadline decode; 0: what the latency
  // model suggests (Estimates::itl_seconds()), as long as it knows.
  double max_decode_step_ms = std::numeric_limits<double>::infinity();
  // Of step times, by which deadlines are kept: between 0 and 1; larger: fewer late steps, and shorter ones.
  double deadline_quantile = 0.999;
  // Of what an answer has left, by which the knapsack weighs it: between 0 and 1; 0: the mean.
  double length_quantile = 0.0;
  double max_offline_step_ms = 100;  // to which offline work may stretch a step; 0: derived (offline_step_seconds())
  bool enable_residents = true;      // knapsack over who holds memory; false: first come, first served
  bool enable_deadlines = true;      // steps no longer than the tightest deadline allows
  bool enable_plan_search = true;    // offline work by benefit per second; false: first come, first served
  bool enable_task_aware_eviction = true;  // cached blocks that pending offline requests will use are kept longest
  bool enable_reserve = true;              // memory that offline work leaves to online bursts
  // By how many deviations that exceeds the mean of what online requests hold; negative: the policy's own; at most 100.
  double reserve_deviations = -1;

  // Throws std::invalid_argument naming the first bad field. The policy's name is make_policy()'s to refuse (policy.h).
  void validate() const;

  // REQUIRES for all below: validate() has passed.
  int32_t num_groups() const { return (num_layers + layers_per_unit - 1) / layers_per_unit; }
  int32_t units_per_block() const { return 2 * num_groups(); }  // K and V per layer group
  int32_t hidden_units_per_block() const { return hidden_units_per_group * num_groups(); }
  // The kind that takes less than K and V, as far as there is one.
  CacheKind compact_kind() const { return int8_units_per_group > 0 ? CacheKind::kInt8 : CacheKind::kHidden; }
  int32_t compact_units_per_block() const {
    return std::max(hidden_units_per_group, int8_units_per_group) * num_groups();
  }
  bool has_kinds() const { return compact_units_per_block() > 0; }  // beside K and V
  // Whether some tokens' K and V are made anew in every step.
  bool has_forms() const { return hidden_units_per_group > 0 || enable_partial_caching; }
  bool restores_from_tiers() const { return num_host_blocks > 0 && enable_prefix_caching; }
  double hidden_ratio() const { return hidden_units_per_group > 0 ? hidden_units_per_group / 2.0 : 1.0; }  // eta
  int32_t num_blocks() const { return num_units / units_per_block(); }
  int32_t blocks_for(int32_t num_tokens) const { return (num_tokens - 1) / block_size + 1; }  // num_tokens >= 1
  int32_t max_blocks_per_seq() const { return blocks_for(max_model_len); }
  // Of a request: what a step recomputes beside one token at least.
  int32_t max_uncached_blocks() const { return (max_num_batched_tokens - 1) / block_size; }
};

}  // namespace hocket
