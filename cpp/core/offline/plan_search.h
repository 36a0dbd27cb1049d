// What offline work joins this step (Echo sections 3.1 and 4.1): a hill-climb from the last batch.
//
//   score = (benefit - punishment) / seconds                       PlanObjective::kRate, the paper's
//   score = benefit - punishment                                   PlanObjective::kBenefit
//     benefit     tokens advanced, online ones included; tokens that the prefix cache gives count, at no time; a
//                 candidate may say what its tokens are worth, otherwise a decode counts decode_value
//     punishment  tokens whose cache must be evicted although somebody who waits will need it
//     seconds     predicted for the whole batch
//
// subject to the budgets below. A plan gives every candidate a number of tokens, 0 for not this time. The search starts
// from what the last batch gave and moves to better neighbours: add a resident decode, add a prefill or change its
// chunk, drop a request, or add a prefill and drop what stands in its way. A neighbour differs in one candidate, so
// evaluating it is O(1). The search ends when no neighbour that it tries is better, or after max_plans evaluations;
// what it then has is never worse than no offline work at all, and keeps the budgets unless online work alone breaks
// them.
//
// Memory: `free_units` can be taken at no loss (free, or cached for nobody), `valuable_units` are cached and will be
// needed: each one taken is punished by tokens_per_unit. A resident that is left out may lose its cache: its units
// become valuable ones. A candidate that is not resident pins its cached prefix, which takes it from the valuable ones.
//
// Thread safety: none. Allocation: only for more candidates than ever before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimates/latency_model.h"

namespace hocket {

struct PlanCandidate {
  int32_t context = 0;        // tokens with cache, those of cached_tokens included
  int32_t remaining = 1;      // tokens it could compute now, >= 1; 1: a decode
  int32_t cached_tokens = 0;  // of context, what the prefix cache gives if it is admitted now; 0 for residents
  int32_t last_tokens = 0;    // tokens that the last batch gave it
  bool is_resident = true;    // holds its cache
  double value = 0;           // of each token of a chunk, or of the decode; 0: 1, or PlanSearchOptions::decode_value
};

// The rate is short-sighted where the budgets leave time: it refuses all work that brings less per second than the
// batch has already, and the time that this saves brings nothing. By benefit the search fills the budgets: decodes
// first, then chunks anew, from the first candidate on.
enum class PlanObjective : uint8_t { kRate = 0, kBenefit = 1 };

struct PlanBudgets {
  double max_seconds = 0;
  int32_t max_tokens = 0;    // of candidates together
  int32_t max_requests = 0;  // candidates with tokens
  int64_t free_units = 0;
  int64_t valuable_units = 0;
  double tokens_per_unit = 0;  // block_size / units_per_block
};

struct PlanSearchOptions {
  int32_t block_size = 16;
  int32_t units_per_block = 2;
  // Chunks are multiples of it, or end the prompt or the budget of tokens; by benefit whole blocks where it is too
  // much.
  int32_t chunk_quantum = 16;
  int32_t max_plans = 512;    // evaluations; larger: better plans, some 50 ns each
  double decode_value = 1.0;  // b(D) / b(P): benefit of a decode in prefill tokens
  PlanObjective objective = PlanObjective::kRate;
};

struct PlanResult {
  std::span<const int32_t> tokens;  // per candidate; valid until the next search()
  double score = 0;                 // tokens per second, or tokens
  double seconds = 0;
  double benefit = 0;     // tokens
  double punishment = 0;  // tokens
  int32_t num_plans = 0;  // evaluated
};

class PlanSearch {
 public:
  // REQUIRES: all options >= 1, decode_value >= 0.
  explicit PlanSearch(const PlanSearchOptions& options) : options_(options) {}

  // `batch` holds the online work and gets the plan's; online_tokens is its benefit.
  // REQUIRES: every context + 1 <= batch->max_context().
  PlanResult search(const LatencyModel& model, std::span<const PlanCandidate> candidates, const PlanBudgets& budgets,
                    double online_tokens, LatencyBatch* batch);

 private:
  // What one plan amounts to, apart from its batch.
  struct Totals {
    double benefit = 0;
    int64_t new_units = 0;       // to be taken
    int64_t pinned_units = 0;    // of cached prefixes
    int64_t released_units = 0;  // of residents that are left out
    int32_t num_tokens = 0;
    int32_t num_requests = 0;
  };
  struct Dropped {
    int32_t candidate;
    int32_t tokens;
  };
  struct Outcome {
    double score;
    double seconds;
    bool is_feasible;
  };

  int64_t units(int64_t num_tokens) const;
  double benefit(const PlanCandidate& candidate, int32_t tokens) const;
  double punishment() const;
  bool is_by_rate() const { return options_.objective == PlanObjective::kRate; }
  void start();
  void set_tokens(int32_t i, int32_t tokens);
  void count(const PlanCandidate& candidate, int32_t tokens, int32_t sign);
  Outcome evaluate();
  bool is_better(const Outcome& outcome) const;
  bool try_tokens(int32_t i, int32_t tokens);
  bool try_displacing(int32_t i, int32_t tokens);
  template <typename Wanted, typename Before>
  void order_by(Wanted is_wanted, Before before);
  template <typename Before>
  int32_t next_in_order(Before before);
  template <typename Before>
  bool try_in_order(Before before, int32_t tokens);
  bool has_budget() const { return num_plans_ < options_.max_plans; }

  void repair();
  bool add_decodes();
  bool improve_chunks();
  bool improve_chunk(int32_t i);
  int32_t largest_chunk(int32_t i);
  bool displace_for_prefills();
  bool drop_requests();
  void fall_back_to_nothing();

  PlanSearchOptions options_;

  // Of the current search()
  const LatencyModel* model_ = nullptr;
  LatencyBatch* batch_ = nullptr;
  std::span<const PlanCandidate> candidates_;
  PlanBudgets budgets_;
  Totals totals_;
  double score_ = 0;
  double nothing_score_ = 0;  // without any candidate
  int32_t num_plans_ = 0;
  std::vector<int32_t> tokens_;  // per candidate
  std::vector<int32_t> order_;   // workspace
  std::vector<Dropped> dropped_;
};

}  // namespace hocket
