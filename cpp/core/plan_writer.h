// From "num_scheduled_tokens of each running request" to the arrays of a BatchPlan.
//
// Order: decodes first, then prefill chunks, each in the order of `running`; so a decode keeps its place among the
// decodes for as long as it runs. Thread safety: none. No allocation once reserve() has seen the largest step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch_plan.h"
#include "ids.h"
#include "request.h"

namespace hocket {

class PlanWriter {
 public:
  static void reserve(int32_t max_num_seqs, int32_t max_num_batched_tokens, BatchPlan* plan);

  // Refills the arrays per token and per sequence, and sample_seqs. Running requests without scheduled tokens are left
  // out. seq_slots()[s] is then the slot of sequence s.
  void write(const RequestTable& requests, std::span<const Slot> running, BatchPlan* plan);

  // The row has been given up: what was to be projected for it in this step no longer is.
  // hidden_units_per_block: of a projection's entries in projected_units.
  static void drop_projections(Row row, int32_t hidden_units_per_block, BatchPlan* plan);

  std::span<const Slot> seq_slots() const { return seq_slots_; }

 private:
  void write_decode(const RequestTable& requests, size_t s, BatchPlan* plan) const;
  void write_chunk(const RequestTable& requests, size_t s, BatchPlan* plan) const;

  std::vector<Slot> seq_slots_;
  std::vector<Slot> prefills_;  // scratch
};

}  // namespace hocket
