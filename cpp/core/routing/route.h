// Which node serves a request: a pure function of the request, the table and the time. The gateway and the simulator
// call this one; equal arguments give equal choices.
//
//   cost(n) = max( queue(n), pull )                what is waited for; blocks of a peer come while others are served
//           + min( restore + prefill(uncached at n), prefill(all), prefill(what the peer lacks) )
//           + w  max( 0, age + the above - TTFT target )         w by class and priority
//           + d  expected outputs  step(n)                       what its decoding costs there
//
// All in seconds. queue: NodeTable::Node::busy_until; prefill: the node's own latency model, in steps beside the
// decodes that run there; pull: bytes over the measured rate of that pair of machines, behind the source's other pulls.
//
// Not every node is looked at: those that are known to hold the session or a beginning of the prompt, those with the
// least queues and the fewest open requests, and some that are drawn. Where nodes are alike, the best one that holds
// nothing is among the least loaded, so little is missed (tests/schedcore/routing). Among nodes that cost about the
// same, two are drawn and the one with fewer open requests is taken: gateways whose tables are equally stale would
// otherwise all choose the same one. A session leaves its home only for a saving that is large in ratio and in seconds.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/request_class.h"
#include "routing/node_table.h"

namespace hocket {

enum class Routing : uint8_t {
  kCost = 0,         // the least cost, with a bonus for the session's home
  kAdvised = 1,      // and the node that an advisory chose wins, unless it is worse by far
  kLeastLoaded = 2,  // the fewest open requests
  kSticky = 3,       // a session's home; else the fewest open requests
  kRoundRobin = 4,
  kPrefillDecode = 5,  // least cost over pairs: `source` computes the prompt, `node` pulls it and goes on
};

struct RouteOptions {
  Routing routing = Routing::kAdvised;
  double stay_seconds = 0.05;    // a session moves for more than this,
  double stay_ratio = 0.2;       // and for more than this share of what staying costs
  double equal_seconds = 0.002;  // costs that differ by less, or
  double equal_ratio = 0.05;     // by less than this share, are equal
  double advised_ratio = 2.0;    // of the best cost, up to which an advisory's choice wins
  double miss_weight = 1.0;      // of a second beyond the TTFT target, online and of priority 0
  double decode_weight = 0.05;   // of a second of decoding: somebody reads meanwhile
  int32_t num_least = 4;         // candidates by queue, and as many by open requests
  int32_t num_drawn = 2;         // candidates at random
  uint64_t salt = 0;             // of the gateway: others draw otherwise
};

struct RouteRequest {
  uint64_t id = 0;        // differs between requests; decides what is drawn
  double num_tokens = 1;  // of the prompt
  double expected_outputs = 128;
  double age_seconds = 0;
  double ttft_target_seconds = std::numeric_limits<double>::infinity();
  RequestClass request_class = kOnlineClass;
  int64_t priority = 0;     // smaller is more urgent; each step halves or doubles what a miss weighs, thrice at most
  double lead_seconds = 0;  // an advisory: the request is expected so much later
  uint64_t session = 0;     // its digest; 0: none
  std::span<const uint64_t> keys = {};  // of the prompt's beginnings, in order; key i ends after (i + 1) tokens_per_key
  double tokens_per_key = 512;
  NodeId excluded = kNoNode;  // where it failed
};

enum class RouteReason : uint8_t {
  kNone = 0,  // there is no node
  kCheapest = 1,
  kHome = 2,  // the session stays
  kAdvised = 3,
  kLeastLoaded = 4,
  kTurn = 5,   // round robin
  kSplit = 6,  // prefill and decode apart
};

struct Choice {
  NodeId node = kNoNode;
  NodeId source = kNoNode;  // whose blocks are to be pulled; kNoNode: nobody's
  RouteReason reason = RouteReason::kNone;
  double cost = 0;             // seconds, all terms
  double ttft_seconds = 0;     // from now, as predicted
  double prefill_seconds = 0;  // of what is computed there
  double pull_seconds = 0;
  double cached_tokens = 0;  // of the prompt, at the node or pulled
};

// What the node costs, by the best way to serve the request there. REQUIRES: the node exists.
Choice cost_of(const RouteRequest& request, const NodeTable& table, const RouteOptions& options, double now,
               NodeId node);

Choice route(const RouteRequest& request, const NodeTable& table, const RouteOptions& options, double now);

// What the choice adds to the table once it is carried out: the node's load, what it will hold, the session's home; of
// an advisory, that the session is expected there.
void note_choice(const RouteRequest& request, const Choice& choice, double now, NodeTable& table);

// Appends the key of each whole beginning of the prompt: 64 bits that stand for all tokens up to its end. `secret`
// keeps others from making prompts whose keys collide; such prompts would be routed alike, and computed rightly all the
// same. Cache salts belong into it.
void append_prefix_keys(uint64_t secret, std::span<const int32_t> tokens, size_t tokens_per_key,
                        std::vector<uint64_t>& keys);

}  // namespace hocket
