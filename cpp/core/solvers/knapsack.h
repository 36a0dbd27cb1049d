// Who gets cache memory in this step, and as which cache kind (Apt-Serve section 5 and its appendix, with general eta).
//
// Every candidate i is skipped, placed in the engine's compact kind (about eta m_i units) or as full KV (m_i units):
//
//   maximise  sum of g_i   subject to   sum of units <= capacity
//   g_i(kv)      = w_i p_i                + keep_i if it resides in either kind
//   g_i(compact) = w_i p_i - N alpha m_i  + keep_i if it resides as compact, kappa keep_i if as KV
//
// The compact kind is hidden states: they become KV by a free projection, and KV must be rebuilt to become them, kappa
// = 0. Or it is int8: KV is rounded in place, kappa a little below 1, and what was rounded never becomes KV again: who
// offers such a candidate says that it needs as many units either way. Blocks are made of whole units, a KV block of
// two per layer group, so every smaller kind takes one: of several the cheapest in seconds would be on every hull, and
// an engine has one.
//
// p_i pending time, w_i = past_target_decay once its target is missed and 1 before, N how many requests every second
// of a step delays: |W| + |R|, candidates or not (without those past their target, as the authors' code has it, compact
// cache is free once all are late, and every step ten times as long), alpha
// the extra seconds that one KV unit's worth of tokens costs every step when it is kept as compact. keep_i is the
// hysteresis: the seconds it would cost to build the candidate's cache again.
//
// solve() is the greedy over marginal gains per unit, on each candidate's concave hull: `nothing -> compact -> kv`
// where the compact step gains at least as much per unit as full KV does, `nothing -> kv` otherwise. It takes what fits
// in order of density and goes on after a misfit; if the best candidate alone is worth more, that one is placed first.
// The value is at least half of the optimum among all selections with the same starving candidates.
//
// Starvation bound. Candidates flagged kMustSchedule are placed before all others, longest pending first, in the
// smallest kind. Of those that fit the capacity alone, the longest pending one is therefore always placed; a candidate
// waits at most for its own limit plus the service of those that have starved longer than it.
//
// Cost: O(n) expected (radix selection, no full sort). No allocation once a call as large has been seen.
// Thread safety: none; one instance per scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hocket {

enum class KnapsackChoice : uint8_t { kSkip = 0, kCompact = 1, kKv = 2 };

struct KnapsackOptions {
  double compact_seconds_per_unit = 0.0;  // alpha, seconds per KV unit and step, >= 0
  double past_target_decay = 0.0;         // 0: near-zero value as in the paper; 0.4: its softer variant; 1: none
  double kept_share = 0.0;                // kappa, of keep_i when KV becomes compact, 0 to 1; 0: it must be built again
};

// Arrays of one length n, in order of arrival (ties go to the earlier one).
struct KnapsackCandidates {
  static constexpr uint8_t kPastTarget = 1;
  static constexpr uint8_t kMustSchedule = 2;
  static constexpr uint8_t kResidentKv = 4;
  static constexpr uint8_t kResidentCompact = 8;

  std::span<const float> pending_seconds;  // p_i >= 0
  std::span<const int32_t> kv_units;       // m_i >= 1, units as full KV after this step
  std::span<const int32_t> compact_units;  // >= 1, units as compact; not offered where it is no less than m_i
  std::span<const uint8_t> flags;          // any of the bits above
  std::span<const float> keep_seconds;     // keep_i >= 0; ignored for those that reside nowhere
  int32_t num_delayed = 0;                 // N; 0: the candidates are all
};

struct KnapsackResult {
  std::span<const uint8_t> choices;  // [n] KnapsackChoice, valid until the next solve()
  double value = 0.0;                // seconds, sum of g_i over the placed
  int64_t units = 0;                 // units they take, <= capacity
};

class Knapsack {
 public:
  // REQUIRES: options as documented there.
  explicit Knapsack(const KnapsackOptions& options) : options_(options) {}

  void set_compact_seconds_per_unit(double seconds) { options_.compact_seconds_per_unit = seconds; }

  // No solve() of at most n candidates allocates afterwards.
  void reserve(size_t n);

  // REQUIRES: the five arrays have one length, num_delayed is 0 or no less; capacity >= 0.
  KnapsackResult solve(const KnapsackCandidates& candidates, int64_t capacity);

 private:
  // One step on a candidate's hull that is not decided yet.
  struct Entry {
    bool is_upgrade() const { return id & 1; }
    uint32_t candidate() const { return id >> 1; }

    int32_t key;  // bits of the density as a float >= 0: their order is the density's
    int32_t units;
    uint32_t id;  // 2 * candidate, + 1 for compact -> kv; orders equal keys
  };

  // The bits of a key that one histogram looks at; the sign bit of a density is never set.
  struct Digit {
    int shift;
    int32_t mask;
  };
  static constexpr Digit kTopDigit = {20, 0x7FF};
  static constexpr Digit kLowerDigits[] = {{10, 0x3FF}, {0, 0x3FF}};

  float gain_of(uint32_t i, uint8_t choice) const;
  int32_t units_of(uint32_t i, uint8_t choice) const;
  double value_of(const std::vector<uint8_t>& choices) const;
  uint8_t best_alone(uint32_t i, int64_t room) const;

  void compute_gains();
  bool place_everything();
  void place_starving();
  void fill();
  void build_steps();
  int32_t take_above_critical();
  void collect_steps(int32_t from, int32_t to);
  void settle_top_digit();
  void narrow(Digit digit);
  void take(const Entry& entry);
  void sort_and_take();
  void place_best_alone_first(int64_t room);
  KnapsackResult result() const;

  KnapsackOptions options_;

  // Of the current solve(), per candidate
  KnapsackCandidates candidates_;
  std::vector<float> compact_gain_;
  std::vector<float> upgrade_gain_;  // kv_gain_ - compact_gain_, without its rounding
  std::vector<float> kv_gain_;
  std::vector<uint8_t> start_;  // after the starving were placed
  std::vector<uint8_t> choices_;
  int64_t capacity_ = 0;
  int64_t room_ = 0;
  double value_ = 0.0;

  // Of the current fill(): the steps on each candidate's hull; 0 units where there is none
  std::vector<int32_t> first_key_;
  std::vector<int32_t> first_units_;
  std::vector<uint8_t> first_choice_;
  std::vector<int32_t> upgrade_key_;
  std::vector<int32_t> upgrade_units_;

  // Workspaces
  std::vector<uint32_t> starving_;
  std::vector<uint8_t> marks_;
  std::vector<int64_t> histogram_;
  std::vector<Entry> entries_;  // undecided; equal keys in order of id
  std::vector<Entry> below_;    // undecided, densities below all of entries_
};

// eta applied to whole units: what KnapsackCandidates.compact_units holds for a candidate of `kv_units`. A request of a
// single block (block_units) and one for which compact is no smaller are not offered it.
int32_t knapsack_compact_units(int32_t kv_units, double compact_ratio, int32_t block_units);

}  // namespace hocket
