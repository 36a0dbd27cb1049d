// First come, first served: decodes, then the prompts under way, then waiting requests in order of arrival.
//
// Memory goes to those who came first: under pressure the last arrival gives way, and a waiting request never makes
// anybody give way. With whole prompts this is vLLM's classical order, with chunks Sarathi-Serve's.

#include <algorithm>
#include <tuple>

#include "policy.h"

namespace hocket {
namespace {

class FcfsPolicy final : public Policy {
 public:
  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return std::tie(requests.arrival_time[a], requests.sequence[a]) <
           std::tie(requests.arrival_time[b], requests.sequence[b]);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    const RequestTable& requests = snapshot.requests;
    auto& grants = composition->grants;
    prefills_.clear();
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = requests.num_uncomputed_tokens(slot);
      (num_left == 1 ? grants : prefills_).push_back({slot, num_left, false});
    }
    grants.insert(grants.end(), prefills_.begin(), prefills_.end());

    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), snapshot.num_free_rows);
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      grants.push_back({slot, requests.num_tokens[slot], true});
    }
  }

  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    if (snapshot.requests.state[needy] == RequestState::kWaiting) return;
    victims->insert(victims->end(), snapshot.running.begin(), snapshot.running.end());
  }

  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

 private:
  std::vector<Grant> prefills_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_fcfs_policy() { return std::make_unique<FcfsPolicy>(); }

}  // namespace hocket
