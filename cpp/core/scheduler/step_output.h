// What one step yielded, from the scheduler to the engine loop. Inert data, structure of arrays.
//
// One entry per token that a request has got, in the order of BatchPlan::sample_seqs. Requests aborted during the step
// are left out, and so is what was sampled behind a wrong guess or a request's end.
// A request whose step gave no token (kNoToken) has failed: its entry has that for a token, and kError.
// The scheduler owns one StepOutput and refills it in place by commit(); views are valid until the next commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "requests/request.h"

namespace hocket {

inline constexpr int32_t kNoToken = -1;

struct StepOutput {
  std::vector<uint64_t> request_ids;
  std::vector<int32_t> token_ids;
  std::vector<uint8_t> finish_reasons;     // FinishReason
  std::vector<int32_t> num_output_tokens;  // of the request, this one included
  std::vector<int32_t> num_cached_tokens;  // prompt tokens served from the prefix cache at the first admission
  std::vector<int32_t> sample_indices;     // of BatchPlan::sample_seqs, from which the token came

  // At most `max_entries` follow: nothing is allocated and no array grows while they come.
  void begin(size_t max_entries) {
    resize(max_entries);
    num_entries_ = 0;
  }
  void add(uint64_t request_id, int32_t token, FinishReason reason, int32_t num_output, int32_t num_cached,
           int32_t sample_index) {
    const size_t i = num_entries_++;
    request_ids[i] = request_id;
    token_ids[i] = token;
    finish_reasons[i] = static_cast<uint8_t>(reason);
    num_output_tokens[i] = num_output;
    num_cached_tokens[i] = num_cached;
    sample_indices[i] = sample_index;
  }
  void end() { resize(num_entries_); }

 private:
  void resize(size_t num) {
    request_ids.resize(num);
    token_ids.resize(num);
    finish_reasons.resize(num);
    num_output_tokens.resize(num);
    num_cached_tokens.resize(num);
    sample_indices.resize(num);
  }

  size_t num_entries_ = 0;
};

}  // namespace hocket
