#include "offline/plan_search.h"

#include <algorithm>
#include <cmath>

namespace hocket {
namespace {

constexpr double kMinGain = 1e-9;  // relative; a smaller one is rounding
constexpr int32_t kMaxDisplacing = 4;
constexpr size_t kMaxVictims = 64;
constexpr int32_t kMaxFailures = 8;  // in a row, in an order in which later neighbours promise less

// The comparison under which a heap's top is the first of an order.
template <typename Before>
auto last_first(Before before) {
  return [before](int32_t a, int32_t b) { return before(b, a) || (!before(a, b) && b < a); };
}

}  // namespace

PlanResult PlanSearch::search(const LatencyModel& model, std::span<const PlanCandidate> candidates,
                              const PlanBudgets& budgets, double online_tokens, LatencyBatch* batch) {
  model_ = &model;
  batch_ = batch;
  candidates_ = candidates;
  budgets_ = budgets;
  totals_ = {.benefit = online_tokens};
  num_plans_ = 0;
  start();
  repair();
  while (has_budget()) {
    bool has_moved = !is_by_rate() && add_decodes();
    has_moved |= improve_chunks();
    has_moved |= add_decodes();
    // By benefit, to give up work only pays where it costs others their cache.
    if (is_by_rate() || punishment() > 0.0) has_moved |= drop_requests();
    if (!has_moved && !(is_by_rate() && displace_for_prefills())) break;
  }
  fall_back_to_nothing();
  const Outcome outcome = evaluate();
  return {.tokens = tokens_,
          .score = outcome.score,
          .seconds = outcome.seconds,
          .benefit = totals_.benefit,
          .punishment = punishment(),
          .num_plans = num_plans_};
}

// Plans

int64_t PlanSearch::units(int64_t num_tokens) const {
  return (num_tokens + options_.block_size - 1) / options_.block_size * options_.units_per_block;
}

double PlanSearch::benefit(const PlanCandidate& c, int32_t tokens) const {
  const double of_one = c.value > 0 ? c.value : tokens == 1 ? options_.decode_value : 1.0;
  return c.cached_tokens + of_one * tokens;
}

double PlanSearch::punishment() const {
  return budgets_.tokens_per_unit * static_cast<double>(std::max<int64_t>(0, totals_.new_units - budgets_.free_units));
}

void PlanSearch::start() {
  tokens_.assign(candidates_.size(), 0);
  for (const PlanCandidate& c : candidates_) {
    if (c.is_resident) totals_.released_units += units(c.context);
  }
  nothing_score_ = evaluate().score;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const PlanCandidate& c = candidates_[i];
    if (!is_by_rate() && c.remaining > 1) continue;
    set_tokens(static_cast<int32_t>(i), std::min(c.last_tokens, c.remaining));
  }
}

void PlanSearch::count(const PlanCandidate& c, int32_t tokens, int32_t sign) {
  totals_.benefit += sign * benefit(c, tokens);
  totals_.new_units += sign * (units(c.context + tokens) - units(c.context));
  (c.is_resident ? totals_.released_units : totals_.pinned_units) += (c.is_resident ? -sign : sign) * units(c.context);
  totals_.num_tokens += sign * tokens;
  totals_.num_requests += sign;
}

void PlanSearch::set_tokens(int32_t i, int32_t tokens) {
  const PlanCandidate& c = candidates_[i];
  const int32_t before = tokens_[i];
  if (before == tokens) return;
  tokens_[i] = tokens;
  if (before > 0) {
    count(c, before, -1);
    before == 1 ? batch_->remove_decode(c.context + 1) : batch_->remove_chunk(c.context, before);
  }
  if (tokens > 0) {
    count(c, tokens, 1);
    tokens == 1 ? batch_->add_decode(c.context + 1) : batch_->add_chunk(c.context, tokens);
  }
}

PlanSearch::Outcome PlanSearch::evaluate() {
  ++num_plans_;
  const double seconds = model_->predict(batch_->features());
  const int64_t taken = totals_.new_units + totals_.pinned_units;
  const int64_t available = budgets_.free_units + budgets_.valuable_units + totals_.released_units;
  const bool is_feasible = seconds <= budgets_.max_seconds && totals_.num_tokens <= budgets_.max_tokens &&
                           totals_.num_requests <= budgets_.max_requests && taken <= available;
  const double net = totals_.benefit - punishment();
  if (!is_by_rate()) return {net, seconds, is_feasible};
  // Without a latency model every plan takes 0 seconds: then the benefit alone counts.
  return {net / (seconds > 0.0 ? seconds : 1.0), seconds, is_feasible};
}

// Moves if that is better.
bool PlanSearch::try_tokens(int32_t i, int32_t tokens) {
  const int32_t before = tokens_[i];
  if (before == tokens || !has_budget()) return false;
  set_tokens(i, tokens);
  const Outcome outcome = evaluate();
  if (is_better(outcome)) {
    score_ = outcome.score;
    return true;
  }
  set_tokens(i, before);
  return false;
}

bool PlanSearch::is_better(const Outcome& outcome) const {
  return outcome.is_feasible && outcome.score > score_ + kMinGain * std::abs(score_);
}

// Fills order_ with the candidates that are wanted; next_in_order() then gives them one by one, so that a neighbourhood
// that is left early costs no full sort. Equals come in the candidates' order.
template <typename Wanted, typename Before>
void PlanSearch::order_by(Wanted is_wanted, Before before) {
  order_.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(tokens_.size()); ++i) {
    if (is_wanted(i)) order_.push_back(i);
  }
  std::make_heap(order_.begin(), order_.end(), last_first(before));
}

template <typename Before>
int32_t PlanSearch::next_in_order(Before before) {
  std::pop_heap(order_.begin(), order_.end(), last_first(before));
  const int32_t i = order_.back();
  order_.pop_back();
  return i;
}

// Neighbours

// The last batch may no longer fit: gives up the longest chunks and contexts until it does.
void PlanSearch::repair() {
  Outcome outcome = evaluate();
  if (!outcome.is_feasible) {
    const auto before = [&](int32_t a, int32_t b) {
      return tokens_[a] != tokens_[b] ? tokens_[a] > tokens_[b] : candidates_[a].context > candidates_[b].context;
    };
    order_by([&](int32_t i) { return tokens_[i] > 0; }, before);
    while (!outcome.is_feasible && !order_.empty()) {
      set_tokens(next_in_order(before), 0);
      outcome = evaluate();
    }
  }
  score_ = outcome.score;
}

// Those that need no new block first, then the shortest contexts.
bool PlanSearch::add_decodes() {
  const auto before = [&](int32_t a, int32_t b) {
    const bool a_grows = candidates_[a].context % options_.block_size == 0;
    const bool b_grows = candidates_[b].context % options_.block_size == 0;
    return a_grows != b_grows ? b_grows : candidates_[a].context < candidates_[b].context;
  };
  order_by([&](int32_t i) { return tokens_[i] == 0 && candidates_[i].remaining == 1; }, before);
  return try_in_order(before, 1);
}

// The longest contexts first: they cost most for the same benefit.
bool PlanSearch::drop_requests() {
  const auto before = [&](int32_t a, int32_t b) { return candidates_[a].context > candidates_[b].context; };
  order_by([&](int32_t i) { return tokens_[i] > 0; }, before);
  return try_in_order(before, 0);
}

template <typename Before>
bool PlanSearch::try_in_order(Before before, int32_t tokens) {
  bool has_moved = false;
  int32_t num_failures = 0;
  while (!order_.empty() && num_failures < kMaxFailures) {
    if (try_tokens(next_in_order(before), tokens)) {
      has_moved = true;
      num_failures = 0;
    } else {
      ++num_failures;
    }
  }
  return has_moved;
}

bool PlanSearch::improve_chunks() {
  bool has_moved = false;
  for (size_t i = 0; i < tokens_.size() && has_budget(); ++i) {
    if (candidates_[i].remaining > 1) has_moved |= improve_chunk(static_cast<int32_t>(i));
  }
  return has_moved;
}

// Tries the largest chunk that fits and its halves, so that from any start the best is near, and one step either way.
bool PlanSearch::improve_chunk(int32_t i) {
  const int32_t quantum = options_.chunk_quantum;
  const int32_t before = tokens_[i];
  bool has_moved = false;
  for (int32_t tokens = largest_chunk(i); tokens > 0; tokens = tokens / 2 / quantum * quantum) {
    has_moved |= try_tokens(i, tokens);
  }
  if (tokens_[i] == 0) return has_moved;
  const int32_t up = std::min(tokens_[i] / quantum * quantum + quantum, candidates_[i].remaining);
  const int32_t down = (tokens_[i] - 1) / quantum * quantum;
  has_moved |= try_tokens(i, up);
  if (down > 0) has_moved |= try_tokens(i, down);
  return has_moved && tokens_[i] != before;
}

// The most tokens that the budgets leave the candidate, all others unchanged; 0 if none. Time and units grow with it.
int32_t PlanSearch::largest_chunk(int32_t i) {
  const int32_t before = tokens_[i];
  const int32_t quantum = options_.chunk_quantum;
  const int32_t remaining = std::min(candidates_[i].remaining, budgets_.max_tokens - totals_.num_tokens + before);
  const auto fits = [&](int32_t tokens) {
    set_tokens(i, tokens);
    return evaluate().is_feasible;
  };
  int32_t low = 0;  // in quanta, fits
  if (remaining > 0 && fits(remaining)) {
    low = remaining;
  } else {
    int32_t high = (remaining + quantum - 1) / quantum;  // does not fit
    int32_t fitting = 0;
    while (high - fitting > 1 && has_budget()) {
      const int32_t middle = fitting + (high - fitting) / 2;
      (fits(middle * quantum) ? fitting : high) = middle;
    }
    low = fitting * quantum;
  }
  // By benefit, whole blocks where not even a quantum fits: else nobody would come in while others decode for longer
  // than a quantum leaves, however long that goes on.
  for (int32_t tokens = quantum - options_.block_size; low == 0 && !is_by_rate() && tokens > 0;) {
    if (tokens < remaining && fits(tokens)) low = tokens;
    tokens -= options_.block_size;
  }
  set_tokens(i, before);
  return low;
}

// A prefill may be worth more than what stands in its way. Dear, so only where nothing else helps, and for the first
// few.
bool PlanSearch::displace_for_prefills() {
  int32_t num_tried = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(tokens_.size()) && num_tried < kMaxDisplacing; ++i) {
    const PlanCandidate& c = candidates_[i];
    if (tokens_[i] > 0 || c.remaining == 1) continue;
    ++num_tried;
    const int32_t most = std::min(c.remaining, budgets_.max_tokens);
    if (try_displacing(i, std::min(most, options_.chunk_quantum)) || try_displacing(i, most)) return true;
  }
  return false;
}

// Moves to a plan with these tokens and without as many of the least useful others as that takes, if that is better.
bool PlanSearch::try_displacing(int32_t i, int32_t tokens) {
  if (tokens <= 0) return false;
  const auto usefulness = [&](int32_t j) { return benefit(candidates_[j], tokens_[j]); };
  const auto before = [&](int32_t a, int32_t b) {
    if (usefulness(a) != usefulness(b)) return usefulness(a) < usefulness(b);
    return candidates_[a].context > candidates_[b].context;
  };
  order_by([&](int32_t j) { return tokens_[j] > 0; }, before);
  dropped_.clear();
  set_tokens(i, tokens);
  Outcome outcome = evaluate();
  while (!outcome.is_feasible && !order_.empty() && has_budget() && dropped_.size() < kMaxVictims) {
    const int32_t victim = next_in_order(before);
    dropped_.push_back({victim, tokens_[victim]});
    set_tokens(victim, 0);
    outcome = evaluate();
  }
  if (is_better(outcome)) {
    score_ = outcome.score;
    return true;
  }
  set_tokens(i, 0);
  for (const Dropped& dropped : dropped_) set_tokens(dropped.candidate, dropped.tokens);
  return false;
}

void PlanSearch::fall_back_to_nothing() {
  if (score_ >= nothing_score_) return;
  for (size_t i = 0; i < tokens_.size(); ++i) set_tokens(static_cast<int32_t>(i), 0);
}

}  // namespace hocket
