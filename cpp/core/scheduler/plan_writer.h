// From "num_scheduled_tokens of each running request" to the arrays of a BatchPlan.
//
// Order: decodes first, each with its guesses behind it, then prefill chunks, each in the order of `running`; so a
// decode keeps its place among the decodes for as long as it runs. Thread safety: none. No allocation once reserve()
// has seen the largest step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/batch_plan.h"
#include "base/ids.h"
#include "requests/request.h"
#include "speculation/guess_counts.h"

namespace hocket {

class PlanWriter {
 public:
  void reserve(int32_t max_num_seqs, int32_t max_num_batched_tokens, BatchPlan* plan);

  // Refills the arrays per token and per sequence, and sample_seqs. Running requests without scheduled tokens are left
  // out. seq_slots()[s] is then the slot of sequence s: as often as a request has sequences.
  void write(const RequestTable& requests, std::span<const Slot> running, const GuessCounts& guesses, BatchPlan* plan);

  std::span<const Slot> seq_slots() const { return seq_slots_; }

 private:
  void write_decode(const RequestTable& requests, size_t s, BatchPlan* plan) const;
  void write_guess(const RequestTable& requests, size_t s, BatchPlan* plan) const;
  void write_chunk(const RequestTable& requests, size_t s, BatchPlan* plan) const;

  std::vector<Slot> seq_slots_;
  std::vector<Slot> prefills_;  // scratch
};

}  // namespace hocket
