// What one step yielded, from the scheduler to the engine loop. Inert data, structure of arrays.
//
// One entry per sampled token, in the order of BatchPlan::sample_seqs; requests aborted during the step are left out.
// The scheduler owns one StepOutput and refills it in place by commit(); views are valid until the next commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket {

struct StepOutput {
  std::vector<uint64_t> request_ids;
  std::vector<int32_t> token_ids;
  std::vector<uint8_t> finish_reasons;     // FinishReason
  std::vector<int32_t> num_output_tokens;  // of the request, this one included
  std::vector<int32_t> num_cached_tokens;  // prompt tokens served from the prefix cache at the first admission

  void reserve(size_t num_entries) {
    request_ids.reserve(num_entries);
    token_ids.reserve(num_entries);
    finish_reasons.reserve(num_entries);
    num_output_tokens.reserve(num_entries);
    num_cached_tokens.reserve(num_entries);
  }

  void clear() {
    request_ids.clear();
    token_ids.clear();
    finish_reasons.clear();
    num_output_tokens.clear();
    num_cached_tokens.clear();
  }
};

}  // namespace hocket
