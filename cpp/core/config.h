// What the scheduler needs to know once, before it starts. Plain values, checked by validate(), then constant.
#pragma once

#include <cstdint>
#include <string>

namespace hocket {

struct SchedulerConfig {
  // Memory
  int32_t num_units = 0;        // units of the device pool
  int32_t num_layers = 0;       // L, layers of the model
  int32_t layers_per_unit = 4;  // F; num_layers gives the classical layout
  int32_t block_size = 16;      // tokens per block; larger: less metadata, coarser prefix reuse

  // Limits
  int32_t max_num_seqs = 256;             // running requests, rows of the block tables
  int32_t max_num_batched_tokens = 2048;  // tokens of one step; larger: better prefill throughput, longer ITL
  int32_t max_model_len = 4096;           // tokens of one request, prompt and output
  int32_t max_num_waiting = 4096;         // requests that add_request() queues before it answers kQueueFull

  // Behaviour
  std::string policy = "fcfs";
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;  // false: a prompt is computed in one step, see scheduler.h

  // Throws std::invalid_argument naming the first bad field.
  void validate() const;

  // REQUIRES for all below: validate() has passed.
  int32_t num_groups() const { return (num_layers + layers_per_unit - 1) / layers_per_unit; }
  int32_t units_per_block() const { return 2 * num_groups(); }  // K and V per layer group
  int32_t num_blocks() const { return num_units / units_per_block(); }
  int32_t blocks_for(int32_t num_tokens) const { return (num_tokens - 1) / block_size + 1; }  // num_tokens >= 1
  int32_t max_blocks_per_seq() const { return blocks_for(max_model_len); }
};

}  // namespace hocket
