// Echo (sections 3 and 4), in the steps of its evaluation:
//
//   bs     online requests first, first come first served; offline ones fill the step in order of arrival
//   bs_e   and no step takes longer than the tightest online deadline allows
//   bs_es  and offline work is chosen by plan search over the offline queue
//   echo   and cached blocks that pending offline requests will use are kept longest, and memory for online bursts is
//          left free
//
// Favoured offline requests (class_order.h) are not the paper's; they go before the others here as under hocket.
//
// Memory goes to online requests first; an offline request never displaces one. An offline request that has waited
// max_offline_wait_ms is served as if it were the first of the online ones, one such request at a time.

#include <algorithm>

#include "policies/policy.h"
#include "stages/class_order.h"
#include "stages/offline_stage.h"
#include "stages/step_builder.h"

namespace hocket {
namespace {

constexpr int32_t kLeastChunk = 64;  // tokens: online prompts advance by that much however tight the deadline

class EchoPolicy final : public Policy {
 public:
  EchoPolicy(const SchedulerConfig& config, bool has_estimator, bool has_search, bool has_reserve)
      : config_(config),
        has_estimator_(has_estimator),
        has_search_(has_search),
        has_reserve_(has_reserve),
        builder_(config),
        offline_(config, PlanObjective::kRate) {}

  bool needs_offline_queue() const override { return has_search_; }
  bool has_task_aware_eviction() const override { return has_reserve_ && config_.enable_task_aware_eviction; }

  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return precedes_by_class(requests, a, b);
  }
  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    victims_by_class(config_, snapshot, needy, victims);
  }
  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override {
    const int32_t rank_a = rank_of(requests, a);
    const int32_t rank_b = rank_of(requests, b);
    return rank_a != rank_b ? rank_a > rank_b : precedes(requests, b, a);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    split(snapshot);
    builder_.begin(snapshot, composition);
    for (const Slot slot : running_online_) {
      if (snapshot.requests.num_uncomputed_tokens(slot) == 1) builder_.decode(slot);
    }
    if (has_estimator_) builder_.limit_seconds(seconds_before_deadline(snapshot, running_online_));
    prefill_online(snapshot);
    if (builder_.tokens_left() == 0) return;
    offline_.begin(snapshot, has_reserve_ ? snapshot.reserve_units : 0);
    const bool has_favoured = offline_.advance_favoured(snapshot, running_favoured_, &builder_);
    if (has_search_ && !has_favoured) {
      offline_.search(snapshot, running_offline_, &builder_, composition);
    } else {
      offline_.fill_in_order(snapshot, running_offline_, &builder_);
    }
  }

 private:
  void split(const Snapshot& snapshot) {
    running_online_.clear();
    running_offline_.clear();
    running_favoured_.clear();
    for (const Slot slot : snapshot.running) {
      const bool is_online = rank_of(snapshot.requests, slot) == kOnlineRank;
      auto& offline = is_favoured(snapshot.requests, slot) ? running_favoured_ : running_offline_;
      (is_online ? running_online_ : offline).push_back(slot);
    }
  }

  void prefill_online(const Snapshot& snapshot) {
    bool is_first = true;
    const auto prefill = [&](Slot slot) {
      if (builder_.prefill(slot, {}, !config_.enable_chunked_prefill) > 0) return is_first = false, true;
      if (!is_first || builder_.tokens_left() == 0) return false;
      is_first = false;
      return builder_.prefill_at_most(slot, kLeastChunk, !config_.enable_chunked_prefill);
    };
    for (const Slot slot : running_online_) {
      if (snapshot.requests.num_uncomputed_tokens(slot) > 1 && !prefill(slot)) return;
    }
    const Slot starving = starving_offline(config_, snapshot);
    if (starving != kNone && !prefill(starving)) return;
    for (const Slot slot : waiting_online(snapshot)) {
      if (!prefill(slot)) return;
    }
  }

  const SchedulerConfig config_;
  const bool has_estimator_;
  const bool has_search_;
  const bool has_reserve_;
  StepBuilder builder_;
  OfflineStage offline_;
  std::vector<Slot> running_online_;    // scratch
  std::vector<Slot> running_offline_;   // scratch
  std::vector<Slot> running_favoured_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_echo_policy(const SchedulerConfig& config, std::string_view name) {
  return std::make_unique<EchoPolicy>(config, name != "bs", name == "bs_es" || name == "echo", name == "echo");
}

}  // namespace hocket
