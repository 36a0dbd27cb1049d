// eLLM (section 4.2): first come, first served, and the b/r solver decides how many requests are in memory and which
// share of their tokens is recomputed in every step instead of being cached.
//
// While everybody fits as K and V, and a step with all of them meets their targets, there is nothing to solve.
// Otherwise the first b requests in order of arrival may be resident, each without the first floor(r s_i / block_size)
// blocks of its cache; r = 0 without partial caching. b caps admission: nobody else comes in until it has room, and who
// runs already is not given up for it. The step with those b meets the targets of all of them, T + WT <= SLO, as far as
// they can still be met: who is past its target does not cap the others.

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "policies/policy.h"
#include "solvers/partial_cache_solver.h"
#include "stages/residents.h"

namespace hocket {
namespace {

class EllmPolicy final : public Policy {
 public:
  explicit EllmPolicy(const SchedulerConfig& config) : config_(config) {}

  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return std::tie(requests.arrival_time[a], requests.sequence[a]) <
           std::tie(requests.arrival_time[b], requests.sequence[b]);
  }
  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    if (snapshot.requests.state[needy] == RequestState::kWaiting) return;
    victims->insert(victims->end(), snapshot.running.begin(), snapshot.running.end());
  }
  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    const RequestTable& requests = snapshot.requests;
    const Answer residency = solve(snapshot);
    composition->residency = {.uncached_ratio = residency.ratio, .reason = residency.reason};
    if (residency.max_requests < slots_.size()) {
      composition->residency.max_running = static_cast<int32_t>(residency.max_requests);
    }
    auto& grants = composition->grants;
    prefills_.clear();
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = requests.num_uncomputed_tokens(slot);
      (num_left == 1 ? grants : prefills_).push_back({slot, num_left, false});
      if (config_.enable_partial_caching && num_left == 1) reshape(snapshot, slot, residency.ratio, composition);
    }
    grants.insert(grants.end(), prefills_.begin(), prefills_.end());
    const size_t num_admissible = std::max(residency.max_requests, snapshot.running.size()) - snapshot.running.size();
    const auto num_rows = static_cast<size_t>(snapshot.memory.num_free_rows());
    const size_t num_offered = std::min({snapshot.waiting.size(), num_rows, num_admissible});
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      grants.push_back({slot, requests.num_tokens[slot], true, form_of(requests.num_tokens[slot], residency.ratio)});
    }
  }

 private:
  struct Answer {
    RatioReason reason;
    size_t max_requests = std::numeric_limits<size_t>::max();  // b, those that run included; at least 1
    double ratio = 0.0;                                        // r
  };

  CacheForm form_of(int32_t num_tokens, double ratio) const {
    return {CacheKind::kKv, static_cast<int32_t>(ratio * num_tokens) / config_.block_size};
  }

  void reshape(const Snapshot& snapshot, Slot slot, double ratio, Composition* composition) const {
    const CacheForm form = form_of(snapshot.requests.num_tokens[slot], ratio);
    if (form != snapshot.memory.form(snapshot.requests.row[slot])) composition->reshapes.push_back({slot, form});
  }

  Answer solve(const Snapshot& snapshot) {
    const StepCosts& costs = snapshot.estimates.costs;
    if (costs.flops_per_second <= 0) return {RatioReason::kUnknownTimes};
    const int64_t num_blocks = gather(snapshot);
    const int64_t capacity = snapshot.memory.num_kv_blocks();
    const bool is_enough = num_blocks <= capacity;
    if (is_enough && keeps_targets(costs)) return {RatioReason::kMemorySuffices};
    PartialCacheProblem problem;
    problem.lengths = lengths_;
    problem.slack_seconds = slack_seconds_;
    problem.memory_bytes =
        static_cast<double>(capacity - std::ssize(slots_)) * config_.block_size * costs.kv_bytes_per_token;
    problem.max_ratio = config_.enable_partial_caching ? 1.0 : 0.0;
    PartialCacheChoice choice = solve_partial_cache(costs, problem);
    if (num_step_tokens(choice) > snapshot.max_num_tokens) {
      problem.max_ratio = 0.0;
      choice = solve_partial_cache(costs, problem);
    }
    const RatioReason why_not = is_enough ? RatioReason::kMemorySuffices : RatioReason::kCostsMore;
    const RatioReason reason = choice.uncached_ratio > 0 ? RatioReason::kRecomputes : why_not;
    return {reason, static_cast<size_t>(std::max(1, choice.batch_size)), choice.uncached_ratio};
  }

  // What is recomputed is of the step's tokens, beside the decodes.
  double num_step_tokens(const PartialCacheChoice& choice) const {
    const double num_tokens = std::accumulate(lengths_.begin(), lengths_.begin() + choice.batch_size, 0.0);
    return choice.uncached_ratio * num_tokens + choice.batch_size;
  }

  // Who runs and who could come in, in order of arrival: slots_, lengths_ and slack_seconds_. Returns the blocks that
  // they need as K and V, each with its next one.
  int64_t gather(const Snapshot& snapshot) {
    const RequestTable& requests = snapshot.requests;
    slots_.assign(snapshot.running.begin(), snapshot.running.end());
    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), snapshot.memory.num_free_rows());
    slots_.insert(slots_.end(), snapshot.waiting.begin(), snapshot.waiting.begin() + num_offered);
    std::ranges::sort(slots_, [&](Slot a, Slot b) { return precedes(requests, a, b); });
    lengths_.clear();
    slack_seconds_.clear();
    int64_t num_blocks = 0;
    for (const Slot slot : slots_) {
      lengths_.push_back(requests.num_tokens[slot] + 1);
      slack_seconds_.push_back(is_past_target(requests, slot, snapshot.now) ? std::numeric_limits<double>::infinity()
                                                                            : requests.deadline(slot) - snapshot.now);
      num_blocks += requests.num_tokens[slot] / config_.block_size + 2;
    }
    return num_blocks;
  }

  // Whether a step that decodes all of them, with K and V of all of their tokens, meets their targets.
  bool keeps_targets(const StepCosts& costs) const {
    double sum = 0.0;
    double sum_of_squares = 0.0;
    for (const double length : lengths_) {
      sum += length;
      sum_of_squares += length * length;
    }
    const double seconds = partial_cache_seconds(costs, static_cast<double>(lengths_.size()), sum, sum_of_squares, 0.0);
    return std::ranges::all_of(slack_seconds_, [&](double slack) { return seconds <= slack; });
  }

  const SchedulerConfig config_;
  std::vector<Grant> prefills_;        // scratch
  std::vector<Slot> slots_;            // scratch
  std::vector<int32_t> lengths_;       // scratch
  std::vector<double> slack_seconds_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_ellm_policy(const SchedulerConfig& config) { return std::make_unique<EllmPolicy>(config); }

}  // namespace hocket
