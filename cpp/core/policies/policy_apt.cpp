// Apt-Serve (section 5 and its appendix): the knapsack decides every step who holds memory, as K and V or as hidden
// states. A candidate's value is its pending time, and a constant near zero once it has missed its target. What hidden
// states cost, they cost everybody: all that run and wait, not the candidates of one knapsack alone.
//
// Without mixed steps, the paper's own setting: the queue with the larger sum of pending times decides whether the step
// prefills, in the memory that running requests leave, or decodes, in all of it. With mixed steps (Apt-Serve-S) a step
// does both: running requests first compete for all of the memory, then waiting ones for what is left. (All of them as
// candidates for all of the memory, with what it costs to compute them again as the runners' bonus, spends most steps
// on computing again: docs/LOG.md.)
//
// A change from K and V to hidden states is a preemption and an admission; the other way the next step projects what is
// there. K and V become int8 in place, for good. Under pressure within a step the last arrival gives way.

#include <algorithm>
#include <tuple>

#include "policies/policy.h"
#include "stages/residents.h"

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);
constexpr auto kCompact = static_cast<uint8_t>(KnapsackChoice::kCompact);
constexpr auto kKv = static_cast<uint8_t>(KnapsackChoice::kKv);
constexpr double kLateSeconds = 1e-3;  // what a request weighs that has missed its target

class AptPolicy final : public Policy {
 public:
  explicit AptPolicy(const SchedulerConfig& config) : config_(config), residents_(config) {
    chosen_.reserve(2 * static_cast<size_t>(config.max_num_seqs));
  }

  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return std::tie(requests.arrival_time[a], requests.sequence[a]) <
           std::tie(requests.arrival_time[b], requests.sequence[b]);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    composition->is_strict = false;
    const bool prefills_first = !config_.enable_mixed_steps && is_prefill_step(snapshot);
    chosen_.clear();
    int64_t room = snapshot.memory.num_available_units();
    if (!prefills_first) room = decide_running(snapshot, room, composition);
    if (prefills_first || config_.enable_mixed_steps) decide_waiting(snapshot, room, composition);
    std::ranges::sort(chosen_, [&](const Chosen& a, const Chosen& b) {
      const auto rank_a = std::tie(b.is_starving, b.rank);
      const auto rank_b = std::tie(a.is_starving, a.rank);
      return rank_a != rank_b ? rank_a < rank_b : precedes(snapshot.requests, a.slot, b.slot);
    });
    if (prefills_first) {
      grant_waiting(snapshot, composition);
      grant_running(snapshot, true, composition);
      grant_running(snapshot, false, composition);
    } else {
      grant_running(snapshot, false, composition);
      grant_running(snapshot, true, composition);
      grant_waiting(snapshot, composition);
    }
  }

  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    if (snapshot.requests.state[needy] == RequestState::kWaiting) return;
    victims->insert(victims->end(), snapshot.running.begin(), snapshot.running.end());
  }

  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

 private:
  // What a request weighs, in seconds: its pending time; past its target a constant near zero, so that it is served
  // before nobody and after everybody else, or with past_target_decay that part of its pending time (section 6.6).
  double weight(const Snapshot& snapshot, Slot slot) const {
    const double pending = snapshot.requests.pending_seconds(slot, snapshot.now);
    if (!is_past_target(snapshot.requests, slot, snapshot.now)) return pending;
    return config_.past_target_decay > 0 ? config_.past_target_decay * pending : kLateSeconds;
  }

  bool is_prefill_step(const Snapshot& snapshot) const {
    return pending(snapshot, snapshot.waiting) > pending(snapshot, snapshot.running);
  }

  // What is past its target counts as little here as in the knapsack.
  double pending(const Snapshot& snapshot, std::span<const Slot> slots) const {
    double sum = 0.0;
    for (const Slot slot : slots) sum += weight(snapshot, slot);
    return sum;
  }

  void add(const Snapshot& snapshot, Slot slot, bool is_running) {
    const RequestTable& requests = snapshot.requests;
    // The knapsack takes those that starve by their value: the oldest first.
    const bool is_starving = hocket::is_starving(config_, requests, slot, snapshot.now);
    const double value = is_starving ? snapshot.now - requests.arrival_time[slot] : weight(snapshot, slot);
    const auto keep = is_running ? static_cast<float>(rebuild_seconds(config_, snapshot, slot)) : 0.0F;
    residents_.add(snapshot, slot, static_cast<float>(value), keep,
                   is_starving ? KnapsackCandidates::kMustSchedule : uint8_t{0});
  }

  // |W| + |R|: whom every second of a step delays.
  static int32_t num_delayed(const Snapshot& snapshot) {
    return static_cast<int32_t>(snapshot.running.size() + snapshot.waiting.size());
  }

  // Returns the units that are left.
  int64_t decide_running(const Snapshot& snapshot, int64_t capacity, Composition* composition) {
    residents_.begin(snapshot);
    for (const Slot slot : snapshot.running) {
      add(snapshot, slot, true);
      capacity += snapshot.memory.num_held_units(snapshot.requests.row[slot]);
    }
    if (const Slot starving = starving_waiting(snapshot); starving != kNone) {
      // Who is to come in must find the headroom that an admission leaves (device_memory.h).
      add(snapshot, starving, false);
      const int64_t headroom = (std::ssize(snapshot.running) + 1) * config_.units_per_block();
      capacity = std::max<int64_t>(capacity - headroom, residents_.kv_units(residents_.size() - 1));
    }
    const KnapsackResult result = residents_.solve(capacity, num_delayed(snapshot));
    for (size_t i = 0; i < result.choices.size(); ++i) change_running(snapshot, i, result.choices[i], composition);
    return capacity - result.units;
  }

  // The oldest request that starves, if it waits; kNone if it runs already, or there is none.
  Slot starving_waiting(const Snapshot& snapshot) const {
    const auto starves = [&](Slot slot) { return is_starving(config_, snapshot.requests, slot, snapshot.now); };
    const auto waiting = std::ranges::find_if(snapshot.waiting, starves);
    if (waiting == snapshot.waiting.end()) return kNone;
    const auto is_older = [&](Slot slot) { return starves(slot) && precedes(snapshot.requests, slot, *waiting); };
    return std::ranges::any_of(snapshot.running, is_older) ? kNone : *waiting;
  }

  void decide_waiting(const Snapshot& snapshot, int64_t capacity, Composition* composition) {
    if (!composition->preemptions.empty()) return;  // memory is short as it is
    residents_.begin(snapshot);
    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), config_.max_num_seqs);
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      if (chosen_.empty() || chosen_.front().slot != slot) add(snapshot, slot, false);
    }
    const auto choices = residents_.solve(capacity, num_delayed(snapshot)).choices;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] != kSkip) admit(i, choices[i]);
    }
  }

  void change_running(const Snapshot& snapshot, size_t i, uint8_t choice, Composition* composition) {
    const Slot slot = residents_.slot(i);
    if (snapshot.requests.row[slot] == kNone) {
      if (choice != kSkip) admit(i, choice);
      return;
    }
    const CacheKind kind = snapshot.memory.form(snapshot.requests.row[slot]).kind;
    if (choice == kSkip) {
      composition->preemptions.push_back(slot);
    } else if (choice == kCompact && kind == CacheKind::kKv && config_.compact_kind() == CacheKind::kInt8) {
      composition->reshapes.push_back({slot, {CacheKind::kInt8, 0}});
    } else if (choice == kCompact && kind == CacheKind::kKv) {
      composition->preemptions.push_back(slot);
      admit(i, choice);
    } else if (choice == kKv && kind == CacheKind::kHidden) {
      composition->reshapes.push_back({slot, {}});
    }
  }

  struct Chosen {
    Slot slot;
    float rank;
    bool is_starving;
    CacheForm form;
  };

  void admit(size_t i, uint8_t choice) {
    const CacheForm form{choice == kCompact ? config_.compact_kind() : CacheKind::kKv, 0};
    const bool is_starving = residents_.flags(i) & KnapsackCandidates::kMustSchedule;
    // Of those that starve the oldest first, however large.
    const float rank = is_starving ? residents_.value(i) : residents_.density(i);
    chosen_.push_back({residents_.slot(i), rank, is_starving, form});
  }

  void grant_waiting(const Snapshot& snapshot, Composition* composition) const {
    for (const Chosen& c : chosen_) {
      composition->grants.push_back({c.slot, snapshot.requests.num_tokens[c.slot], true, c.form});
    }
  }

  static void grant_running(const Snapshot& snapshot, bool prefills, Composition* composition) {
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = snapshot.requests.num_uncomputed_tokens(slot);
      if ((num_left > 1) == prefills) composition->grants.push_back({slot, num_left, false});
    }
  }

  const SchedulerConfig config_;
  Residents residents_;
  std::vector<Chosen> chosen_;  // to be admitted, the densest first
};

}  // namespace

std::unique_ptr<Policy> make_apt_policy(const SchedulerConfig& config) { return std::make_unique<AptPolicy>(config); }

}  // namespace hocket
