// Priority: the smaller number first, equal ones in order of arrival.
//
// Decodes go first, whoever they are: one token each is cheap and holds their inter-token latency. The rest of the step
// goes to prompts under way and waiting requests together, in order of importance. Under pressure the least important
// gives way; a waiting request may displace running ones that are strictly less important. No two requests can displace
// each other, and DeviceMemory's headroom keeps the displaced from returning into memory that is about to be needed.

#include <algorithm>
#include <iterator>
#include <tuple>

#include "policies/policy.h"

namespace hocket {
namespace {

class PriorityPolicy final : public Policy {
 public:
  bool precedes(const RequestTable& requests, Slot a, Slot b) const override {
    return std::tie(requests.priority[a], requests.arrival_time[a], requests.sequence[a]) <
           std::tie(requests.priority[b], requests.arrival_time[b], requests.sequence[b]);
  }

  void compose(const Snapshot& snapshot, Composition* composition) override {
    const RequestTable& requests = snapshot.requests;
    auto& grants = composition->grants;
    prefills_.clear();
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = requests.num_uncomputed_tokens(slot);
      (num_left == 1 ? grants : prefills_).push_back({slot, num_left, false});
    }
    const auto before = [&](const Grant& a, const Grant& b) { return precedes(requests, a.slot, b.slot); };
    std::sort(prefills_.begin(), prefills_.end(), before);

    // Every admission takes a token and a row, and a row can be displaced.
    admissions_.clear();
    const auto num_rows = static_cast<size_t>(snapshot.memory.num_free_rows()) + snapshot.running.size();
    const auto num_tokens = static_cast<size_t>(snapshot.max_num_tokens);
    for (const Slot slot : snapshot.waiting.first(std::min({snapshot.waiting.size(), num_rows, num_tokens}))) {
      admissions_.push_back({slot, requests.num_tokens[slot], true});
    }
    std::merge(prefills_.begin(), prefills_.end(), admissions_.begin(), admissions_.end(), std::back_inserter(grants),
               before);
  }

  void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const override {
    const RequestTable& requests = snapshot.requests;
    const bool is_waiting = requests.state[needy] == RequestState::kWaiting;
    for (const Slot slot : snapshot.running) {
      if (!is_waiting || requests.priority[slot] > requests.priority[needy]) victims->push_back(slot);
    }
  }

  bool yields_before(const RequestTable& requests, Slot a, Slot b) const override { return precedes(requests, b, a); }

 private:
  std::vector<Grant> prefills_;    // scratch
  std::vector<Grant> admissions_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_priority_policy() { return std::make_unique<PriorityPolicy>(); }

}  // namespace hocket
