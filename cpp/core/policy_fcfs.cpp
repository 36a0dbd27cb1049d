// First come, first served: decodes, then the prompts under way, then waiting requests in order of arrival.
//
// Memory goes to those who came first: under pressure the last arrival gives way, and a waiting request never makes
// anybody give way. With chunks this is Sarathi-Serve's order. Without mixed steps prompts go first, as long as one can
// be admitted: vLLM's classical order.

#include <algorithm>
#include <tuple>

#include "policy.h"

namespace hocket {
namespace {

class FcfsPolicy final : public Policy {
 public:
  explicit FcfsPolicy(bool has_mixed_steps) : has_mixed_steps_(has_mixed_steps) {}

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
    if (has_mixed_steps_) grants.insert(grants.end(), others_.begin(), others_.end());

    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), snapshot.memory.num_free_rows());
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      grants.push_back({slot, requests.num_tokens[slot], true});
    }
    if (!has_mixed_steps_) grants.insert(grants.end(), others_.begin(), others_.end());
  }

  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    if (snapshot.requests.state[needy] == RequestState::kWaiting) return;
    victims->insert(victims->end(), snapshot.running.begin(), snapshot.running.end());
  }

  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

 private:
  const bool has_mixed_steps_;
  std::vector<Grant> others_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_fcfs_policy(const SchedulerConfig& config) {
  return std::make_unique<FcfsPolicy>(config.enable_mixed_steps);
}

}  // namespace hocket
