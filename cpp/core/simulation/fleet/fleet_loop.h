// Many nodes under one virtual clock, gateways whose tables are stale, and route() between: the very function that
// gateways call. Nodes are modelled by rate (rate_node.h).
//
// Requests come at the times of a trace, in as many copies as are asked for: copies share no more of their prompts than
// the first `num_common_keys` keys, and each row of each copy comes at a time of its own, later by up to `spread_s`.
// A balancer in front deals requests to gateways at random. A gateway knows at once what it sent itself; what nodes
// report comes `report_delay_s` after it was so, every `report_interval_s`; sessions are told to all gateways.
// A turn that follows another may be announced `lead_s` before it comes.
//
// The same arguments give the same result, bit by bit. Thread safety: none.
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <vector>

#include "routing/route.h"
#include "simulation/fleet/rate_node.h"

namespace hocket {

// Views of one copy; they must outlive the loop. Rows in order of time.
struct FleetTrace {
  std::span<const double> arrival_s;
  std::span<const int32_t> num_tokens;
  std::span<const int32_t> num_outputs;
  std::span<const int64_t> session;       // its number, < 0: none
  std::span<const uint8_t> is_follow_up;  // of its session: may be announced
  std::span<const int64_t> key_offsets;   // [rows + 1]
  std::span<const uint64_t> keys;

  size_t size() const { return arrival_s.size(); }
};

struct FleetOptions {
  int32_t num_nodes = 1;
  int32_t nodes_per_machine = 1;
  int32_t num_gateways = 1;
  RateNodeOptions node;
  NodeTraits traits;  // as nodes tell gateways
  RouteOptions route;
  TableLimits limits;
  int32_t num_copies = 1;
  int32_t num_common_keys = 0;
  double spread_s = 0;
  double report_interval_s = 0.25;
  double report_delay_s = 0.05;
  double pull_bytes_per_second = 1e9;   // out of a machine
  double host_bytes_per_second = 24e9;  // within one
  double lead_s = 0;                    // 0: nothing is announced
  double missed_ratio = 0;              // of advisories
  double ttft_target_s = std::numeric_limits<double>::infinity();
  double expected_outputs = 128;  // what gateways believe
  uint64_t seed = 0;
};

struct FleetRecords {  // per request, in order of arrival; NaN: not yet
  std::vector<float> arrival_s;
  std::vector<float> ttft_s;
  std::vector<float> e2e_s;
  std::vector<int32_t> num_tokens;
  std::vector<int32_t> num_outputs;
  std::vector<int32_t> num_cached;
  std::vector<int16_t> node;
};

struct FleetTotals {
  double pulled_bytes = 0;  // between machines
  int64_t num_pulls = 0;
  int64_t num_moves = 0;                // of sessions, to another node than the last
  std::vector<double> busy_s;           // [num_nodes]
  std::vector<double> computed_tokens;  // [num_nodes], of prompts
};

class FleetLoop {
 public:
  // Throws std::invalid_argument for what makes no sense.
  FleetLoop(const FleetTrace& trace, const FleetOptions& options);

  // Until `until`, or until everything has ended; true if anything is left.
  bool run(double until);

  double now() const { return now_; }
  int64_t num_ended() const { return num_ended_; }
  int64_t size() const { return static_cast<int64_t>(arrivals_.size()); }
  const FleetRecords& records() const { return records_; }
  FleetTotals totals() const;

 private:
  struct Arrival {
    double time;
    uint32_t row;
    uint32_t copy;
  };
  struct Notice {
    double time;
    uint32_t index;
  };
  struct NodeEvent {
    double time;
    int32_t node;
    uint32_t version;  // an older one is void
    bool operator>(const NodeEvent& other) const { return time > other.time; }
  };

  void check() const;
  void make_arrivals();
  std::span<const uint64_t> keys_of(const Arrival& arrival);
  RouteRequest request_of(const Arrival& arrival, uint64_t number);
  void arrive(uint32_t index);
  void announce(uint32_t index);
  double pull(const RouteRequest& request, const Choice& choice, double held, double* pulled);
  void tell_others(const RouteRequest& request, const Choice& choice, size_t gateway);
  void schedule(int32_t node);
  void run_node(int32_t node);
  void report();
  void deliver();

  const FleetTrace trace_;
  const FleetOptions options_;
  std::vector<RateNode> nodes_;
  std::vector<uint32_t> versions_;
  std::vector<NodeTable> tables_;
  std::vector<Arrival> arrivals_;
  std::vector<Notice> notices_;
  size_t next_arrival_ = 0, next_notice_ = 0;
  std::priority_queue<NodeEvent, std::vector<NodeEvent>, std::greater<>> events_;
  std::vector<NodeLoad> reported_;
  double next_report_ = 0, next_delivery_ = RateNode::kNever;
  std::vector<double> sending_until_;  // per machine
  double now_ = 0;
  int64_t num_ended_ = 0;
  FleetRecords records_;
  FleetTotals totals_;
  std::vector<uint64_t> keys_;  // scratch
  std::vector<RateEnd> ended_;  // scratch
};

}  // namespace hocket
