// Uncached tokens with copies on the host: recomputed through which layers, loaded for which (overlap_planner.h).
//
// A row's first tokens may be uncached while the host still has their blocks (tiers.h). Then a step need not recompute
// them through all layers: it recomputes a leading run and loads K and V of the others meanwhile, through buffers of
// some layers (SchedulerConfig::num_copy_blocks). Where copies take longer than they save, all is recomputed.
//
// Pure functions; no allocation.
#pragma once

#include "base/batch_plan.h"
#include "base/config.h"
#include "estimates/estimates.h"
#include "stages/composition.h"

namespace hocket {

struct CopySplit {
  int32_t recomputed_layers = 0;  // all: nothing is loaded
  double seconds = 0.0;           // predicted, of the step
};

// Of the num_tokens tokens, whole blocks, by which the step `with` exceeds the step `without`. Where times are unknown,
// all is recomputed.
CopySplit split_layers(const SchedulerConfig& config, const Estimates& estimates, const BatchFeatures& without,
                       const BatchFeatures& with, int64_t num_tokens);

// Blocks of the request, from its first, that the host has.
int32_t num_blocks_on_host(const Snapshot& snapshot, Slot slot);

// What the step computes, where only a part of the layers is recomputed for tokens that are loaded otherwise.
BatchFeatures computed_features(const BatchPlan& plan, int32_t num_layers);

// Seconds that those copies take.
double copy_seconds(const BatchPlan& plan, const SchedulerConfig& config, const Estimates& estimates);

}  // namespace hocket
