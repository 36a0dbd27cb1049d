#include "routing/route.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace hocket {

namespace {

using Node = NodeTable::Node;

constexpr size_t kMaxCandidates = 64;
constexpr int32_t kMaxLeast = 16;
constexpr size_t kMaxSources = 8;
constexpr double kPatience = 4;      // an advised request is expected for so many times the lead
constexpr double kMaxDoublings = 3;  // of what a miss weighs, by priority
constexpr std::array<double, kNumRequestClasses> kClassWeights = {1.0, 0.0, 0.0};  // nobody waits for the others

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Of n tokens behind a context of c: as many steps as the budget needs, each beside the decodes that run there.
double prefill_seconds(const Node& node, double context, double num_tokens) {
  if (num_tokens <= 0) return 0;
  const double decodes = node.num_decodes();
  const double room = std::max(1.0, node.traits.max_batched_tokens - decodes);
  const double steps = std::ceil(num_tokens / room);
  BatchFeatures step;
  step.num_chunks = 1;
  step.chunk_tokens = num_tokens / steps;
  step.chunk_pairs = num_tokens * (num_tokens + 2 * context) / steps;
  step.chunk_squares = step.chunk_tokens * step.chunk_tokens;
  step.chunk_context = context + num_tokens * (steps - 1) / (2 * steps);
  step.num_decodes = decodes;
  step.decode_context = node.context();
  step.max_context = decodes > 0 ? step.decode_context / decodes : 0;
  return steps * node.traits.latency.predict(step);
}

// One decision.
class Decision {
 public:
  Decision(const RouteRequest& request, const NodeTable& table, const RouteOptions& options, double now)
      : request_(request),
        table_(table),
        options_(options),
        now_(now),
        session_(table.session(request.session)),
        seed_(mixed(request.id + 0x9E3779B97F4A7C15ULL * (options.salt + 1))) {
    table.prefixes().lookup(request.keys, entries_);
    find_sources();
  }

  Choice choose();
  Choice cost(NodeId id) const;

 private:
  struct Held {
    double tokens = 0;
    bool is_on_device = true;
  };
  struct Source {
    NodeId node;
    double tokens;
  };

  bool is_usable(NodeId id) const {
    const Node& node = table_.node(id);
    return node.is_open() && node.traits.decodes && id != request_.excluded;
  }

  Held held(NodeId id) const;
  void find_sources();
  void add_source(NodeId id);
  double restore_seconds(const Node& node, const Held& held) const;
  double pull_seconds(NodeId from, NodeId to, double tokens) const;
  void consider_pulls(NodeId id, double queue, const Held& held, Choice& best) const;
  void take_if_faster(Choice& best, double ttft, double prefill, double cached) const;
  void add_other_terms(const Node& node, Choice& choice) const;

  void add_candidate(NodeId id);
  void add_holders();
  void gather();
  void gather_all();
  Choice cheapest() const;
  Choice among_equals(std::span<const Choice> choices, const Choice& best) const;
  Choice least_loaded() const;
  Choice in_turn() const;
  Choice split(const Choice& whole) const;
  Choice by_cost();
  NodeId home() const;

  const RouteRequest& request_;
  const NodeTable& table_;
  const RouteOptions& options_;
  const double now_;
  const RoutedSession* const session_;
  const uint64_t seed_;
  std::vector<const PrefixMemory::Entry*> entries_;
  std::array<Source, kMaxSources> sources_;
  size_t num_sources_ = 0;
  std::array<NodeId, kMaxCandidates> candidates_;
  size_t num_candidates_ = 0;
};

// ---- what a node has ----

Decision::Held Decision::held(NodeId id) const {
  const Node& node = table_.node(id);
  const double most = std::max(0.0, request_.num_tokens - 1);  // the last token is always computed
  Held found;
  const auto take = [&](double tokens, double clock) {
    const double since = node.clock - clock;
    if (since > node.traits.kept_tokens || std::min(tokens, most) <= found.tokens) return;
    found = {std::min(tokens, most), since <= node.traits.device_tokens};
  };
  if (session_ != nullptr) {
    if (const CacheHolder* holder = session_->find(id)) take(holder->tokens, holder->clock);
  }
  for (size_t i = entries_.size(); i-- > 0;) {
    const double tokens = static_cast<double>(i + 1) * request_.tokens_per_key;
    if (std::min(tokens, most) <= found.tokens) break;
    if (const PrefixMemory::Holder* holder = entries_[i]->find(id)) {
      take(tokens, holder->clock);
    } else if (entries_[i]->is_held_by(id)) {
      take(tokens, node.clock);
    }
  }
  return found;
}

void Decision::add_source(NodeId id) {
  const bool is_there = std::any_of(sources_.begin(), sources_.begin() + num_sources_,
                                    [&](const Source& source) { return source.node == id; });
  if (id == kNoNode || is_there || num_sources_ == kMaxSources) return;
  if (table_.node(id).state == NodeState::kGone || table_.node(id).state == NodeState::kSuspect) return;
  if (const Held found = held(id); found.tokens > 0) sources_[num_sources_++] = {id, found.tokens};
}

void Decision::find_sources() {
  if (session_ != nullptr) {
    for (const CacheHolder& holder : session_->holders) add_source(holder.node);
  }
  if (entries_.empty()) return;
  for (const PrefixMemory::Holder& holder : entries_.back()->named) add_source(holder.node);
}

// ---- what it costs ----

double Decision::restore_seconds(const Node& node, const Held& held) const {
  if (held.tokens <= 0 || held.is_on_device) return 0;
  const double rate = node.traits.restore_bytes_per_second;
  if (rate <= 0) return std::numeric_limits<double>::infinity();  // it has nowhere to come from
  return std::max(0.0, held.tokens * node.traits.bytes_per_token / rate - request_.lead_seconds);
}

double Decision::pull_seconds(NodeId from, NodeId to, double tokens) const {
  const Node &source = table_.node(from), &target = table_.node(to);
  const double rate = table_.pull_rate(source.traits.machine, target.traits.machine);
  return std::max(0.0, source.sending_until - now_) + tokens * target.traits.bytes_per_token / rate;
}

void Decision::take_if_faster(Choice& best, double ttft, double prefill, double cached) const {
  if (ttft >= best.ttft_seconds) return;
  best.ttft_seconds = ttft;
  best.prefill_seconds = prefill;
  best.cached_tokens = cached;
  best.source = kNoNode;
  best.pull_seconds = 0;
}

void Decision::consider_pulls(NodeId id, double queue, const Held& held, Choice& best) const {
  const Node& node = table_.node(id);
  if (!node.traits.pulls || node.traits.bytes_per_token <= 0) return;
  for (size_t i = 0; i < num_sources_; ++i) {
    const Source& source = sources_[i];
    if (source.node == id || source.tokens <= held.tokens) continue;
    const double pull = pull_seconds(source.node, id, source.tokens - held.tokens);
    const double prefill = prefill_seconds(node, source.tokens, request_.num_tokens - source.tokens);
    const double ttft = std::max(queue, pull - request_.lead_seconds) + prefill;
    if (ttft >= best.ttft_seconds) continue;
    take_if_faster(best, ttft, prefill, source.tokens);
    best.source = source.node;
    best.pull_seconds = pull;
  }
}

void Decision::add_other_terms(const Node& node, Choice& choice) const {
  const double doublings = std::clamp(-static_cast<double>(request_.priority), -kMaxDoublings, kMaxDoublings);
  const double weight = options_.miss_weight * kClassWeights[request_.request_class] * std::exp2(doublings);
  const double late = request_.age_seconds + choice.ttft_seconds - request_.ttft_target_seconds;
  choice.cost = choice.ttft_seconds + weight * std::max(0.0, late) +
                options_.decode_weight * request_.expected_outputs * node.step_seconds;
}

Choice Decision::cost(NodeId id) const {
  const Node& node = table_.node(id);
  const double queue = std::max(0.0, node.busy_until - now_ - request_.lead_seconds);
  Choice best = {.node = id, .ttft_seconds = std::numeric_limits<double>::infinity()};
  const double whole = prefill_seconds(node, 0, request_.num_tokens);
  take_if_faster(best, queue + whole, whole, 0);
  const Held found = held(id);
  if (found.tokens > 0) {
    const double rest = prefill_seconds(node, found.tokens, request_.num_tokens - found.tokens);
    take_if_faster(best, queue + restore_seconds(node, found) + rest, rest, found.tokens);
  }
  consider_pulls(id, queue, found, best);
  add_other_terms(node, best);
  return best;
}

// ---- who is looked at ----

void Decision::add_candidate(NodeId id) {
  if (id == kNoNode || num_candidates_ == kMaxCandidates || !is_usable(id)) return;
  const auto end = candidates_.begin() + num_candidates_;
  if (std::find(candidates_.begin(), end, id) == end) candidates_[num_candidates_++] = id;
}

// Of many holders of the longest beginning that is known, those with the least queues.
void Decision::add_holders() {
  if (entries_.empty() || !entries_.back()->everyone) return;
  std::array<std::pair<double, NodeId>, kMaxLeast> least;
  const auto most = static_cast<size_t>(std::clamp(options_.num_least, 1, kMaxLeast));
  size_t count = 0;
  const std::vector<uint64_t>& bits = *entries_.back()->everyone;
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint64_t left = bits[word]; left != 0; left &= left - 1) {
      const auto id = static_cast<NodeId>(64 * word + std::countr_zero(left));
      const double queue = table_.by_queue().at(id);
      if (count == most && queue >= least[count - 1].first) continue;
      size_t at = count < most ? count++ : count - 1;
      for (; at > 0 && queue < least[at - 1].first; --at) least[at] = least[at - 1];
      least[at] = {queue, id};
    }
  }
  for (size_t i = 0; i < count; ++i) add_candidate(least[i].second);
}

void Decision::gather() {
  for (size_t i = 0; i < num_sources_; ++i) add_candidate(sources_[i].node);
  add_holders();
  if (session_ != nullptr && session_->expected != kNoNode) add_candidate(session_->expected);
  std::array<int32_t, kMaxLeast> least;
  const auto num_least = static_cast<size_t>(std::clamp(options_.num_least, 1, kMaxLeast));
  for (const LeastTree* tree : {&table_.by_queue(), &table_.by_open()}) {
    const size_t count = tree->least({least.data(), num_least});
    for (size_t i = 0; i < count; ++i) add_candidate(least[i]);
  }
  for (int32_t i = 0; i < options_.num_drawn; ++i) {
    add_candidate(static_cast<NodeId>(mixed(seed_ + static_cast<uint64_t>(i) + 1) % table_.size()));
  }
  if (num_candidates_ == 0) gather_all();
}

// Where few nodes have the role, or the one that is excluded was the only one that was found.
void Decision::gather_all() {
  for (size_t id = 0; id < table_.size(); ++id) add_candidate(static_cast<NodeId>(id));
}

// ---- who is chosen ----

NodeId Decision::home() const {
  if (session_ == nullptr) return kNoNode;
  for (const CacheHolder& holder : session_->holders) {
    if (holder.node != kNoNode && is_usable(holder.node)) return holder.node;
  }
  return kNoNode;
}

// Power of two choices.
Choice Decision::among_equals(std::span<const Choice> choices, const Choice& best) const {
  const double limit = best.cost + std::max(options_.equal_seconds, options_.equal_ratio * best.cost);
  std::array<const Choice*, kMaxCandidates> equal;
  size_t count = 0;
  for (const Choice& choice : choices) {
    if (choice.cost <= limit) equal[count++] = &choice;
  }
  const Choice& first = *equal[mixed(seed_ ^ 1) % count];
  const Choice& second = *equal[mixed(seed_ ^ 2) % count];
  const Node &a = table_.node(first.node), &b = table_.node(second.node);
  if (a.num_open() != b.num_open()) return a.num_open() < b.num_open() ? first : second;
  return first.cost <= second.cost ? first : second;
}

Choice Decision::cheapest() const {
  std::array<Choice, kMaxCandidates> choices = {};
  const Choice* best = nullptr;
  for (size_t i = 0; i < num_candidates_; ++i) {
    choices[i] = cost(candidates_[i]);
    if (best == nullptr || choices[i].cost < best->cost) best = &choices[i];
  }
  Choice chosen = among_equals({choices.data(), num_candidates_}, *best);
  chosen.reason = RouteReason::kCheapest;
  return chosen;
}

Choice Decision::by_cost() {
  gather();
  if (num_candidates_ == 0) return {};
  Choice best = cheapest();
  if (options_.routing == Routing::kAdvised && session_ != nullptr && request_.lead_seconds <= 0 &&
      session_->expected != kNoNode && now_ <= session_->expected_until && is_usable(session_->expected)) {
    Choice advised = cost(session_->expected);
    advised.reason = RouteReason::kAdvised;
    if (advised.cost <= options_.advised_ratio * best.cost) return advised;
  }
  const NodeId stay = home();
  if (stay == kNoNode || stay == best.node) {
    if (stay != kNoNode) best.reason = RouteReason::kHome;
    return best;
  }
  Choice staying = cost(stay);
  const double saving = staying.cost - best.cost;
  if (saving > options_.stay_seconds && saving > options_.stay_ratio * staying.cost) return best;
  staying.reason = RouteReason::kHome;
  return staying;
}

Choice Decision::least_loaded() const {
  NodeId chosen = table_.by_open().draw(0, seed_);
  if (chosen != kNoNode && !is_usable(chosen)) {
    std::array<int32_t, kMaxLeast> least;
    const size_t count = table_.by_open().least(least);
    const auto end = least.begin() + count;
    const auto found = std::find_if(least.begin(), end, [&](int32_t id) { return is_usable(id); });
    chosen = found == end ? kNoNode : *found;
  }
  for (size_t id = 0; id < table_.size() && chosen == kNoNode; ++id) {
    if (is_usable(static_cast<NodeId>(id))) chosen = static_cast<NodeId>(id);
  }
  if (chosen == kNoNode) return {};
  Choice choice = cost(chosen);
  choice.reason = RouteReason::kLeastLoaded;
  return choice;
}

Choice Decision::in_turn() const {
  const auto turn = static_cast<size_t>(table_.num_decisions());
  for (size_t i = 0; i < table_.size(); ++i) {
    const auto id = static_cast<NodeId>((turn + i) % table_.size());
    if (!is_usable(id)) continue;
    Choice choice = cost(id);
    choice.reason = RouteReason::kTurn;
    return choice;
  }
  return {};
}

// The prompt on a node that prefills only, its blocks pulled from there. It is worth it where that is sooner.
Choice Decision::split(const Choice& whole) const {
  Choice best = whole;
  const Node& target = table_.node(whole.node);
  if (!target.traits.pulls || target.traits.bytes_per_token <= 0) return best;
  for (size_t i = 0; i < table_.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& source = table_.node(id);
    if (!source.is_open() || !source.traits.prefills || id == whole.node || id == request_.excluded) continue;
    const Held found = held(id);
    const double prefill =
        restore_seconds(source, found) + prefill_seconds(source, found.tokens, request_.num_tokens - found.tokens);
    const double queue = std::max(0.0, source.busy_until - now_);
    const double pull = pull_seconds(id, whole.node, request_.num_tokens);
    const double ttft = queue + prefill + pull + target.step_seconds;
    if (ttft >= best.ttft_seconds && target.traits.prefills) continue;
    if (best.reason == RouteReason::kSplit && ttft >= best.ttft_seconds) continue;
    best.source = id;
    best.reason = RouteReason::kSplit;
    best.ttft_seconds = ttft;
    best.prefill_seconds = prefill;
    best.pull_seconds = pull;
    best.cached_tokens = found.tokens;
    add_other_terms(target, best);
  }
  return best;
}

Choice Decision::choose() {
  if (table_.size() == 0) return {};
  switch (options_.routing) {
    case Routing::kLeastLoaded:
      return least_loaded();
    case Routing::kRoundRobin:
      return in_turn();
    case Routing::kSticky:
      if (const NodeId stay = home(); stay != kNoNode) {
        Choice choice = cost(stay);
        choice.reason = RouteReason::kHome;
        return choice;
      }
      return least_loaded();
    case Routing::kPrefillDecode: {
      const Choice whole = by_cost();
      return whole.node == kNoNode ? whole : split(whole);
    }
    case Routing::kCost:
    case Routing::kAdvised:
      return by_cost();
  }
  return {};
}

}  // namespace

Choice cost_of(const RouteRequest& request, const NodeTable& table, const RouteOptions& options, double now,
               NodeId node) {
  return Decision(request, table, options, now).cost(node);
}

Choice route(const RouteRequest& request, const NodeTable& table, const RouteOptions& options, double now) {
  return Decision(request, table, options, now).choose();
}

void note_choice(const RouteRequest& request, const Choice& choice, double now, NodeTable& table) {
  if (choice.node == kNoNode) return;
  const uint64_t incarnation = table.node(choice.node).incarnation;
  if (choice.source != kNoNode) table.note_pull(choice.source, now, choice.pull_seconds);
  if (request.lead_seconds > 0) {
    table.expect_session(request.session, choice.node, now + kPatience * request.lead_seconds);
    if (choice.source != kNoNode) table.note_session(request.session, choice.node, incarnation, choice.cached_tokens);
    return;
  }
  table.meet_session(request.session);
  const double computed = request.num_tokens - choice.cached_tokens + request.expected_outputs;
  const bool is_split = choice.reason == RouteReason::kSplit;
  const NodeId computing = is_split ? choice.source : choice.node;
  table.note_sent(choice.node, now, is_split ? 0 : choice.prefill_seconds, request.num_tokens, computed, request.keys);
  if (is_split) table.note_prefill(computing, now, choice.prefill_seconds);
  table.note_session(request.session, choice.node, incarnation, request.num_tokens);
}

void append_prefix_keys(uint64_t secret, std::span<const int32_t> tokens, size_t tokens_per_key,
                        std::vector<uint64_t>& keys) {
  uint64_t key = mixed(secret);
  const size_t num_keys = tokens_per_key == 0 ? 0 : tokens.size() / tokens_per_key;
  for (size_t i = 0; i < num_keys; ++i) {
    for (const int32_t token : tokens.subspan(i * tokens_per_key, tokens_per_key)) {
      key = (key ^ static_cast<uint32_t>(token)) * 0x9FB21C651E98DF25ULL;
      key ^= key >> 29;
    }
    keys.push_back(mixed(key));
  }
}

}  // namespace hocket
