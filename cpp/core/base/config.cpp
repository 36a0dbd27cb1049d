#include "base/config.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace hocket {
namespace {

void require_at_least_one(const char* field, int32_t value) {
  if (value >= 1) return;
  throw std::invalid_argument(std::string(field) + " must be at least 1, not " + std::to_string(value));
}

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

void SchedulerConfig::validate() const {
  require_at_least_one("num_layers", num_layers);
  require_at_least_one("layers_per_unit", layers_per_unit);
  require_at_least_one("block_size", block_size);
  require_at_least_one("max_num_seqs", max_num_seqs);
  require_at_least_one("max_num_batched_tokens", max_num_batched_tokens);
  require_at_least_one("max_model_len", max_model_len);
  require_at_least_one("max_num_waiting", max_num_waiting);
  if (num_units < units_per_block()) {
    throw std::invalid_argument("num_units must be at least " + std::to_string(units_per_block()) +
                                " (one block), not " + std::to_string(num_units));
  }
  if (hidden_units_per_group < 0 || hidden_units_per_group > 1) {
    throw std::invalid_argument(
        "hidden_units_per_group must be 0 (no hidden cache) or 1: from 2 units on, hidden states "
        "take as much memory as K and V, and this model gains nothing from them");
  }
  require(int8_units_per_group == 0 || int8_units_per_group == 1,
          "int8_units_per_group must be 0 (no block is kept in int8) or 1");
  require(int8_units_per_group == 0 || (!has_forms() && preemption == "recompute"),
          "int8_units_per_group needs every token cached and none saved: no hidden_units_per_group, no "
          "enable_partial_caching, preemption recompute");
  require(num_host_units >= 0, "num_host_units must not be negative");
  require(num_host_blocks >= 0, "num_host_blocks must not be negative");
  require(num_host_blocks == 0 || enable_prefix_caching || enable_partial_caching,
          "num_host_blocks needs enable_prefix_caching, where what it restores goes, or enable_partial_caching");
  require(num_copy_blocks >= 0, "num_copy_blocks must not be negative");
  require(num_copy_blocks == 0 || (num_host_blocks > 0 && enable_partial_caching),
          "num_copy_blocks needs num_host_blocks, where the copies are, and enable_partial_caching");
  require(
      num_host_blocks == 0 || num_host_units == 0,
      "num_host_blocks and num_host_units exclude each other: the host tier holds what preempted requests computed");
  require(!enable_disk || num_host_blocks > 0, "enable_disk needs num_host_blocks: the way to the disk is by the host");
  require(!enable_disk || enable_prefix_caching,
          "enable_disk needs enable_prefix_caching: it is what the disk restores");
  require_at_least_one("max_num_sessions", max_num_sessions);
  require(std::isfinite(reserve_deviations) && reserve_deviations <= 100, "reserve_deviations must be at most 100");
  require(past_target_decay >= 0 && past_target_decay <= 1, "past_target_decay must be between 0 and 1");
  require(max_wait_ms >= 0 && max_offline_wait_ms >= 0, "max_wait_ms and max_offline_wait_ms must not be negative");
  require(starving_turn_ms >= 0, "starving_turn_ms must not be negative");
  require(max_ttft_ms > 0, "max_ttft_ms must be positive");
  require(max_decode_step_ms >= 0, "max_decode_step_ms must not be negative");
  require(deadline_quantile >= 0 && deadline_quantile < 1, "deadline_quantile must be at least 0 and below 1");
  require(length_quantile >= 0 && length_quantile < 1, "length_quantile must be at least 0 and below 1");
  require(max_offline_step_ms >= 0, "max_offline_step_ms must not be negative");
  require(enable_mixed_steps || !enable_chunked_prefill,
          "enable_mixed_steps=false needs enable_chunked_prefill=false: a chunk shares its step with decodes");
  require(token_composition == "greedy" || token_composition == "fastgen",
          "token_composition must be one of greedy, fastgen, not '" + token_composition + "'");
  require(preemption == "recompute" || preemption == "swap" || preemption == "restore",
          "preemption must be one of recompute, swap, restore, not '" + preemption + "'");
  require(restore == "faster" || restore == "always", "restore must be one of faster, always, not '" + restore + "'");
  require(cache_kind == "kv" || cache_kind == "hidden" || cache_kind == "int8",
          "cache_kind must be one of kv, hidden, int8, not '" + cache_kind + "'");
  require(max_guessed_tokens >= 0, "max_guessed_tokens must not be negative");
  require(max_guessed_tokens == 0 || !has_forms(),
          "max_guessed_tokens needs all cache as K and V: no hidden_units_per_group, no enable_partial_caching");
  require(cache_kind != "hidden" || hidden_units_per_group > 0, "cache_kind hidden needs hidden_units_per_group");
  require(cache_kind != "int8" || int8_units_per_group > 0, "cache_kind int8 needs int8_units_per_group");
}

}  // namespace hocket
