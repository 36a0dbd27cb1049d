#include "routing/node_table.h"

#include <algorithm>
#include <stdexcept>

namespace hocket {

namespace {

constexpr double kRateWeight = 0.2;  // of a new measurement of a pair of machines
constexpr double kTurn = 1e-11;      // of an open request: a hundred days of decisions, 10,000 a second, are below one

uint64_t machine_pair(int32_t from, int32_t to) {
  return uint64_t{static_cast<uint32_t>(from)} << 32 | static_cast<uint32_t>(to);
}

// What a request of ordinary size adds to a node's queue in the order of candidates: a chunk, and a few decode steps.
constexpr double kOrdinaryChunk = 512;
constexpr double kOrdinarySteps = 6;

BatchFeatures decodes_of(const NodeTable::Node& node) {
  BatchFeatures batch;
  batch.num_decodes = node.num_decodes();
  batch.decode_context = node.context();
  batch.max_context = batch.num_decodes > 0 ? batch.decode_context / batch.num_decodes : 0;
  return batch;
}

}  // namespace

const CacheHolder* RoutedSession::find(NodeId node) const {
  const auto found = std::ranges::find(holders, node, &CacheHolder::node);
  return found == holders.end() ? nullptr : &*found;
}

NodeTable::NodeTable(const TableLimits& limits) : limits_(limits), prefixes_(limits.max_prefixes) {}

void NodeTable::check(NodeId id) const {
  if (id < 0 || static_cast<size_t>(id) >= nodes_.size()) throw std::out_of_range("there is no such node");
}

NodeId NodeTable::add_node(const NodeTraits& traits, uint64_t incarnation) {
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back({.traits = traits, .incarnation = incarnation});
  by_queue_.resize(nodes_.size());
  by_open_.resize(nodes_.size());
  update(id);
  return id;
}

void NodeTable::restart_node(NodeId id, const NodeTraits& traits, uint64_t incarnation) {
  check(id);
  if (nodes_[id].incarnation == incarnation) return;
  forget_held(id);
  const int64_t num_routed = nodes_[id].num_routed;
  nodes_[id] = {.traits = traits, .incarnation = incarnation};
  nodes_[id].num_routed = num_routed;
  update(id);
}

void NodeTable::set_state(NodeId id, NodeState state) {
  check(id);
  nodes_[id].state = state;
  if (state == NodeState::kGone) {
    forget_held(id);
    nodes_[id].sent.clear();
    nodes_[id].sent_tokens = 0;
    nodes_[id].num_expected = 0;
  }
  update(id);
}

void NodeTable::note_load(NodeId id, uint64_t incarnation, const NodeLoad& load) {
  check(id);
  Node& node = nodes_[id];
  if (node.incarnation != incarnation || load.as_of < node.load.as_of) return;
  node.load = load;
  while (!node.sent.empty() && node.sent.front().at <= load.as_of) {
    node.sent_tokens -= node.sent.front().tokens;
    node.sent.pop_front();
  }
  if (node.sent.empty()) node.sent_tokens = 0;  // not what rounding has left
  node.busy_until = load.as_of + load.queue_seconds;
  for (const SentRequest& request : node.sent) {
    node.busy_until = std::max(node.busy_until, request.at) + request.seconds;
  }
  update(id);
}

void NodeTable::note_open(NodeId id, double num_open) {
  check(id);
  if (!(num_open >= 0)) throw std::invalid_argument("a count of requests is not negative");
  if (nodes_[id].counted == num_open) return;
  nodes_[id].counted = num_open;
  update(id);
}

void NodeTable::note_sent(NodeId id, double now, double prefill_seconds, double num_tokens, double num_computed,
                          std::span<const uint64_t> keys) {
  check(id);
  Node& node = nodes_[id];
  node.sent.push_back({now, prefill_seconds, num_tokens});
  node.sent_tokens += num_tokens;
  node.busy_until = std::max(node.busy_until, now) + prefill_seconds;
  node.clock += num_computed;
  if (node.counted >= 0) ++node.counted;
  ++node.num_routed;
  node.turn = ++num_decisions_;
  prefixes_.note(keys, id, node.clock);
  update(id);
}

void NodeTable::note_prefill(NodeId id, double now, double seconds) {
  check(id);
  nodes_[id].sent.push_back({now, seconds, 0});
  nodes_[id].busy_until = std::max(nodes_[id].busy_until, now) + seconds;
  update(id);
}

void NodeTable::note_pull(NodeId source, double now, double seconds) {
  check(source);
  nodes_[source].sending_until = std::max(nodes_[source].sending_until, now) + seconds;
}

void NodeTable::note_pull_rate(int32_t from_machine, int32_t to_machine, double bytes_per_second) {
  if (!(bytes_per_second > 0)) throw std::invalid_argument("a rate must be positive");
  const uint64_t pair = machine_pair(from_machine, to_machine);
  const double* known = pull_rates_.find(pair);
  const double before = known == nullptr ? bytes_per_second : *known;
  pull_rates_.touch(pair) = before + kRateWeight * (bytes_per_second - before);
}

double NodeTable::pull_rate(int32_t from_machine, int32_t to_machine) const {
  const double* known = pull_rates_.find(machine_pair(from_machine, to_machine));
  return known == nullptr ? limits_.pull_bytes_per_second : *known;
}

void NodeTable::note_session(uint64_t digest, NodeId id, uint64_t incarnation, double num_tokens) {
  check(id);
  if (digest == 0 || nodes_[id].incarnation != incarnation || nodes_[id].state == NodeState::kGone) return;
  auto& holders = sessions_.touch(digest).holders;
  auto slot = std::ranges::find(holders, id, &CacheHolder::node);
  if (slot == holders.end()) slot = holders.end() - 1;
  *slot = {id, num_tokens, nodes_[id].clock};
  std::rotate(holders.begin(), slot, slot + 1);
  if (sessions_.size() > limits_.max_sessions) {
    const uint64_t oldest = sessions_.oldest_key();
    meet_session(oldest);
    sessions_.erase(oldest);
  }
}

void NodeTable::expect_session(uint64_t digest, NodeId id, double until) {
  check(id);
  if (digest == 0) return;
  meet_session(digest);
  RoutedSession& session = sessions_.touch(digest);
  session.expected = id;
  session.expected_until = until;
  ++nodes_[id].num_expected;
  update(id);
}

void NodeTable::meet_session(uint64_t digest) {
  RoutedSession* session = digest == 0 ? nullptr : sessions_.find(digest);
  if (session == nullptr || session->expected == kNoNode) return;
  Node& node = nodes_[session->expected];
  node.num_expected = std::max(0, node.num_expected - 1);
  update(session->expected);
  session->expected = kNoNode;
}

void NodeTable::forget_session(uint64_t digest, NodeId id) {
  RoutedSession* session = digest == 0 ? nullptr : sessions_.find(digest);
  if (session == nullptr) return;
  auto& holders = session->holders;
  // Not std::ranges, of which Clang 14 makes no subrange; it builds the fuzzer.
  const auto gone = std::remove_if(holders.begin(), holders.end(), [id](const auto& held) { return held.node == id; });
  std::fill(gone, holders.end(), CacheHolder{});
  if (session->holders.front().node == kNoNode && session->expected == kNoNode) sessions_.erase(digest);
}

void NodeTable::forget_held(NodeId id) {
  prefixes_.forget(id);
  std::vector<uint64_t> held;
  sessions_.for_each([&](uint64_t digest, const RoutedSession& session) {
    if (session.find(id) != nullptr || session.expected == id) held.push_back(digest);
  });
  for (const uint64_t digest : held) {
    if (sessions_.find(digest)->expected == id) meet_session(digest);
    forget_session(digest, id);
  }
}

void NodeTable::update(NodeId id) {
  Node& node = nodes_[id];
  BatchFeatures batch = decodes_of(node);
  node.step_seconds = node.traits.latency.predict(batch);
  batch.add_chunk(0, kOrdinaryChunk);
  const double ordinary = node.traits.latency.predict(batch) + kOrdinarySteps * node.step_seconds;
  by_queue_.set(id, node.is_open() ? node.busy_until + ordinary : LeastTree::kNever);
  by_open_.set(id, node.is_open() ? node.num_open() + kTurn * static_cast<double>(node.turn) : LeastTree::kNever);
}

}  // namespace hocket
