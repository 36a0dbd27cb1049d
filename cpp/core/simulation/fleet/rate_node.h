// An engine of a simulated fleet by its rates: steps in which nothing begins or ends are skipped together.
//
// Time runs in steps. While the set of what runs stays the same, a step takes what the latency model says of it: one
// token for each decode, and a chunk of the prompts that are being computed. Prompts are taken in order of arrival, as
// many as fill the steps that the first of them needs; what is left over of the last step begins the next one. Memory
// is reserved for prompt and answer; a request that does not fit waits, and those behind it too. Blocks are known by
// keys (one per so many tokens), and the one used longest ago goes first; what has been used since tells whether a
// block is on the device still, or in a tier below.
//
// What is left out, against the real scheduler (schedcore/simulation/fleet/cluster.py): preemption, priorities,
// targets, moves between tiers beside steps. docs/results/fleet_routing.md has the error. Thread safety: none. No
// clock.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "estimates/latency_model.h"
#include "routing/lru_map.h"
#include "routing/node_table.h"

namespace hocket {

struct RateNodeOptions {
  LatencyModel latency;
  double max_batched_tokens = 2048;
  double max_running = 256;
  double device_tokens = 0;  // of cache
  double kept_tokens = 0;    // with tiers below; no less
  double tokens_per_key = 512;
  double restore_seconds_per_token = 0;  // from the tiers below
};

struct RateJob {
  int64_t request = 0;
  double arrival = 0;
  double num_tokens = 0;
  double num_outputs = 1;
  double cached = 0;    // tokens of the prompt that need no computing
  double ready_at = 0;  // restored, or pulled
  double computed = 0;  // of the rest
};

struct RateEnd {
  int64_t request;
  double first_token;
  double end;
  double cached;
};

class RateNode {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit RateNode(const RateNodeOptions& options) : options_(options) {}

  // Tokens at the beginning of the prompt that are here, in all tiers.
  double held(std::span<const uint64_t> keys) const;

  // `pulled`: tokens that a peer has brought, here at `pulled_at`. REQUIRES: now is no earlier than any time before.
  void arrive(const RateJob& job, std::span<const uint64_t> keys, double pulled, double pulled_at, double now);
  // Blocks that an advisory has brought.
  void keep(std::span<const uint64_t> keys);

  // When something will begin or end; kNever: nothing runs.
  double next_event() const;
  // REQUIRES: now is next_event(). Appends requests whose last token came now.
  void run(double now, std::vector<RateEnd>& ended);

  NodeLoad load(double now) const;
  int64_t num_open() const { return static_cast<int64_t>(waiting_.size() + batch_.size() + running_.size()); }
  double busy_seconds() const { return busy_seconds_; }
  double computed_tokens() const { return computed_tokens_; }

 private:
  struct Running {
    double end_step;
    double first_token;
    RateJob job;
    bool operator>(const Running& other) const { return end_step > other.end_step; }
  };

  double room() const;  // tokens of a step beside the decodes
  double step_seconds(double tokens, double pairs, double context, double num_steps) const;
  double leading(std::span<const uint64_t> keys, double max_age) const;
  void advance(double now);
  void begin_batch();
  void end_batch(double now, std::vector<RateEnd>& ended);
  void end_running(double now, std::vector<RateEnd>& ended);
  void refresh();
  bool fits(const RateJob& job) const;
  double may_begin_at() const;

  const RateNodeOptions options_;
  LruMap<double> blocks_;  // by key: the clock when it was used last
  double clock_ = 0.0;     // tokens of all blocks used, ever
  std::deque<RateJob> waiting_;
  std::vector<RateJob> batch_;  // prompts being computed
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  double now_ = 0.0;
  double step_ = 0.0;  // steps done
  double batch_end_step_ = 0.0;
  double batch_tokens_ = 0.0, batch_pairs_ = 0.0, batch_context_ = 0.0, batch_steps_ = 0.0;
  double seconds_ = 0.0;         // of a step now
  double running_tokens_ = 0.0;  // in the cache, of running requests
  double waiting_tokens_ = 0.0;  // to be computed, of those that wait
  double reserved_ = 0.0;        // tokens, of the batch and the running
  double busy_seconds_ = 0.0;
  double computed_tokens_ = 0.0;
};

}  // namespace hocket
