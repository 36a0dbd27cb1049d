#include "solvers/overlap_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hocket {
namespace {

constexpr double kTie = 1e-9;  // relative

// When the last layer has been computed; gives up once that cannot be before `bound`.
double pipeline_seconds(int32_t num_layers, const LayerTimes& times, int32_t recomputed, int32_t window,
                        LoadedKind kind, double bound) {
  const bool is_hidden = kind == LoadedKind::kHidden;
  const double load = is_hidden ? times.load_hidden_seconds : times.load_kv_seconds;
  const double work = times.compute_seconds + (is_hidden ? times.project_seconds : 0.0);
  double computed[kMaxLayersInFlight] = {};  // of the last loaded layers, when each gave its place back
  double loaded = 0.0;
  double now = recomputed * (times.recompute_seconds + times.compute_seconds);
  for (int32_t layer = recomputed; layer < num_layers && now < bound; ++layer) {
    double& place = computed[(layer - recomputed) % window];
    loaded = std::max(loaded, place) + load;
    now = std::max(now, loaded) + work;
    place = now;
  }
  return now;
}

bool is_better(const OverlapPlan& a, const OverlapPlan& b) {
  if (std::abs(a.seconds - b.seconds) > kTie * b.seconds) return a.seconds < b.seconds;
  return a.workspace_layers < b.workspace_layers;
}

}  // namespace

PaperOverlap paper_overlap(double recompute_base_seconds, double recompute_layer_seconds, double swap_layer_seconds) {
  PaperOverlap best{0, 0, std::numeric_limits<double>::infinity()};
  for (int32_t recomputed = kMaxRecomputedLayers; recomputed >= 1; --recomputed) {
    for (int32_t swapped = kMaxLayersInFlight; swapped >= 1; --swapped) {
      const double recompute = recompute_base_seconds + recomputed * recompute_layer_seconds;
      const double bubble = std::abs(recompute - swapped * swap_layer_seconds);
      if (bubble < best.bubble_seconds) best = {recomputed, swapped, bubble};
    }
  }
  return best;
}

OverlapPlan plan_overlap(int32_t num_layers, const LayerTimes& times) {
  OverlapPlan best{.recomputed_layers = num_layers,
                   .window = 0,
                   .loaded_kind = LoadedKind::kNothing,
                   .workspace_layers = 1,
                   .seconds = num_layers * (times.recompute_seconds + times.compute_seconds)};
  for (const LoadedKind kind : {LoadedKind::kKv, LoadedKind::kHidden}) {
    if (kind == LoadedKind::kHidden && !times.has_hidden) continue;
    for (int32_t recomputed = 0; recomputed <= std::min(kMaxRecomputedLayers, num_layers - 1); ++recomputed) {
      for (int32_t window = 1; window <= std::min(kMaxLayersInFlight, num_layers - recomputed); ++window) {
        const double bound = best.seconds * (1.0 + 2.0 * kTie) + std::numeric_limits<double>::min();
        const OverlapPlan plan{
            .recomputed_layers = recomputed,
            .window = window,
            .loaded_kind = kind,
            .workspace_layers = window + (recomputed > 0 ? 1 : 0),
            .seconds = pipeline_seconds(num_layers, times, recomputed, window, kind, bound),
        };
        if (is_better(plan, best)) best = plan;
      }
    }
  }
  return best;
}

}  // namespace hocket
