// First come, first served: decodes, then the prompts under way, then waiting requests in order of arrival.
//
// Memory goes to those who came first: under pressure the last arrival gives way, and a waiting request never makes
// anybody give way. With chunks this is Sarathi-Serve's order. Without mixed steps prompts go first, as long as one can
// be admitted: vLLM's classical order.
//
// Token composition "fastgen" is DeepSpeed-FastGen's: of the prompts that could be computed now, short ones are
// composed first and the last one is cut to fill the step exactly. Sought among the first kLookAhead that wait.

#include <algorithm>
#include <tuple>

#include "policies/policy.h"

namespace hocket {
namespace {

class FcfsPolicy final : public Policy {
 public:
  explicit FcfsPolicy(const SchedulerConfig& config)
      : has_mixed_steps_(config.enable_mixed_steps),
        composes_short_first_(config.token_composition == "fastgen"),
        form_{config.cache_kind == "kv" ? CacheKind::kKv : config.compact_kind(), 0} {}

  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return std::tie(requests.arrival_time[a], requests.sequence[a]) <
           std::tie(requests.arrival_time[b], requests.sequence[b]);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    const RequestTable& requests = snapshot.requests;
    auto& grants = composition->grants;
    others_.clear();
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = requests.num_uncomputed_tokens(slot);
      const bool is_first = (num_left == 1) == has_mixed_steps_;
      (is_first ? grants : others_).push_back({slot, num_left, false});
    }
    const size_t first_prompt = has_mixed_steps_ ? grants.size() : 0;
    if (has_mixed_steps_) grants.insert(grants.end(), others_.begin(), others_.end());

    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), snapshot.memory.num_free_rows());
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      grants.push_back({slot, requests.num_tokens[slot], true, form_});
    }
    if (composes_short_first_) {
      const auto begin = grants.begin() + static_cast<std::ptrdiff_t>(first_prompt);
      const auto end = grants.end() - begin > kLookAhead ? begin + kLookAhead : grants.end();
      std::stable_sort(begin, end, [](const Grant& a, const Grant& b) { return a.max_tokens < b.max_tokens; });
    }
    if (!has_mixed_steps_) grants.insert(grants.end(), others_.begin(), others_.end());
  }

  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    if (snapshot.requests.state[needy] == RequestState::kWaiting) return;
    victims->insert(victims->end(), snapshot.running.begin(), snapshot.running.end());
  }

  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

 private:
  static constexpr std::ptrdiff_t kLookAhead = 16;

  const bool has_mixed_steps_;
  const bool composes_short_first_;
  const CacheForm form_;
  std::vector<Grant> others_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_fcfs_policy(const SchedulerConfig& config) { return std::make_unique<FcfsPolicy>(config); }

}  // namespace hocket
