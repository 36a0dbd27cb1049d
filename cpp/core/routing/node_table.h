// What a gateway knows of its nodes, as a value: what each has said last, what this gateway has sent it since, who
// holds which session and which beginnings of prompts. route() reads it; what happens is told to it by its owner.
//
// Loads are stale by nature. A node's queue is kept as the time at which it will have been worked off (`busy_until`):
// it empties by itself while time passes, own requests are added to it as they are sent, and a report (note_load)
// replaces all of it but what was sent after the report was made. With several gateways each knows only its own part
// of what was sent since; route() says what is done about that.
//
// Times are seconds on one clock of the owner; tokens and bytes are doubles, since they are estimates.
// A node that dies and comes back is the same NodeId with another incarnation: what it held is forgotten at once.
// Thread safety: none. No clock: `now` is an argument.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "estimates/latency_model.h"
#include "routing/least_tree.h"
#include "routing/lru_map.h"
#include "routing/prefix_memory.h"

namespace hocket {

enum class NodeState : uint8_t {
  kUp = 0,
  kSuspect = 1,   // silent: nothing new goes there
  kDraining = 2,  // finishes what it has
  kGone = 3,
};

// What an engine says of itself once, when it is ready.
struct NodeTraits {
  LatencyModel latency;
  double max_batched_tokens = 2048;                                // of a step
  double device_tokens = std::numeric_limits<double>::infinity();  // that its device's cache holds
  double kept_tokens = std::numeric_limits<double>::infinity();    // and with the tiers below
  double bytes_per_token = 0;                                      // of cache; 0: it cannot be moved
  double restore_bytes_per_second = 0;                             // from its tiers to its device; 0: it has none
  int32_t machine = 0;
  bool pulls = true;     // blocks of its peers
  bool prefills = true;  // roles, where prefill and decode are apart
  bool decodes = true;
};

// A report.
struct NodeLoad {
  double as_of = 0;           // when it was made
  double queue_seconds = 0;   // until a request that came then would be begun, as the engine predicts
  double num_waiting = 0;     // requests
  double num_running = 0;     // requests
  double running_tokens = 0;  // in the cache, of running requests
};

// What a decision adds to a node until its next report.
struct SentRequest {
  double at = 0;
  double seconds = 0;  // of prefill
  double tokens = 0;   // its context
};

struct CacheHolder {
  NodeId node = kNoNode;
  double tokens = 0;
  double clock = 0;  // the node's token clock when it was last used there
};

struct RoutedSession {
  static constexpr size_t kMaxHolders = 4;

  std::array<CacheHolder, kMaxHolders> holders;  // the most recent first: that is its home
  NodeId expected = kNoNode;                     // by an advisory
  double expected_until = 0;

  const CacheHolder* find(NodeId node) const;
};

struct TableLimits {
  size_t max_sessions = 1 << 20;
  size_t max_prefixes = 1 << 18;       // keys
  double pull_bytes_per_second = 1e9;  // between machines that have not pulled from each other yet
};

class NodeTable {
 public:
  struct Node {
    NodeTraits traits;
    NodeState state = NodeState::kUp;
    uint64_t incarnation = 0;
    NodeLoad load = {};
    std::deque<SentRequest> sent = {};  // since the report, in order
    double sent_tokens = 0;
    int32_t num_expected = 0;  // announced for this node, not yet here
    int64_t num_routed = 0;    // requests, ever
    int64_t turn = 0;          // number of the decision that last chose it
    double counted = -1;      // open requests as the table's owner has counted them; -1: by the report and what is sent
    double clock = 0;         // tokens that it was sent to compute or to generate, ever
    double busy_until = 0;    // its queue will have been worked off
    double step_seconds = 0;  // of a step that decodes what runs there
    double sending_until = 0;  // its pulls by others

    double num_open() const {
      if (counted >= 0) return counted + num_expected;
      return load.num_waiting + load.num_running + static_cast<double>(sent.size()) + num_expected;
    }
    // Of requests that run there, as far as it is known.
    double num_decodes() const { return load.num_running + static_cast<double>(sent.size()); }
    double context() const { return load.running_tokens + sent_tokens; }
    bool is_open() const { return state == NodeState::kUp; }
  };

  explicit NodeTable(const TableLimits& limits = {});

  // ---- nodes ----
  NodeId add_node(const NodeTraits& traits, uint64_t incarnation);
  // Another process under the old name: nothing of the old one is known any more. The same incarnation changes nothing.
  void restart_node(NodeId node, const NodeTraits& traits, uint64_t incarnation);
  // kGone forgets what it held.
  void set_state(NodeId node, NodeState state);
  // Ignored where the incarnation is an old one, or the report older than the last.
  void note_load(NodeId node, uint64_t incarnation, const NodeLoad& load);
  // Whoever sees requests end knows more than the last report. REQUIRES: num_open >= 0.
  void note_open(NodeId node, double num_open);

  // ---- what decisions add ----
  // REQUIRES: the prompt's keys, as for route().
  void note_sent(NodeId node, double now, double prefill_seconds, double num_tokens, double num_computed,
                 std::span<const uint64_t> keys);
  // A prompt whose answer another node gives.
  void note_prefill(NodeId node, double now, double seconds);
  void note_pull(NodeId source, double now, double seconds);
  void note_pull_rate(int32_t from_machine, int32_t to_machine, double bytes_per_second);

  // ---- sessions: `digest` stands for tenant, salt and session; nodes tell all gateways ----
  void note_session(uint64_t digest, NodeId node, uint64_t incarnation, double num_tokens);
  void expect_session(uint64_t digest, NodeId node, double until);
  // The request has come, or nobody waits for it any more.
  void meet_session(uint64_t digest);
  void forget_session(uint64_t digest, NodeId node);

  // ---- read ----
  size_t size() const { return nodes_.size(); }
  const Node& node(NodeId id) const { return nodes_[id]; }
  const RoutedSession* session(uint64_t digest) const { return digest == 0 ? nullptr : sessions_.find(digest); }
  size_t num_sessions() const { return sessions_.size(); }
  const PrefixMemory& prefixes() const { return prefixes_; }
  const LeastTree& by_queue() const { return by_queue_; }  // when an ordinary request that came now would be answered
  // Open requests, of nodes that are up; among equals the one that was chosen longest ago.
  const LeastTree& by_open() const { return by_open_; }
  int64_t num_decisions() const { return num_decisions_; }
  double pull_rate(int32_t from_machine, int32_t to_machine) const;

 private:
  void update(NodeId id);
  void forget_held(NodeId id);
  void check(NodeId id) const;

  const TableLimits limits_;
  std::vector<Node> nodes_;
  LruMap<RoutedSession> sessions_;
  PrefixMemory prefixes_;
  LruMap<double> pull_rates_;  // by the pair of machines; EWMA
  LeastTree by_queue_;
  LeastTree by_open_;
  int64_t num_decisions_ = 0;
};

}  // namespace hocket
