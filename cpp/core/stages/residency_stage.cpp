#include "stages/residency_stage.h"

#include <algorithm>
#include <limits>

#include "stages/class_order.h"
#include "stages/form_stage.h"

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);
constexpr auto kCompact = static_cast<uint8_t>(KnapsackChoice::kCompact);
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kMostOffered = 16;  // of those left out: one comes in per step

double tokens_of(const SchedulerConfig& config, int64_t num_units) {
  return static_cast<double>(num_units / config.units_per_block() * config.block_size);
}

// That a step may take if all steps took as long; infinite for who is late anyway.
double seconds_per_token(const Snapshot& snapshot, Slot slot) {
  const RequestTable& requests = snapshot.requests;
  return is_past_target(requests, slot, snapshot.now) ? kNever : requests.targets[slot].seconds_per_token();
}

// Of an uncached token's layers, where the host has copies of as many as hide behind computing the others.
double recomputed_share(const SchedulerConfig& config, const Snapshot& snapshot) {
  if (snapshot.copies == nullptr) return 1.0;
  const double load = snapshot.estimates.transfer_seconds(config.units_per_block()) / config.block_size;
  const double compute = snapshot.estimates.latency.coefficients().prefill_token;
  return load > 0 && compute > 0 ? load / (load + compute) : 1.0;
}

}  // namespace

int32_t max_running(const Snapshot& snapshot, const BatchFeatures& decodes, std::span<const Slot> decoding,
                    double slack, std::span<const Slot> waiting) {
  const RequestTable& requests = snapshot.requests;
  if (waiting.empty() || !snapshot.estimates.knows_latency()) return Residency::kEverybody;
  const double margin = snapshot.estimates.margin.value();
  BatchFeatures features = decodes;
  auto num_running = static_cast<int32_t>(decoding.size());
  const auto add = [&](Slot slot) {
    features.add_decode(requests.num_tokens[slot]);
    slack = std::min(slack, seconds_per_token(snapshot, slot));
  };
  for (const Slot slot : snapshot.running) {
    if (rank_of(requests, slot) != kOnlineRank || requests.num_uncomputed_tokens(slot) == 1) continue;
    add(slot);
    ++num_running;
  }
  for (const Slot slot : waiting) {
    add(slot);
    const bool is_too_long = slack < kNever && snapshot.estimates.latency.predict(features) * margin > slack;
    if (is_too_long) return std::max(1, num_running);
    ++num_running;
  }
  return Residency::kEverybody;
}

ResidencyStage::Answer ResidencyStage::weigh(const SchedulerConfig& config, const Snapshot& snapshot,
                                             const Residents& residents, std::span<const uint8_t> choices,
                                             int64_t num_free_units, double max_seconds) {
  lengths_.reserve(residents.capacity());
  slack_seconds_.reserve(residents.capacity());
  offered_.reserve(residents.capacity());
  lengths_.clear();
  slack_seconds_.clear();
  max_context_ = 0.0;
  const Chosen chosen = add_chosen(config, snapshot, residents, choices);
  const auto num_chosen = static_cast<int32_t>(lengths_.size());
  const Answer now{.ratio = chosen.own > 0 ? chosen.uncached / chosen.own : 0.0};
  if (!snapshot.estimates.knows_latency()) return now.stay(RatioReason::kUnknownTimes);
  const bool any_left_out = add_offered(config, snapshot, residents, choices);
  if (offered_.empty()) return now.stay(any_left_out ? RatioReason::kNobodyMayLack : RatioReason::kMemorySuffices);
  const MeasuredStep step{.latency = snapshot.estimates.latency,
                          .shared_tokens = chosen.shared,
                          .max_context = max_context_,
                          .recomputed_share = recomputed_share(config, snapshot)};
  PartialCacheProblem problem{
      .lengths = lengths_,
      .memory_bytes = chosen.own - chosen.uncached + tokens_of(config, std::max<int64_t>(0, num_free_units)),
      .slack_seconds = slack_seconds_,
      .max_seconds = max_seconds,
      .min_batch_size = std::max(1, num_chosen)};
  const PartialCacheChoice choice = solve_partial_cache(step, problem);
  if (choice.batch_size > num_chosen) return {now.ratio, choice.uncached_ratio, true, RatioReason::kRecomputes};
  problem.slack_seconds = {};
  problem.max_seconds = kNever;
  const bool is_for_targets = solve_partial_cache(step, problem).batch_size > num_chosen;
  return now.stay(is_for_targets ? RatioReason::kTargets : RatioReason::kCostsMore);
}

ResidencyStage::Chosen ResidencyStage::add_chosen(const SchedulerConfig& config, const Snapshot& snapshot,
                                                  const Residents& residents, std::span<const uint8_t> choices) {
  Chosen sum;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == kSkip) continue;
    const Slot slot = residents.slot(i);
    const Row row = snapshot.requests.row[slot];
    const double num_tokens = snapshot.requests.num_tokens[slot];
    const double uncached =
        row == kNone ? 0.0 : snapshot.memory.form(row).num_uncached_blocks * static_cast<double>(config.block_size);
    const double own = choices[i] == kCompact ? 0.0 : tokens_of(config, residents.kv_units(i)) + uncached;
    sum.own += own;
    sum.uncached += uncached;
    sum.shared += std::max(0.0, num_tokens - own);
    max_context_ = std::max(max_context_, num_tokens);
    lengths_.push_back(static_cast<int32_t>(own));
    slack_seconds_.push_back(kNever);
  }
  return sum;
}

// The densest of those who wait and may do without their first blocks. Returns whether anybody who waits was left out.
bool ResidencyStage::add_offered(const SchedulerConfig& config, const Snapshot& snapshot, const Residents& residents,
                                 std::span<const uint8_t> choices) {
  bool any_left_out = false;
  offered_.clear();
  for (size_t i = 0; i < choices.size(); ++i) {
    any_left_out |= choices[i] == kSkip;
    if (may_lack_blocks(snapshot, residents, choices, i)) offered_.push_back(i);
  }
  const auto is_denser = [&](size_t a, size_t b) {
    return residents.density(a) != residents.density(b) ? residents.density(a) > residents.density(b) : a < b;
  };
  const size_t num_offered = std::min(offered_.size(), kMostOffered);
  std::ranges::partial_sort(offered_, offered_.begin() + static_cast<std::ptrdiff_t>(num_offered), is_denser);
  offered_.resize(num_offered);
  for (const size_t i : offered_) {
    const Slot slot = residents.slot(i);
    max_context_ = std::max<double>(max_context_, snapshot.requests.num_tokens[slot]);
    lengths_.push_back(static_cast<int32_t>(tokens_of(config, residents.kv_units(i))));
    slack_seconds_.push_back(seconds_per_token(snapshot, slot) / snapshot.estimates.margin.value());
  }
  return any_left_out;
}

}  // namespace hocket
