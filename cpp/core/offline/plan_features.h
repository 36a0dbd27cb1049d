// What the latency model needs to know of a plan.
#pragma once

#include "base/batch_plan.h"
#include "estimates/latency_model.h"

namespace hocket {

// A sequence with one query token counts as a decode: that is what it costs, also where it is the last token of a
// prompt. It attends to all of its seq_lens tokens. A chunk of n tokens lies behind a context of seq_lens - n.
BatchFeatures plan_features(const BatchPlan& plan);

}  // namespace hocket
