// What a simulated run leaves behind. Inert data, structure of arrays, indexed by request. Times in seconds; NaN where
// the event did not happen. docs/metrics.md has the symbols and what is computed from them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "estimates/itl_histogram.h"
#include "requests/request.h"
#include "state/scheduler_stats.h"

namespace hocket {

// How a request ended; pending: only in a run with a horizon.
enum class SimulatedOutcome : uint8_t { kPending = 0, kFinished = 1, kQueueFull = 2, kTooLong = 3, kOverloaded = 4 };

struct RequestRecords {
  explicit RequestRecords(size_t n)
      : outcome(n, SimulatedOutcome::kPending),
        arrival_s(n, kNever),
        scheduled_s(n, kNever),
        first_token_s(n, kNever),
        last_token_s(n, kNever),
        max_itl_s(n, 0.0),
        num_output_tokens(n, 0),
        num_itl_violations(n, 0),
        num_tpot_violations(n, 0),
        num_cached_tokens(n, 0),
        num_preemptions(n, 0) {}

  static constexpr double kNever = std::numeric_limits<double>::quiet_NaN();

  std::vector<SimulatedOutcome> outcome;
  std::vector<double> arrival_s;             // a_r
  std::vector<double> scheduled_s;           // s_r: start of the first step that computed something of it
  std::vector<double> first_token_s;         // f_r
  std::vector<double> last_token_s;          // c_r, once finished
  std::vector<double> max_itl_s;             // largest gap between two tokens
  std::vector<int32_t> num_output_tokens;    // n_r
  std::vector<int32_t> num_itl_violations;   // gaps above the request's ITL target
  std::vector<int32_t> num_tpot_violations;  // tokens behind the first after their cumulative deadline (request.h)
  std::vector<int32_t> num_cached_tokens;    // of the prompt, at the first admission
  std::vector<int32_t> num_preemptions;
};

// The scheduler at a regular interval of simulated time.
struct SimulationSamples {
  std::vector<double> time_s;
  std::vector<std::array<int64_t, kNumRequestClasses>> num_running;
  std::vector<std::array<int64_t, kNumRequestClasses>> num_waiting;
  std::vector<int64_t> num_free_units;
  std::vector<int64_t> num_cached_units;  // evictable
};

// Every token in the order of its time, for small runs and tests.
struct TokenTimes {
  std::vector<uint32_t> request;
  std::vector<double> time_s;
};

struct SimulationTotals {
  double busy_s = 0.0;  // sum of step times
  int64_t num_steps = 0;
  int64_t num_scheduled_tokens = 0;  // over all steps; more than prompts and outputs where tokens were recomputed
  int64_t num_scheduled_seqs = 0;    // over all steps
};

}  // namespace hocket
