#include "simulation/fleet/fleet_loop.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace hocket {

namespace {

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint64_t mixed(uint64_t seed, uint64_t a, uint64_t b) {
  return mixed(mixed(mixed(seed + 0x9E3779B97F4A7C15ULL) + a + 1) + b + 1);
}

double fraction(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

enum Draw : uint64_t { kTime = 1, kGateway, kSession, kMissed, kRequest };

}  // namespace

FleetLoop::FleetLoop(const FleetTrace& trace, const FleetOptions& options)
    : trace_(trace), options_(options), records_(), totals_() {
  check();
  NodeTraits traits = options_.traits;
  for (int32_t gateway = 0; gateway < options_.num_gateways; ++gateway) {
    tables_.emplace_back(options_.limits);
    for (int32_t node = 0; node < options_.num_nodes; ++node) {
      traits.machine = node / options_.nodes_per_machine;
      tables_.back().add_node(traits, 1);
    }
    for (int32_t node = 0; node < options_.num_nodes; node += options_.nodes_per_machine) {
      const int32_t machine = node / options_.nodes_per_machine;
      tables_.back().note_pull_rate(machine, machine, options_.host_bytes_per_second);
    }
  }
  nodes_.reserve(options_.num_nodes);
  for (int32_t node = 0; node < options_.num_nodes; ++node) nodes_.emplace_back(options_.node);
  versions_.assign(options_.num_nodes, 0);
  reported_.resize(options_.num_nodes);
  sending_until_.assign(options_.num_nodes / options_.nodes_per_machine + 1, 0.0);
  make_arrivals();
  const size_t n = arrivals_.size();
  constexpr float kNever = std::numeric_limits<float>::quiet_NaN();
  records_ = {.arrival_s = std::vector<float>(n),
              .ttft_s = std::vector<float>(n, kNever),
              .e2e_s = std::vector<float>(n, kNever),
              .num_tokens = std::vector<int32_t>(n),
              .num_outputs = std::vector<int32_t>(n),
              .num_cached = std::vector<int32_t>(n),
              .node = std::vector<int16_t>(n, -1)};
}

void FleetLoop::check() const {
  const size_t n = trace_.size();
  require(n > 0, "the trace has no rows");
  require(trace_.num_tokens.size() == n && trace_.num_outputs.size() == n && trace_.session.size() == n &&
              trace_.is_follow_up.size() == n && trace_.key_offsets.size() == n + 1,
          "the columns of the trace have different lengths");
  require(trace_.key_offsets.front() == 0 && std::ranges::is_sorted(trace_.key_offsets) &&
              static_cast<size_t>(trace_.key_offsets.back()) == trace_.keys.size(),
          "key_offsets are no offsets into keys");
  require(std::ranges::all_of(trace_.num_tokens, [](int32_t count) { return count >= 1; }) &&
              std::ranges::all_of(trace_.num_outputs, [](int32_t count) { return count >= 1; }),
          "a request has no tokens");
  require(options_.num_nodes >= 1 && options_.num_nodes <= INT16_MAX && options_.nodes_per_machine >= 1 &&
              options_.num_gateways >= 1 && options_.num_copies >= 1,
          "a fleet has at least one node, machine, gateway and copy of its trace");
  require(n * static_cast<size_t>(options_.num_copies) < UINT32_MAX, "there are too many requests");
  require(options_.report_interval_s > 0 && options_.report_delay_s >= 0 &&
              options_.report_delay_s < options_.report_interval_s,
          "reports come later than the ones after them");
  require(options_.node.device_tokens > 0 && options_.node.tokens_per_key > 0, "a node has no cache");
}

void FleetLoop::make_arrivals() {
  arrivals_.reserve(trace_.size() * options_.num_copies);
  for (uint32_t copy = 0; copy < static_cast<uint32_t>(options_.num_copies); ++copy) {
    for (uint32_t row = 0; row < trace_.size(); ++row) {
      const double late = options_.spread_s * fraction(mixed(options_.seed + kTime, copy, row));
      arrivals_.push_back({trace_.arrival_s[row] + late, row, copy});
    }
  }
  std::ranges::sort(arrivals_, [](const Arrival& a, const Arrival& b) {
    return std::tie(a.time, a.copy, a.row) < std::tie(b.time, b.copy, b.row);
  });
  if (options_.lead_s <= 0) return;
  for (uint32_t index = 0; index < arrivals_.size(); ++index) {
    const auto& [time, row, copy] = arrivals_[index];
    const bool is_missed = fraction(mixed(options_.seed + kMissed, copy, row)) < options_.missed_ratio;
    if (trace_.is_follow_up[row] && !is_missed) notices_.push_back({time - options_.lead_s, index});
  }
}

std::span<const uint64_t> FleetLoop::keys_of(const Arrival& arrival) {
  const int64_t begin = trace_.key_offsets[arrival.row], end = trace_.key_offsets[arrival.row + 1];
  keys_.assign(trace_.keys.begin() + begin, trace_.keys.begin() + end);
  for (size_t i = static_cast<size_t>(options_.num_common_keys); i < keys_.size(); ++i) {
    keys_[i] = mixed(options_.seed, keys_[i], arrival.copy);
  }
  return keys_;
}

RouteRequest FleetLoop::request_of(const Arrival& arrival, uint64_t number) {
  const int64_t session = trace_.session[arrival.row];
  return {.id = number,
          .num_tokens = static_cast<double>(trace_.num_tokens[arrival.row]),
          .expected_outputs = options_.expected_outputs,
          .ttft_target_seconds = options_.ttft_target_s,
          .session = session < 0 ? 0 : mixed(options_.seed + kSession, session, arrival.copy) | 1,
          .keys = keys_of(arrival),
          .tokens_per_key = options_.node.tokens_per_key};
}

// When the blocks are there. The source may have fewer than the gateway believed.
double FleetLoop::pull(const RouteRequest& request, const Choice& choice, double held, double* pulled) {
  *pulled = nodes_[choice.source].held(request.keys);
  if (*pulled <= held) return now_;
  const double bytes = (*pulled - held) * options_.traits.bytes_per_token;
  const int32_t from = choice.source / options_.nodes_per_machine, to = choice.node / options_.nodes_per_machine;
  if (from == to) return now_ + bytes / options_.host_bytes_per_second;
  totals_.pulled_bytes += bytes;
  ++totals_.num_pulls;
  double& free = sending_until_[from];
  free = std::max(free, now_) + bytes / options_.pull_bytes_per_second;
  return free;
}

void FleetLoop::tell_others(const RouteRequest& request, const Choice& choice, size_t gateway) {
  if (request.session == 0) return;
  for (size_t other = 0; other < tables_.size(); ++other) {
    if (other == gateway) continue;
    if (request.lead_seconds > 0) {
      tables_[other].expect_session(request.session, choice.node, now_ + 4 * request.lead_seconds);
    } else {
      tables_[other].meet_session(request.session);
      tables_[other].note_session(request.session, choice.node, 1, request.num_tokens);
    }
  }
}

void FleetLoop::arrive(uint32_t index) {
  const Arrival& arrival = arrivals_[index];
  const RouteRequest request = request_of(arrival, index);
  const size_t gateway = mixed(options_.seed + kGateway, arrival.copy, arrival.row) % tables_.size();
  const RoutedSession* session = tables_[gateway].session(request.session);
  const NodeId before = session == nullptr ? kNoNode : session->holders.front().node;
  const Choice choice = route(request, tables_[gateway], options_.route, now_);
  note_choice(request, choice, now_, tables_[gateway]);
  totals_.num_moves += before != kNoNode && before != choice.node;
  tell_others(request, choice, gateway);
  RateNode& node = nodes_[choice.node];
  double pulled = 0, pulled_at = now_;
  if (choice.source != kNoNode) pulled_at = pull(request, choice, node.held(request.keys), &pulled);
  records_.arrival_s[index] = static_cast<float>(now_);
  records_.num_tokens[index] = trace_.num_tokens[arrival.row];
  records_.num_outputs[index] = trace_.num_outputs[arrival.row];
  records_.node[index] = static_cast<int16_t>(choice.node);
  const RateJob job = {.request = index,
                       .arrival = now_,
                       .num_tokens = request.num_tokens,
                       .num_outputs = static_cast<double>(trace_.num_outputs[arrival.row])};
  node.arrive(job, request.keys, pulled, pulled_at, now_);
  schedule(choice.node);
}

// An advisory: blocks move while the user types. They are there when the request comes, or late, as it happens.
void FleetLoop::announce(uint32_t index) {
  const Arrival& arrival = arrivals_[index];
  RouteRequest request = request_of(arrival, index);
  request.lead_seconds = options_.lead_s;
  const size_t gateway = mixed(options_.seed + kGateway, arrival.row, arrival.copy) % tables_.size();
  const Choice choice = route(request, tables_[gateway], options_.route, now_);
  note_choice(request, choice, now_, tables_[gateway]);
  tell_others(request, choice, gateway);
  if (choice.source == kNoNode) return;
  double pulled = 0;
  const double there_at = pull(request, choice, nodes_[choice.node].held(request.keys), &pulled);
  if (there_at > now_ + options_.lead_s) return;
  const auto num_keys = static_cast<size_t>(pulled / options_.node.tokens_per_key);
  nodes_[choice.node].keep(request.keys.first(std::min(num_keys, request.keys.size())));
}

void FleetLoop::schedule(int32_t node) {
  const double next = nodes_[node].next_event();
  ++versions_[node];
  if (next < RateNode::kNever) events_.push({std::max(next, now_), node, versions_[node]});
}

void FleetLoop::run_node(int32_t node) {
  ended_.clear();
  nodes_[node].run(now_, ended_);
  for (const RateEnd& end : ended_) {
    const auto index = static_cast<size_t>(end.request);
    const double arrival = arrivals_[index].time;
    records_.ttft_s[index] = static_cast<float>(end.first_token - arrival);
    records_.e2e_s[index] = static_cast<float>(end.end - arrival);
    records_.num_cached[index] = static_cast<int32_t>(end.cached);
    ++num_ended_;
  }
  schedule(node);
}

void FleetLoop::report() {
  for (size_t node = 0; node < nodes_.size(); ++node) reported_[node] = nodes_[node].load(now_);
  next_delivery_ = now_ + options_.report_delay_s;
  next_report_ = now_ + options_.report_interval_s;
}

void FleetLoop::deliver() {
  for (NodeTable& table : tables_) {
    for (size_t node = 0; node < nodes_.size(); ++node) table.note_load(static_cast<NodeId>(node), 1, reported_[node]);
  }
  next_delivery_ = RateNode::kNever;
}

bool FleetLoop::run(double until) {
  while (num_ended_ < size()) {
    while (!events_.empty() && events_.top().version != versions_[events_.top().node]) events_.pop();
    const double arrival = next_arrival_ < arrivals_.size() ? arrivals_[next_arrival_].time : RateNode::kNever;
    const double notice = next_notice_ < notices_.size() ? notices_[next_notice_].time : RateNode::kNever;
    const double event = events_.empty() ? RateNode::kNever : events_.top().time;
    const double next = std::min({arrival, notice, event, next_report_, next_delivery_});
    if (next >= until) return true;
    now_ = std::max(now_, next);
    if (event <= next) {
      const int32_t node = events_.top().node;
      events_.pop();
      run_node(node);
    } else if (next_delivery_ <= next) {
      deliver();
    } else if (next_report_ <= next) {
      report();
    } else if (notice <= next) {
      announce(notices_[next_notice_++].index);
    } else {
      arrive(static_cast<uint32_t>(next_arrival_++));
    }
  }
  return false;
}

FleetTotals FleetLoop::totals() const {
  FleetTotals totals = totals_;
  for (const RateNode& node : nodes_) {
    totals.busy_s.push_back(node.busy_seconds());
    totals.computed_tokens.push_back(node.computed_tokens());
  }
  return totals;
}

}  // namespace hocket
