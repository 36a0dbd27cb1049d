// eLLM (section 4.2): first come, first served, and the b/r solver decides how many requests are in memory and which
// share of their tokens is recomputed in every step instead of being cached.
//
// While everybody who waits fits as K and V there is nothing to solve. Otherwise the first b requests in order of
// arrival are resident, each without the first floor(r s_i / block_size) blocks of its cache.

#include <algorithm>
#include <limits>
#include <tuple>

#include "policy.h"
#include "residents.h"

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
    const double ratio = config_.enable_partial_caching ? uncached_ratio(snapshot) : 0.0;
    auto& grants = composition->grants;
    prefills_.clear();
    for (const Slot slot : snapshot.running) {
      const int32_t num_left = requests.num_uncomputed_tokens(slot);
      (num_left == 1 ? grants : prefills_).push_back({slot, num_left, false});
      if (config_.enable_partial_caching && num_left == 1) reshape(snapshot, slot, ratio, composition);
    }
    grants.insert(grants.end(), prefills_.begin(), prefills_.end());
    const auto num_offered = std::min<size_t>(snapshot.waiting.size(), snapshot.memory.num_free_rows());
    for (const Slot slot : snapshot.waiting.first(num_offered)) {
      grants.push_back({slot, requests.num_tokens[slot], true, form_of(requests.num_tokens[slot], ratio)});
    }
  }

 private:
  CacheForm form_of(int32_t num_tokens, double ratio) const {
    return {CacheKind::kKv, static_cast<int32_t>(ratio * num_tokens) / config_.block_size};
  }

  void reshape(const Snapshot& snapshot, Slot slot, double ratio, Composition* composition) const {
    const CacheForm form = form_of(snapshot.requests.num_tokens[slot], ratio);
    if (form != snapshot.memory.form(snapshot.requests.row[slot])) composition->reshapes.push_back({slot, form});
  }

  double uncached_ratio(const Snapshot& snapshot) {
    const RequestTable& requests = snapshot.requests;
    slots_.assign(snapshot.running.begin(), snapshot.running.end());
    std::ranges::sort(slots_, [&](Slot a, Slot b) { return precedes(requests, a, b); });
    const auto num_rows = static_cast<size_t>(config_.max_num_seqs) - snapshot.running.size();
    const auto num_offered = std::min(snapshot.waiting.size(), num_rows);
    slots_.insert(slots_.end(), snapshot.waiting.begin(), snapshot.waiting.begin() + num_offered);
    lengths_.clear();
    int64_t num_blocks = 0;
    double max_seconds = std::numeric_limits<double>::infinity();
    for (const Slot slot : slots_) {
      lengths_.push_back(requests.num_tokens[slot] + 1);
      num_blocks += requests.num_tokens[slot] / config_.block_size + 2;  // and the next one
      max_seconds = std::min(max_seconds, requests.itl_target[slot]);
    }
    const int64_t capacity = snapshot.memory.num_kv_blocks();
    if (num_blocks <= capacity || snapshot.estimates.costs.flops_per_second <= 0) return 0.0;
    const double memory_bytes = static_cast<double>(capacity - std::ssize(slots_)) * config_.block_size *
                                snapshot.estimates.costs.kv_bytes_per_token;
    return solve_partial_cache(snapshot.estimates.costs, {lengths_, memory_bytes, max_seconds}).uncached_ratio;
  }

  const SchedulerConfig config_;
  std::vector<Grant> prefills_;   // scratch
  std::vector<Slot> slots_;       // scratch
  std::vector<int32_t> lengths_;  // scratch
};

}  // namespace

std::unique_ptr<Policy> make_ellm_policy(const SchedulerConfig& config) { return std::make_unique<EllmPolicy>(config); }

}  // namespace hocket
