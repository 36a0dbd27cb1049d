// What a step costs on a machine, by the work that it does: what recomputing is weighed by (partial_cache_solver.h).
#pragma once

#include <cstdint>

namespace hocket {

// The paper's count of FLOPs over a rate, or of every part of a step the slower of compute and memory traffic.
enum class StepCostForm : int32_t { kFlops = 0, kRoofline = 1 };

// Of one model on one device. All > 0, but workspace_bytes_per_token >= 0.
struct StepCosts {
  StepCostForm form = StepCostForm::kRoofline;
  double flops_per_token = 0;            // matrix work of all layers for one token; the paper: 24 h^2 L
  double flops_per_pair = 0;             // attention of all layers, one query to one key; the paper: 4 h L
  double flops_per_logit = 0;            // output layer for one token; the paper: 2 h V
  double flops_per_second = 0;           // reached, not peak
  double weight_bytes = 0;               // of all layers, read once per step
  double head_bytes = 0;                 // of the output layer
  double kv_bytes_per_token = 0;         // all layers
  double workspace_bytes_per_token = 0;  // of recomputed tokens while their layers are in flight; the paper: 40 h
  double bytes_per_second = 0;           // reached, not peak
};

}  // namespace hocket
