// The united policy: online residents by knapsack, chunks by deadline, offline work by plan search.
//
//   1  residents   While online requests contend for memory, the knapsack picks who holds it and as which cache kind,
//                  of who runs and of as many who wait as there are rows for.
//                  The value of a request is what it brings per step: one answer within its targets over the steps
//                  that it is expected to take yet (output_forecast.h), so that density is answers per unit and step.
//                  An answer of higher priority is worth more (class_order.h), and one of a tenant that has been
//                  served less than others (tenants.h); so is, without a target, one that somebody reads already.
//                  One that has missed a target counts past_target_decay as much; who runs counts more by what
//                  computing it again would cost everybody, spread over the steps that it has left; who waits counts
//                  less as long as it can wait on.
//                  With partial caching the b/r solver says how many may be in memory for all to keep their targets,
//                  and whether who is left out may come in without its first tokens (residency_stage.h, form_stage.h).
//   2  time        A step takes no longer than the tightest deadline among decoding requests that can still be met,
//                  less the margin that steps have needed (step_margin.h). Where somebody decodes without a target,
//                  prompts stretch it to max_decode_step_ms at most: they never take a whole step. Where that follows
//                  the machine it grows eightfold for first tokens that can still come in time, and for those that
//                  have waited for long, as such a prompt goes (patience.h): now and then, at once (long_steps.h).
//   3  chunks      Decodes first, then prompts (prompt.h): by priority, deadline, and when a first token is expected;
//                  while memory is contended the densest first. Beside others' decodes a tenant's waiting requests come
//                  in by halves (newcomers.h).
//   4  offline     Plan search over the offline queue in what is left of time and memory, less the reserve. It makes no
//                  step longer than max_offline_step_ms, since whoever arrives waits for the step's end; and next to
//                  no longer than without it, where an online request without a target is served (idle_share.h).
//                  Favoured requests (class_order.h) go first, and the others then lengthen the step by half at most.
//
// Starvation: a request that has waited max_wait_ms goes first, oldest first, and keeps its place until it ends, or for
// starving_turn_ms while others have waited as long: then who has waited longest is next. Such
// requests get at most a share of the memory together, but always at least one of them is served. So a request waits
// no longer than max_wait_ms plus the time that older starving ones take in that share, and until a row is free. An
// offline request that has waited max_offline_wait_ms is one of them; one at a time comes in.
//
// Each stage can be switched off (config.h).

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "policies/policy.h"
#include "policies/prompt.h"
#include "requests/long_steps.h"
#include "requests/newcomers.h"
#include "requests/prompt_share.h"
#include "stages/class_order.h"
#include "stages/form_stage.h"
#include "stages/offline_stage.h"
#include "stages/residency_stage.h"
#include "stages/residents.h"
#include "stages/step_builder.h"

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);
constexpr auto kCompact = static_cast<uint8_t>(KnapsackChoice::kCompact);
constexpr auto kKv = static_cast<uint8_t>(KnapsackChoice::kKv);
constexpr int32_t kLeastChunk = 64;         // tokens by which prompts advance however tight the deadline
constexpr float kLeastUrgency = 0.05F;      // of the time that a request may wait
constexpr double kLeastStepSeconds = 1e-3;  // while nothing is known of step times

class HocketPolicy final : public Policy {
 public:
  explicit HocketPolicy(const SchedulerConfig& config)
      : config_(config), residents_(config), builder_(config), offline_(config, PlanObjective::kBenefit) {
    for (auto* slots : {&decoding_, &under_way_, &running_offline_, &running_favoured_}) {
      slots->reserve(config.max_num_seqs);
    }
  }

  bool needs_offline_queue() const override { return config_.enable_plan_search; }
  bool has_task_aware_eviction() const override { return config_.enable_task_aware_eviction; }
  // Echo's is 2. Offline work gives way within a step; what is kept from it beyond that costs more than it brings
  // (docs/log/2026-11-26-a-smaller-reserve.md).
  double reserve_deviations() const override { return 1; }

  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return precedes_by_class(requests, a, b);
  }
  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    victims_by_class(config_, snapshot, needy, victims);
  }
  // Offline ones first, then those of the largest priority number, then those that are late, then the last to arrive;
  // those that starved after all others.
  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override {
    const auto rank = [&](Slot slot) {
      const bool is_late = requests.delays[slot].is_late && !requests.is_starved[slot];
      return std::make_tuple(!requests.is_starved[slot], rank_of(requests, slot), online_priority(requests, slot),
                             is_late);
    };
    return rank(a) != rank(b) ? rank(a) > rank(b) : precedes(requests, b, a);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    composition->is_strict = false;
    split(snapshot);
    builder_.begin(snapshot, composition);
    for (const Slot slot : decoding_) builder_.decode(slot);
    decode_seconds_ = builder_.seconds();
    slack_ = tightest_slack(snapshot, decoding_);
    for (const Slot slot : under_way_) prompts_.push_back(prompt(snapshot, slot, {}));
    pick_residents(snapshot, composition);
    if (config_.enable_deadlines) {
      builder_.limit_seconds(std::min(seconds_before_deadline(snapshot), seconds_beside_readers(snapshot)));
    }
    prefill_online(snapshot, *composition);
    prompt_share_.note_step(decode_seconds_, builder_.seconds());
    fill_offline(snapshot, composition);
  }

 private:
  void split(const Snapshot& snapshot) {
    const RequestTable& requests = snapshot.requests;
    decoding_.clear();
    under_way_.clear();
    prompts_.clear();
    running_offline_.clear();
    running_favoured_.clear();
    offline_units_ = 0;
    online_units_ = 0;
    for (const Slot slot : snapshot.running) {
      const int32_t num_held = snapshot.memory.num_held_units(requests.row[slot]);
      if (rank_of(requests, slot) != kOnlineRank) {
        (is_favoured(requests, slot) ? running_favoured_ : running_offline_).push_back(slot);
        offline_units_ += num_held;
        continue;
      }
      online_units_ += num_held;
      if (requests.num_uncomputed_tokens(slot) == 1) {
        decoding_.push_back(slot);
      } else {
        under_way_.push_back(slot);
      }
    }
  }

  Prompt prompt(const Snapshot& snapshot, Slot slot, CacheForm form, float density = 0.0F) const {
    return prompt_of(config_, snapshot, slot, decode_seconds_, form, density);
  }

  bool is_starving(const Snapshot& snapshot, Slot slot) const {
    return hocket::is_starving(config_, snapshot.requests, slot, snapshot.now);
  }

  // ---- 1 ----

  void pick_residents(const Snapshot& snapshot, Composition* composition) {
    num_admissible_ = Residency::kEverybody;
    waiting_.clear();
    arrivals_.clear();
    reserve(snapshot.running.size() + snapshot.waiting.size());
    if (const Slot starving = starving_offline(config_, snapshot); starving != kNone) waiting_.push_back(starving);
    const auto online = waiting_online(snapshot);
    waiting_.insert(waiting_.end(), online.begin(), online.end());
    if (config_.enable_partial_caching) limit_admissions(snapshot, composition);
    const std::span<const Slot> offered = those_with_rows(snapshot);
    int64_t num_wanted = snapshot.memory.num_promised_units();
    for (const Slot slot : offered) num_wanted += units_needed(config_, snapshot, slot).kv;
    const int64_t headroom = this->headroom(snapshot, offered);
    const bool is_enough = num_wanted + headroom <= snapshot.memory.num_available_units() + offline_units_;
    if (is_enough || !config_.enable_residents) {
      const int64_t num_spare = snapshot.memory.num_available_units() - num_wanted - headroom;
      if (config_.has_forms()) restore_forms(config_, snapshot, num_spare, composition);
      if (arrivals_.empty()) {
        for (const Slot slot : waiting_) arrivals_.push_back(prompt(snapshot, slot, {}));
      }
      prompts_.insert(prompts_.end(), arrivals_.begin(), arrivals_.end());
      return;
    }
    solve(snapshot, offered, composition);
  }

  // For all live requests: how many of them a step weighs differs from step to step, and no step but one with more live
  // ones may allocate.
  void reserve(size_t num_live) {
    if (num_live <= waiting_.capacity()) return;
    const size_t n = std::max(num_live, 2 * waiting_.capacity());
    for (auto* slots : {&waiting_, &offered_}) slots->reserve(n);
    for (auto* prompts : {&arrivals_, &prompts_}) prompts->reserve(n + 1);  // one more is squeezed in
    order_.reserve(n + 1);
    starving_.reserve(n);
  }

  // That no online request holds; offline ones give theirs up.
  int64_t num_rows_for_newcomers() const {
    return std::max<int64_t>(0, config_.max_num_seqs - std::ssize(decoding_) - std::ssize(under_way_));
  }

  // Of those who wait, the first for whom there are rows, and all who starve. Others who
  // were weighed would take memory from who runs, and have no row to use it.
  std::span<const Slot> those_with_rows(const Snapshot& snapshot) {
    const int64_t num_rows = num_rows_for_newcomers();
    if (std::ssize(waiting_) <= num_rows) return waiting_;
    offered_.clear();
    for (const Slot slot : waiting_) arrivals_.push_back(prompt(snapshot, slot, {}));
    const int64_t num_starving = std::ranges::count_if(arrivals_, &Prompt::is_starving);
    const int64_t num_offered = std::max(num_rows, num_starving);
    if (num_offered == 0) return offered_;
    const auto last = arrivals_.begin() + (num_offered - 1);
    std::ranges::nth_element(arrivals_, last, [](const Prompt& a, const Prompt& b) { return a.precedes(b); });
    std::for_each(arrivals_.begin(), last + 1, [&](const Prompt& p) { offered_.push_back(p.slot); });
    // In the order of those who wait, which decides among equals.
    std::ranges::sort(offered_, [&](Slot a, Slot b) { return precedes(snapshot.requests, a, b); });
    return offered_;
  }

  void solve(const Snapshot& snapshot, std::span<const Slot> offered, Composition* composition) {
    const RequestTable& requests = snapshot.requests;
    const float step_seconds = static_cast<float>(std::max(kLeastStepSeconds, builder_.seconds()));
    const auto num_online = static_cast<float>(decoding_.size() + prompts_.size());
    residents_.begin(snapshot);
    starving_.clear();
    sum_of_rates_ = 0.0F;
    for (const Slot slot : decoding_) sum_of_rates_ += rate(snapshot, slot);
    for (const Prompt& p : prompts_) sum_of_rates_ += rate(snapshot, p.slot);
    const float mean_rate = num_online > 0 ? sum_of_rates_ / num_online : 1.0F;
    const float scale = step_seconds / mean_rate;
    const auto add = [&](Slot slot) {
      const bool is_running = requests.state[slot] == RequestState::kRunning;
      const float r = rate(snapshot, slot);
      const auto rebuild = is_running ? static_cast<float>(rebuild_seconds(config_, snapshot, slot)) : 0.0F;
      const bool is_late = is_past_target(requests, slot, snapshot.now);
      if (is_starving(snapshot, slot)) starving_.push_back(residents_.size());
      const float urgency = is_running || is_late ? 1.0F : this->urgency(snapshot, slot);
      const float weight = priority_weight(online_priority(requests, slot)) * snapshot.tenants.weight(slot);
      const float reader = reader_weight(requests, slot);
      residents_.add(snapshot, slot, reader * scale * r * urgency * weight, reader * num_online * rebuild * r,
                     is_late ? KnapsackCandidates::kPastTarget : uint8_t{0});
    };
    for (const Slot slot : decoding_) add(slot);
    for (const Prompt& p : prompts_) add(p.slot);
    for (const Slot slot : offered) add(slot);
    int64_t capacity = snapshot.memory.num_available_units() + online_units_ + offline_units_;
    mark_starving(snapshot, static_cast<int64_t>(config_.kStarvingShare * static_cast<double>(capacity)));
    capacity = std::max(capacity - headroom_for_starving(snapshot), starving_.empty() ? 0 : units_of_oldest());
    const KnapsackResult result = choose(snapshot, offered, capacity);
    apply(snapshot, result.choices, composition);
    if (config_.enable_partial_caching) solve_ratio(snapshot, result, capacity, composition);
  }

  // Of everybody who may then run, for the steps to come (device_memory.h).
  int64_t headroom(const Snapshot& snapshot, std::span<const Slot> offered) const {
    return (std::ssize(snapshot.running) + std::ssize(offered) + 1) * config_.units_per_block();
  }

  // Where requests may be in int8, as many are that who comes in finds that headroom, if nobody loses its place for it:
  // in memory that is full of K and V those who were chosen would wait for room.
  KnapsackResult choose(const Snapshot& snapshot, std::span<const Slot> offered, int64_t capacity) {
    const KnapsackResult in_all = residents_.solve(capacity);
    const int64_t room = capacity - headroom(snapshot, offered);
    if (config_.int8_units_per_group == 0 || offered.empty() || in_all.units <= room) return in_all;
    const int64_t num_lost = num_losing_their_places(snapshot, in_all.choices);
    const KnapsackResult in_room = residents_.solve(room);
    return num_losing_their_places(snapshot, in_room.choices) <= num_lost ? in_room : residents_.solve(capacity);
  }

  int64_t num_losing_their_places(const Snapshot& snapshot, std::span<const uint8_t> choices) const {
    int64_t num = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      num += choices[i] == kSkip && snapshot.requests.row[residents_.slot(i)] != kNone;
    }
    return num;
  }

  // b: how many come in at most, so that all keep their targets.
  void limit_admissions(const Snapshot& snapshot, Composition* composition) {
    composition->residency.reason = RatioReason::kMemorySuffices;
    if (!config_.enable_deadlines) return;
    const int32_t b = max_running(snapshot, builder_.batch()->features(), decoding_, slack_, waiting_);
    composition->residency.max_running = b;
    if (b == Residency::kEverybody) return;
    num_admissible_ = std::max<int64_t>(0, b - std::ssize(decoding_) - std::ssize(prompts_));
  }

  // r: one more, without its first tokens, if the solver finds it worth recomputing them. Not while others give way:
  // then memory is short as it is.
  void solve_ratio(const Snapshot& snapshot, const KnapsackResult& result, int64_t capacity, Composition* composition) {
    Residency& residency = composition->residency;
    residency.reason = RatioReason::kOthersGiveWay;
    if (!composition->preemptions.empty()) return;
    const int64_t headroom = (std::ssize(snapshot.running) + std::ssize(prompts_) + 1) * config_.units_per_block();
    const int64_t num_free = capacity - result.units - headroom;
    const double max_seconds = seconds_before_deadline(snapshot);
    auto answer = ratio_.weigh(config_, snapshot, residents_, result.choices, num_free, max_seconds);
    if (answer.is_worth_more) {
      const RatioReason reason = squeeze_in(snapshot, result, num_free, max_seconds, composition);
      if (reason != RatioReason::kRecomputes) answer = answer.stay(reason);
    }
    residency.uncached_ratio = answer.wanted_ratio;
    residency.reason = answer.reason;
  }

  // kRecomputes: somebody comes in.
  RatioReason squeeze_in(const Snapshot& snapshot, const KnapsackResult& result, int64_t num_free, double max_seconds,
                         Composition* composition) {
    if (num_waiting_among(snapshot, prompts_) >= num_admissible_) return RatioReason::kTargets;
    const SqueezedIn found = hocket::squeeze_in(config_, snapshot, residents_, result.choices, num_free, max_seconds,
                                                &builder_, composition);
    if (found.num_uncached_blocks == 0) return found.reason;
    const CacheForm form{CacheKind::kKv, found.num_uncached_blocks};
    prompts_.push_back(prompt(snapshot, residents_.slot(found.candidate), form, residents_.density(found.candidate)));
    return RatioReason::kRecomputes;
  }

  static int64_t num_waiting_among(const Snapshot& snapshot, std::span<const Prompt> prompts) {
    return std::ranges::count_if(prompts, [&](const Prompt& p) { return waits(snapshot, p); });
  }

  // Answers per step that the request is expected to bring.
  static float rate(const Snapshot& snapshot, Slot slot) {
    const RequestTable& requests = snapshot.requests;
    return 1.0F / snapshot.outputs.rest(kOnlineClass, requests.num_output_tokens(slot));
  }

  // Between 0 and 1, of a waiting request: it grows with the share of its time that has gone by. The fourth root keeps
  // density in the lead.
  static float urgency(const Snapshot& snapshot, Slot slot) {
    const double waited = snapshot.requests.pending_seconds(slot, snapshot.now);
    const double left = snapshot.requests.deadline(slot) - snapshot.now;
    if (left <= 0 || left == std::numeric_limits<double>::infinity()) return 1.0F;
    return std::sqrt(std::sqrt(std::max(kLeastUrgency, static_cast<float>(waited / (waited + left)))));
  }

  void mark_starving(const Snapshot& snapshot, int64_t room) {
    const auto place = [&](size_t i) {
      return std::make_pair(starving_since(config_, snapshot.requests, residents_.slot(i)), i);
    };
    std::ranges::sort(starving_, [&](size_t a, size_t b) { return place(a) < place(b); });
    bool is_first = true;
    for (const size_t i : starving_) {
      const int32_t num_units = residents_.kv_units(i);
      if (!is_first && num_units > room) break;
      residents_.set_must_schedule(i);
      room -= num_units;
      is_first = false;
    }
  }

  // Who is to come in must find the headroom that an admission leaves (device_memory.h), or the others would keep it
  // out.
  int64_t headroom_for_starving(const Snapshot& snapshot) const {
    const bool any_waits = std::ranges::any_of(starving_, [&](size_t i) {
      return snapshot.requests.row[residents_.slot(i)] == kNone &&
             (residents_.flags(i) & KnapsackCandidates::kMustSchedule);
    });
    return any_waits ? (std::ssize(snapshot.running) + 1) * config_.units_per_block() : 0;
  }
  int64_t units_of_oldest() const { return residents_.kv_units(starving_.front()); }

  void apply(const Snapshot& snapshot, std::span<const uint8_t> choices, Composition* composition) {
    prompts_.clear();
    for (size_t i = 0; i < choices.size(); ++i) {
      const Slot slot = residents_.slot(i);
      const Row row = snapshot.requests.row[slot];
      const uint8_t choice = choices[i];
      const CacheForm form{choice == kCompact ? config_.compact_kind() : CacheKind::kKv, 0};
      if (row == kNone) {
        if (choice != kSkip) prompts_.push_back(prompt(snapshot, slot, form, residents_.density(i)));
        continue;
      }
      const CacheKind kind = snapshot.memory.form(row).kind;
      const bool is_changed = choice == kCompact && kind == CacheKind::kKv;
      const bool is_rounded = is_changed && form.kind == CacheKind::kInt8;
      const bool is_lost = choice == kSkip || (is_changed && !is_rounded);
      if (is_lost) composition->preemptions.push_back(slot);
      if (is_rounded) composition->reshapes.push_back({slot, form});
      if (choice == kKv && kind == CacheKind::kHidden) composition->reshapes.push_back({slot, {}});
      const bool is_prompt = is_lost || snapshot.requests.num_uncomputed_tokens(slot) > 1;
      if (choice == kSkip || !is_prompt) continue;
      prompts_.push_back(prompt(snapshot, slot, is_lost ? form : CacheForm{}, residents_.density(i)));
    }
  }

  // ---- 2 ----

  double seconds_before_deadline(const Snapshot& snapshot) const { return slack_ / snapshot.estimates.margin.value(); }

  double seconds_beside_readers(const Snapshot& snapshot) {
    const Patience patience = this->patience(snapshot);
    const double seconds = hocket::seconds_beside_readers(config_, snapshot, decoding_, decode_seconds_, patience);
    if (seconds == std::numeric_limits<double>::infinity() || config_.max_decode_step_ms > 0) {
      long_steps_.nobody_reads();
      return seconds;
    }
    const double promised = snapshot.estimates.itl_seconds(config_.max_num_seqs);
    const double together = patience.is_crowd(std::ssize(decoding_)) ? decode_seconds_ + patience.work_seconds()
                                                                     : std::numeric_limits<double>::infinity();
    return long_steps_.seconds(seconds, promised / snapshot.estimates.margin.of_readers(), promised, together);
  }

  // With those whose prompts the step may compute. Who is served more than others anyway has to wait.
  Patience patience(const Snapshot& snapshot) const {
    const RequestTable& requests = snapshot.requests;
    Patience patience(snapshot.estimates, prompt_share_.value());
    int64_t num_rows = num_rows_for_newcomers();
    for (const Prompt& p : prompts_) {  // under way, then as they came
      if (p.tenant_lead > 0 || (waits(snapshot, p) && num_rows-- <= 0)) continue;
      const double work = patience.is_full() ? 0.0 : prompt_seconds(snapshot, p.slot);
      patience.add(work, requests.pending_seconds(p.slot, snapshot.now), alone_seconds(snapshot, p.slot));
    }
    return patience;
  }

  // ---- 3 ----

  void prefill_online(const Snapshot& snapshot, const Composition& composition) {
    // A heap, the next on top: a step reaches few of many.
    newcomers_.begin(snapshot.tenants, decoding_);
    for (const Prompt& p : prompts_) {
      if (waits(snapshot, p) && !p.is_starving) newcomers_.add(p.slot);
    }
    order_.resize(prompts_.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto is_later = [&](int32_t a, int32_t b) { return prompts_[b].precedes(prompts_[a]); };
    std::ranges::make_heap(order_, is_later);
    bool is_first = true;
    int64_t num_rows = num_rows_for_newcomers() + std::ssize(composition.preemptions);
    for (; !order_.empty(); order_.pop_back()) {
      std::ranges::pop_heap(order_, is_later);
      const Prompt& p = prompts_[order_.back()];
      if (builder_.tokens_left() == 0) return;
      if (waits(snapshot, p) && (num_rows == 0 || (!p.is_starving && !may_come_in(p.slot)))) continue;
      num_rows -= waits(snapshot, p);
      const bool is_whole = !config_.enable_chunked_prefill;
      const int32_t num_tokens = builder_.prefill(p.slot, p.form, is_whole);
      if (num_tokens == 0) {
        if (!is_first || long_steps_.holds_back()) return;
        if (!builder_.prefill_at_most(p.slot, kLeastChunk, is_whole, p.form)) return;
      }
      is_first = false;
    }
  }

  static bool waits(const Snapshot& snapshot, const Prompt& p) { return snapshot.requests.row[p.slot] == kNone; }

  bool may_come_in(Slot slot) {
    if (!newcomers_.take(slot)) return false;
    return num_admissible_ == Residency::kEverybody || num_admissible_-- > 0;
  }

  // ---- 4 ----

  void fill_offline(const Snapshot& snapshot, Composition* composition) {
    if (builder_.tokens_left() == 0) return;
    const IdleRoom room = room_beside_online(snapshot, composition->grants, builder_.seconds());
    const bool is_beside_online = !waiting_online(snapshot).empty() || any_online(snapshot.requests, snapshot.running);
    const double longest = offline_step_seconds(config_, snapshot.estimates, is_beside_online);
    builder_.limit_seconds(std::min({builder_.max_seconds(), longest, room.seconds}));
    builder_.limit_tokens(room.tokens);
    offline_.begin(snapshot, snapshot.reserve_units);
    const bool has_favoured = offline_.advance_favoured(snapshot, running_favoured_, &builder_);
    if (has_favoured || !config_.enable_plan_search) {
      offline_.fill_in_order(snapshot, running_offline_, &builder_);
      return;
    }
    offline_.search(snapshot, running_offline_, &builder_, composition);
  }

  const SchedulerConfig config_;
  Residents residents_;
  StepBuilder builder_;
  OfflineStage offline_;
  ResidencyStage ratio_;
  Newcomers newcomers_;
  PromptShare prompt_share_;
  LongSteps long_steps_;

  // Of the current step
  std::vector<Slot> decoding_;    // online
  std::vector<Slot> under_way_;   // online, prompts that have begun
  double decode_seconds_ = 0.0;   // that the step takes for decoding_
  double slack_ = 0.0;            // seconds until the first of them is due
  std::vector<Prompt> prompts_;   // online, under way or to be admitted
  std::vector<int32_t> order_;    // of prompts_, as a heap
  std::vector<Slot> waiting_;     // online, and who starves of the offline ones
  std::vector<Prompt> arrivals_;  // waiting_
  std::vector<Slot> offered_;     // of them
  std::vector<Slot> running_offline_;
  std::vector<Slot> running_favoured_;
  std::vector<size_t> starving_;  // candidates
  int64_t online_units_ = 0;      // held by running requests
  int64_t offline_units_ = 0;
  int64_t num_admissible_ = Residency::kEverybody;  // online requests that are not starving
  float sum_of_rates_ = 0.0F;
};

}  // namespace

std::unique_ptr<Policy> make_hocket_policy(const SchedulerConfig& config) {
  return std::make_unique<HocketPolicy>(config);
}

}  // namespace hocket
