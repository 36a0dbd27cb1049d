// The order of density is never computed in full. fill() finds, by a radix selection on the densities' float bits, the
// first entry at which the running sum of units exceeds the room: everything above it is taken in one sweep,
// everything below that still fits is what the next round works on. A round costs a few passes over what is left, and
// what is left shrinks fast, because the room does. After kMaxRounds the rest is sorted, which bounds the worst case.
//
// The loops over all candidates are written for the vectoriser: one array per field, masks instead of branches. Which
// way a candidate goes is close to random, and a mispredicted branch costs more than everything else done for it.
#include "solvers/knapsack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

// The arrays of one loop never overlap; without being told, compilers give up on so many pointers.
#if defined(__clang__)
#define HOCKET_NO_ALIAS _Pragma("clang loop vectorize(assume_safety)")
#else
#define HOCKET_NO_ALIAS _Pragma("GCC ivdep")
#endif

namespace hocket {
namespace {

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);
constexpr auto kCompact = static_cast<uint8_t>(KnapsackChoice::kCompact);
constexpr auto kKv = static_cast<uint8_t>(KnapsackChoice::kKv);
constexpr size_t kSortBelow = 48;  // entries; sorting fewer is cheaper than another histogram
constexpr int kMaxRounds = 4;
constexpr int32_t kFirstKey = 0x7F800000;  // of infinite density

int32_t density_key(float gain, int32_t units) { return std::bit_cast<int32_t>(gain / static_cast<float>(units)); }

// Walks the histogram from the densest bucket while its units fit. Returns the first bucket that does not fit, or -1,
// and takes what fits from the room.
int32_t first_misfit(const std::vector<int64_t>& histogram, int64_t& room) {
  auto bucket = static_cast<int32_t>(histogram.size()) - 1;
  while (bucket >= 0 && histogram[bucket] <= room) room -= histogram[bucket--];
  return bucket;
}

// Of non-negative floats, by their bits: their order is the same, and the loop has no NaN to mind.
float largest(const std::vector<float>& values) {
  int32_t bits = 0;
  for (const float value : values) bits = std::max(bits, std::bit_cast<int32_t>(value));
  return std::bit_cast<float>(bits);
}

int32_t saturated(int64_t units) {
  return static_cast<int32_t>(std::min<int64_t>(units, std::numeric_limits<int32_t>::max()));
}

}  // namespace

int32_t knapsack_compact_units(int32_t kv_units, double compact_ratio, int32_t block_units) {
  if (kv_units <= block_units || compact_ratio >= 1.0) return kv_units;
  return static_cast<int32_t>(std::ceil(compact_ratio * kv_units - 1e-9));
}

void Knapsack::reserve(size_t n) {
  for (auto* array : {&compact_gain_, &upgrade_gain_, &kv_gain_}) array->reserve(n);
  for (auto* array : {&start_, &choices_, &first_choice_}) array->reserve(n);
  for (auto* array : {&first_key_, &first_units_, &upgrade_key_, &upgrade_units_}) array->reserve(n);
  for (auto* array : {&entries_, &below_}) array->reserve(2 * n);
  starving_.reserve(n);
  marks_.reserve(n + 7);
}

KnapsackResult Knapsack::solve(const KnapsackCandidates& candidates, int64_t capacity) {
  candidates_ = candidates;
  capacity_ = capacity;
  room_ = capacity;
  choices_.assign(candidates.kv_units.size(), kSkip);
  compute_gains();
  if (place_everything()) return result();
  place_starving();
  const int64_t room = room_;
  fill();
  place_best_alone_first(room);
  return result();
}

void Knapsack::compute_gains() {
  const size_t n = candidates_.kv_units.size();
  const float* pending = candidates_.pending_seconds.data();
  const float* keep = candidates_.keep_seconds.data();
  const int32_t* kv_units = candidates_.kv_units.data();
  const uint8_t* flags = candidates_.flags.data();
  for (auto* gains : {&compact_gain_, &upgrade_gain_, &kv_gain_}) gains->resize(n);
  float* compact_gain = compact_gain_.data();
  float* upgrade_gain = upgrade_gain_.data();
  float* kv_gain = kv_gain_.data();

  const auto num_delayed =
      candidates_.num_delayed > 0 ? static_cast<double>(candidates_.num_delayed) : static_cast<double>(n);
  const auto penalty = static_cast<float>(num_delayed * options_.compact_seconds_per_unit);
  const auto kept = static_cast<float>(options_.kept_share);
  const auto late_loss = static_cast<float>(1.0 - options_.past_target_decay);
  HOCKET_NO_ALIAS
  for (size_t i = 0; i < n; ++i) {
    const int32_t f = flags[i];
    const auto bit = [f](uint8_t flag) { return static_cast<float>((f & flag) / flag); };
    const float value = pending[i] * (1.0F - late_loss * bit(KnapsackCandidates::kPastTarget));
    const float keep_kv = keep[i] * bit(KnapsackCandidates::kResidentKv);
    const float keep_compact = keep[i] * bit(KnapsackCandidates::kResidentCompact);
    const float cost = penalty * static_cast<float>(kv_units[i]);
    compact_gain[i] = value - cost + keep_compact + kept * keep_kv;
    upgrade_gain[i] = cost + (1.0F - kept) * keep_kv;
    kv_gain[i] = value + keep_compact + keep_kv;
  }
}

bool Knapsack::place_everything() {
  const auto& kv_units = candidates_.kv_units;
  const int64_t total = std::accumulate(kv_units.begin(), kv_units.end(), int64_t{0});
  if (total > capacity_) return false;
  std::fill(choices_.begin(), choices_.end(), kKv);
  value_ = value_of(choices_);
  room_ -= total;
  return true;
}

void Knapsack::place_starving() {
  const KnapsackCandidates& c = candidates_;
  starving_.clear();
  for (uint32_t i = 0; i < c.flags.size(); ++i) {
    if (c.flags[i] & KnapsackCandidates::kMustSchedule) starving_.push_back(i);
  }
  std::sort(starving_.begin(), starving_.end(), [&](uint32_t a, uint32_t b) {
    return c.pending_seconds[a] != c.pending_seconds[b] ? c.pending_seconds[a] > c.pending_seconds[b] : a < b;
  });
  for (const uint32_t i : starving_) {
    const bool keeps_kv = (c.flags[i] & KnapsackCandidates::kResidentKv) && c.kv_units[i] <= room_;
    const bool as_kv = c.compact_units[i] >= c.kv_units[i] || keeps_kv;
    const uint8_t choice = as_kv ? kKv : kCompact;
    if (units_of(i, choice) > room_) continue;
    choices_[i] = choice;
    room_ -= units_of(i, choice);
  }
  start_ = choices_;
}

void Knapsack::fill() {
  build_steps();
  const int32_t critical = take_above_critical();
  if (critical < 0) return;
  entries_.clear();
  below_.clear();
  collect_steps(critical << kTopDigit.shift, (critical + 1) << kTopDigit.shift);
  settle_top_digit();
  collect_steps(0, critical << kTopDigit.shift);
  for (int round = 1; round < kMaxRounds; ++round) {
    narrow(kTopDigit);
    settle_top_digit();
  }
  sort_and_take();
}

// Steps that could not be placed even alone are left out, so the first step that fill() cannot place is never worth
// more than one candidate alone: that is the argument for the factor 2.
void Knapsack::build_steps() {
  const size_t n = candidates_.kv_units.size();
  for (auto* array : {&first_key_, &first_units_, &upgrade_key_, &upgrade_units_}) array->resize(n);
  first_choice_.resize(n);
  const int32_t* kv_units = candidates_.kv_units.data();
  const int32_t* compact_units = candidates_.compact_units.data();
  const float* compact_gain = compact_gain_.data();
  const float* upgrade_gain = upgrade_gain_.data();
  const float* kv_gain = kv_gain_.data();
  const uint8_t* choices = choices_.data();
  int32_t* first_key = first_key_.data();
  int32_t* first_units = first_units_.data();
  uint8_t* first_choice = first_choice_.data();
  int32_t* upgrade_key = upgrade_key_.data();
  int32_t* upgrade_units = upgrade_units_.data();

  const int32_t room = saturated(room_);
  HOCKET_NO_ALIAS
  for (size_t i = 0; i < n; ++i) {
    const int32_t kv = kv_units[i];
    const int32_t compact = compact_units[i];
    const int32_t more = kv - compact;
    const int32_t choice = choices[i];
    const int32_t kv_key = density_key(kv_gain[i], kv);
    const int32_t compact_key = density_key(compact_gain[i], compact);  // negative where the gain is
    const int32_t more_key = density_key(upgrade_gain[i], more);
    const int32_t is_free = -(choice == kSkip);
    const int32_t is_compact = -(choice == kCompact);
    const int32_t kv_fits = -(kv <= room);
    const int32_t can_shrink = -(more > 0) & -(compact <= room) & -(compact_key >= 0);
    const int32_t shrinks = is_free & can_shrink & (~kv_fits | -(compact_key > kv_key));
    const int32_t upgrades = (is_compact & -(more > 0) & -(more <= room)) | (shrinks & kv_fits);
    const int32_t highest = (is_compact & kFirstKey) | (~is_compact & compact_key);
    first_key[i] = (shrinks & compact_key) | (~shrinks & kv_key);
    first_units[i] = (shrinks & compact) | (~shrinks & is_free & kv_fits & kv);
    first_choice[i] = static_cast<uint8_t>(kKv + shrinks);
    upgrade_key[i] = upgrades & (more_key < highest ? more_key : highest);
    upgrade_units[i] = upgrades & more;
  }
}

// What narrow() does, for all candidates' steps and the top digit. Returns the first bucket that does not fit, or -1.
int32_t Knapsack::take_above_critical() {
  const size_t n = choices_.size();
  const int32_t* first_key = first_key_.data();
  const int32_t* first_units = first_units_.data();
  const int32_t* upgrade_key = upgrade_key_.data();
  const int32_t* upgrade_units = upgrade_units_.data();
  histogram_.assign(kTopDigit.mask + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    histogram_[first_key[i] >> kTopDigit.shift] += first_units[i];
    histogram_[upgrade_key[i] >> kTopDigit.shift] += upgrade_units[i];
  }
  const int32_t critical = first_misfit(histogram_, room_);
  const int32_t taken_from = (critical + 1) << kTopDigit.shift;
  const uint8_t* first_choice = first_choice_.data();
  uint8_t* choices = choices_.data();
  HOCKET_NO_ALIAS
  for (size_t i = 0; i < n; ++i) {
    const int32_t takes_first = -(first_key[i] >= taken_from) & -(first_units[i] > 0);
    const int32_t takes_upgrade = -(upgrade_key[i] >= taken_from) & -(upgrade_units[i] > 0);
    const int32_t after_first = (takes_first & first_choice[i]) | (~takes_first & choices[i]);
    choices[i] = static_cast<uint8_t>((takes_upgrade & kKv) | (~takes_upgrade & after_first));
  }
  return critical;
}

// Appends to entries_ the steps with keys in [from, to) that still fit. A second step goes with its first: one that did
// not fit then does not fit now, because the room only shrinks.
void Knapsack::collect_steps(int32_t from, int32_t to) {
  const size_t n = choices_.size();
  marks_.resize((n + 7) / 8 * 8);
  const int32_t room = saturated(room_);
  const int32_t* first_key = first_key_.data();
  const int32_t* first_units = first_units_.data();
  const int32_t* upgrade_key = upgrade_key_.data();
  const int32_t* upgrade_units = upgrade_units_.data();
  const uint8_t* choices = choices_.data();
  uint8_t* marks = marks_.data();
  HOCKET_NO_ALIAS
  for (size_t i = 0; i < n; ++i) {
    const int32_t first =
        (first_key[i] >= from) & (first_key[i] < to) & (first_units[i] > 0) & (first_units[i] <= room);
    const int32_t reachable = (choices[i] == kCompact) | (first_units[i] <= room);
    const int32_t fits = (upgrade_units[i] > 0) & (upgrade_units[i] <= room);
    const int32_t upgrade = (upgrade_key[i] >= from) & (upgrade_key[i] < to) & fits & reachable;
    marks[i] = static_cast<uint8_t>(first | upgrade << 1);
  }
  for (size_t word = 0; word < marks_.size(); word += 8) {
    uint64_t marked;
    std::memcpy(&marked, marks + word, sizeof marked);
    if (marked == 0) continue;
    for (uint32_t i = static_cast<uint32_t>(word); i < std::min(word + 8, n); ++i) {
      if (marks[i] & 1) entries_.push_back({first_key[i], first_units[i], 2 * i});
      if (marks[i] & 2) entries_.push_back({upgrade_key[i], upgrade_units[i], 2 * i + 1});
    }
  }
}

// Decides the entries, which share their top digit, and leaves in entries_ those of below_ that still fit.
void Knapsack::settle_top_digit() {
  for (const Digit digit : kLowerDigits) narrow(digit);
  sort_and_take();
  entries_.clear();
  for (const Entry& e : below_) {
    const uint32_t i = e.candidate();
    const bool is_reachable = !e.is_upgrade() || choices_[i] == kCompact || first_units_[i] <= room_;
    if (e.units <= room_ && is_reachable) entries_.push_back(e);
  }
  below_.clear();
}

// Takes the entries whose digit is above the first one at which the room runs out, leaves those that share it in
// entries_ and moves those below to below_.
void Knapsack::narrow(Digit digit) {
  if (entries_.size() <= kSortBelow) return;
  histogram_.assign(digit.mask + 1, 0);
  for (const Entry& e : entries_) histogram_[e.key >> digit.shift & digit.mask] += e.units;
  const int32_t critical = first_misfit(histogram_, room_);
  size_t num_kept = 0;
  for (const Entry& e : entries_) {
    const int32_t value = e.key >> digit.shift & digit.mask;
    if (value > critical) take(e);
    if (value < critical) below_.push_back(e);
    if (value == critical) entries_[num_kept++] = e;
  }
  entries_.resize(num_kept);
}

// A list may hold a candidate's second step before its first.
void Knapsack::take(const Entry& e) {
  const uint32_t i = e.candidate();
  choices_[i] = std::max(choices_[i], e.is_upgrade() ? kKv : first_choice_[i]);
}

void Knapsack::sort_and_take() {
  const auto before = [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key > b.key : a.id < b.id; };
  if (!std::is_sorted(entries_.begin(), entries_.end(), before)) std::sort(entries_.begin(), entries_.end(), before);
  for (const Entry& e : entries_) {
    if (e.units > room_ || (e.is_upgrade() && choices_[e.candidate()] != kCompact)) continue;
    take(e);
    room_ -= e.units;
  }
}

// What candidate i could get if `room`, all that the starving left, were its own.
uint8_t Knapsack::best_alone(uint32_t i, int64_t room) const {
  const uint8_t start = start_[i];
  if (units_of(i, kKv) - units_of(i, start) <= room) return kKv;
  const bool can_shrink =
      start == kSkip && candidates_.compact_units[i] < candidates_.kv_units[i] && candidates_.compact_units[i] <= room;
  return can_shrink ? kCompact : start;
}

void Knapsack::place_best_alone_first(int64_t room) {
  value_ = value_of(choices_);
  const double value = value_ - (starving_.empty() ? 0.0 : value_of(start_));
  if (starving_.empty() && largest(kv_gain_) <= value) return;
  float best = 0.0F;
  uint32_t best_index = 0;
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    const float alone = gain_of(i, best_alone(i, room)) - gain_of(i, start_[i]);
    if (alone > best) {
      best = alone;
      best_index = i;
    }
  }
  if (best <= value) return;
  const uint8_t choice = best_alone(best_index, room);
  choices_ = start_;
  room_ = room - (units_of(best_index, choice) - units_of(best_index, start_[best_index]));
  choices_[best_index] = choice;
  fill();
  value_ = value_of(choices_);
}

float Knapsack::gain_of(uint32_t i, uint8_t choice) const {
  const float gains[] = {0.0F, compact_gain_[i], kv_gain_[i]};
  return gains[choice];
}

int32_t Knapsack::units_of(uint32_t i, uint8_t choice) const {
  const int32_t units[] = {0, candidates_.compact_units[i], candidates_.kv_units[i]};
  return units[choice];
}

double Knapsack::value_of(const std::vector<uint8_t>& choices) const {
  double sums[4] = {};  // four chains of additions instead of one
  for (uint32_t i = 0; i < choices.size(); ++i) sums[i % 4] += gain_of(i, choices[i]);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

KnapsackResult Knapsack::result() const { return {.choices = choices_, .value = value_, .units = capacity_ - room_}; }

}  // namespace hocket
