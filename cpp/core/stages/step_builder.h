// A step under construction: grants within a budget of tokens and of predicted time.
//
// Thread safety: none. No allocation on the step path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "estimates/latency_model.h"
#include "stages/composition.h"

namespace hocket {

class StepBuilder {
 public:
  explicit StepBuilder(const SchedulerConfig& config)
      : knows_forms_(config.has_forms()),
        block_size_(config.block_size),
        batch_(config.max_model_len),
        num_groups_(config.num_groups()),
        num_layers_(config.num_layers) {}

  // Starts anew. Without a latency model, time is not limited.
  void begin(const Snapshot& snapshot, Composition* composition);

  // From now on the step may take `seconds`, at least as long as it takes already.
  void limit_seconds(double seconds) { max_seconds_ = seconds; }
  double max_seconds() const { return max_seconds_; }
  // From now on so many tokens may be added at most.
  void limit_tokens(int32_t num_tokens) { tokens_left_ = std::min(tokens_left_, num_tokens); }
  int32_t tokens_left() const { return tokens_left_; }
  // Predicted. The copies that the step waits for run beside it, layer group by layer group.
  double seconds() const {
    const double compute = latency_->predict(batch_.features());
    return copy_seconds_ > 0 ? Estimates::overlapped_seconds(compute, copy_seconds_, num_groups_) : compute;
  }
  LatencyBatch* batch() { return &batch_; }
  // Tokens granted so far, those that the cache gives included.
  double num_advanced() const { return num_advanced_; }

  // A running request that decodes, whatever time it takes: the time limit is for what comes after.
  void decode(Slot slot);
  // The same if the step then still keeps its limit; false if not.
  bool try_decode(Slot slot);
  // As many of the request's uncomputed tokens as fit the budgets; 0 if none do. Whole prompts all or nothing.
  int32_t prefill(Slot slot, CacheForm form, bool is_whole);
  // So many of them, whatever time it takes, while there are tokens; false if none. A whole prompt comes whole, unless
  // it is longer than any step.
  bool prefill_at_most(Slot slot, int32_t num_tokens, bool is_whole, CacheForm form = {});

 private:
  // What a running request of another form than KV adds to a step that computes something of it.
  struct FormCost {
    int32_t hidden_tokens = 0;
    int32_t uncached_tokens = 0;  // of all layers' worth
    double copy_seconds = 0.0;    // of the layers that are loaded instead, as in its last step
  };
  FormCost form_cost(Slot slot) const;
  void add(FormCost cost);
  void remove(FormCost cost);

  int32_t context_of(Slot slot) const;
  double copy_seconds(Slot slot) const;
  int32_t most_tokens(int64_t context, int32_t num_left);
  void grant(Slot slot, int32_t num_tokens, bool is_admission, CacheForm form);

  bool has_forms_ = false;  // whether somebody's tokens are not all there as K and V
  const bool knows_forms_;
  const int32_t block_size_;
  const Snapshot* snapshot_ = nullptr;
  const LatencyModel* latency_ = nullptr;
  Composition* composition_ = nullptr;
  LatencyBatch batch_;
  const int32_t num_groups_;
  const int32_t num_layers_;
  double copy_seconds_ = 0.0;
  double max_seconds_ = std::numeric_limits<double>::infinity();
  int32_t tokens_left_ = 0;
  double num_advanced_ = 0.0;
};

}  // namespace hocket
