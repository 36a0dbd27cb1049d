// Where the uncached tokens' K and V of every layer come from in a step: recomputed, or loaded from the host meanwhile
// (eLLM section 4.3.1).
//
// The paper recomputes one or two layers while one to three others are swapped in, and of the six configurations takes
// the one whose two times differ least: paper_overlap().
//
// That cannot be taken literally. A layer's K and V come from its own input, so recomputing layer i needs the uncached
// tokens' hidden states of layer i - 1: once a layer was swapped in, the chain is broken. plan_overlap() therefore
// recomputes a leading run of at most two layers, or all of them, and loads all others, at most three in flight, as KV
// or as X with a projection (half the bytes for multi-head attention). It evaluates every configuration by the time at
// which the step ends:
//
//   copy engine   loads layers in order; a load starts when the one before has ended and one of the window's places is
//                 free, that is when the layer `window` before it has been computed
//   compute       layers in order; a loaded one waits for its load
//
// Pure functions; no allocation. O(configurations x layers), microseconds.
#pragma once

#include <cstdint>

namespace hocket {

inline constexpr int32_t kMaxRecomputedLayers = 2;
inline constexpr int32_t kMaxLayersInFlight = 3;

struct PaperOverlap {
  int32_t recomputed_layers;  // l2, 1..2
  int32_t swapped_layers;     // l1, 1..3
  double bubble_seconds;      // |recomputation - swapping|
};

// recompute_base_seconds: what recomputation costs whatever the number of layers (the paper's logits of eq. 7).
// Of equal bubbles the one with more layers.
PaperOverlap paper_overlap(double recompute_base_seconds, double recompute_layer_seconds, double swap_layer_seconds);

enum class LoadedKind : int32_t { kNothing = 0, kKv = 1, kHidden = 2 };

// Of one layer and all uncached tokens of the step. All >= 0.
struct LayerTimes {
  double compute_seconds = 0;      // what the layer costs anyway: decoding over all tokens
  double recompute_seconds = 0;    // the layer for the uncached tokens, from the previous layer's hidden states
  double load_kv_seconds = 0;      // host to device
  double load_hidden_seconds = 0;  // host to device, as X; ignored unless has_hidden
  double project_seconds = 0;      // X to K and V
  bool has_hidden = false;         // the host holds X
};

struct OverlapPlan {
  int32_t recomputed_layers;  // the leading run: 0..2, or all
  int32_t window;             // loads in flight or not yet used, 0..3
  LoadedKind loaded_kind;     // of all layers behind the leading run
  int32_t workspace_layers;   // layers' worth of uncached tokens in device memory at a time
  double seconds;             // of all layers
};

// The fastest configuration; among equally fast ones the one with the least workspace.
// REQUIRES: num_layers >= 1.
OverlapPlan plan_overlap(int32_t num_layers, const LayerTimes& times);

}  // namespace hocket
