#include "stages/copy_stage.h"

#include <algorithm>

#include "offline/plan_features.h"
#include "solvers/overlap_planner.h"

namespace hocket {

CopySplit split_layers(const SchedulerConfig& config, const Estimates& estimates, const BatchFeatures& without,
                       const BatchFeatures& with, int64_t num_tokens) {
  const double compute = estimates.latency.predict(without);
  const double recomputed = estimates.latency.predict(with);
  const double load = estimates.transfer_seconds(num_tokens / config.block_size * config.units_per_block());
  if (recomputed <= compute || load <= 0) return {config.num_layers, recomputed};
  const auto per_layer = [&](double seconds) { return seconds / config.num_layers; };
  const LayerTimes times{.compute_seconds = per_layer(compute),
                         .recompute_seconds = per_layer(recomputed - compute),
                         .load_kv_seconds = per_layer(load)};
  const OverlapPlan plan = plan_overlap(config.num_layers, times);
  return {plan.recomputed_layers, plan.seconds};
}

int32_t num_blocks_on_host(const Snapshot& snapshot, Slot slot) {
  return snapshot.copies == nullptr ? 0 : snapshot.copies->find(snapshot.requests.keys[slot], 0).num_on_host;
}

BatchFeatures computed_features(const BatchPlan& plan, int32_t num_layers) {
  BatchFeatures features = plan_features(plan);
  for (size_t s = 0; s < plan.forms.recomputed_layers.size(); ++s) {
    const int32_t num_loaded = num_layers - plan.forms.recomputed_layers[s];
    if (num_loaded == 0) continue;
    features.add_chunk(0, plan.forms.uncached_tokens[s], -static_cast<double>(num_loaded) / num_layers);
  }
  return features;
}

double copy_seconds(const BatchPlan& plan, const SchedulerConfig& config, const Estimates& estimates) {
  double num_blocks = 0.0;  // of all layers
  for (size_t s = 0; s < plan.forms.recomputed_layers.size(); ++s) {
    const double share = 1.0 - static_cast<double>(plan.forms.recomputed_layers[s]) / config.num_layers;
    num_blocks += share * plan.forms.uncached_tokens[s] / config.block_size;
  }
  return estimates.transfer_seconds(1) * num_blocks * config.units_per_block();
}

}  // namespace hocket
