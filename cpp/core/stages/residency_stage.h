// How many online requests may be in memory, and whether one more is worth recomputing tokens for: the b/r solver
// (partial_cache_solver.h) beside the knapsack.
//
// b. Whoever comes in decodes from its first token on, in every step, with all others. So nobody is admitted with whom
// such a step would take longer than the tightest target leaves: T(b) + WT <= SLO, where what the others have waited
// already is off their deadlines. Who runs is not given up for it, and who starves comes in all the same.
//
// r. Where memory is short, the solver is asked in how many of those that the knapsack has left out, densest first,
// would be let in beside the chosen ones, if as many tokens as do not fit were recomputed in every step: where one more
// brings more answers per second than the longer step costs. Who then comes in and whose blocks go, form_stage.h says.
// Tokens that requests share are attended to, never recomputed, and take no memory. Where the host has copies, an
// uncached token is recomputed through as many layers as loading the others takes.
//
// Thread safety: none. No allocation once as many live requests have been seen.
#pragma once

#include <span>
#include <vector>

#include "base/config.h"
#include "solvers/partial_cache_solver.h"
#include "stages/composition.h"
#include "stages/residents.h"

namespace hocket {

// b, for waiting requests in that order. decodes: what the step has of `decoding`, all online requests that decode.
// slack: their tightest_slack().
int32_t max_running(const Snapshot& snapshot, const BatchFeatures& decodes, std::span<const Slot> decoding,
                    double slack, std::span<const Slot> waiting);

class ResidencyStage {
 public:
  struct Answer {
    double ratio = 0.0;          // as it is
    double wanted_ratio = 0.0;   // with those who are to come in
    bool is_worth_more = false;  // than who has been chosen: somebody is to come in
    RatioReason reason = RatioReason::kRecomputes;

    // r stays as it is; `why` if that is 0.
    Answer stay(RatioReason why) const { return {ratio, ratio, false, ratio > 0 ? RatioReason::kRecomputes : why}; }
  };

  // choices: of residents.solve(), which skips somebody who waits. num_free_units: that the chosen leave, less what
  // must stay free. max_seconds: that a step may take, by what was predicted.
  Answer weigh(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
               std::span<const uint8_t> choices, int64_t num_free_units, double max_seconds);

 private:
  // What the chosen ones have, in tokens.
  struct Chosen {
    double own = 0.0;  // as K and V, what is uncached included
    double uncached = 0.0;
    double shared = 0.0;
  };
  Chosen add_chosen(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                    std::span<const uint8_t> choices);
  bool add_offered(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                   std::span<const uint8_t> choices);

  double max_context_ = 0.0;
  std::vector<int32_t> lengths_;       // scratch
  std::vector<double> slack_seconds_;  // scratch
  std::vector<size_t> offered_;        // scratch
};

}  // namespace hocket
