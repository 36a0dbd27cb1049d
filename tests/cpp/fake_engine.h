// An engine without a model, for tests of the scheduler: it executes plans the way the worker does and notices every
// wrong one.
//
// The "vector" of a token is a hash of everything it depends on: the salt, all tokens up to it, and which part (layer
// group and vector kind) it is. Executing a plan writes these hashes to a fake pool through the block tables, then
// reads every position of every sequence back: whatever the prefix cache, eviction, preemption and row recycling did,
// each must hold what a run without any of them would have written. The next token is a hash of the last position read,
// so that a request's output is a pure function of its prompt.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/config.h"
#include "scheduler/scheduler.h"
#include "testing.h"

namespace hocket::testing {

using Tokens = std::vector<int32_t>;

struct FakeRequest {
  std::string salt;
  Tokens prompt;
  Tokens output;
  int64_t max_tokens = 1;
  Tokens stops;
  FinishReason reason = FinishReason::kNone;
  int32_t num_cached_tokens = kNone;
  int64_t min_tokens = 0;
};

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 31);
}

class FakeEngine {
 public:
  explicit FakeEngine(const SchedulerConfig& config, int32_t vocab_size = 5, const Estimates& estimates = Estimates())
      : scheduler(config, estimates),
        config_(config),
        vocab_size_(vocab_size),
        pool_(static_cast<size_t>(config.num_units) * config.block_size, 0),
        tables_(static_cast<size_t>(config.max_num_seqs) * config.units_per_block() * config.max_blocks_per_seq(), -1) {
  }

  Scheduler scheduler;
  std::map<uint64_t, FakeRequest> requests;  // accepted, by id; ids are not used twice
  double now = 0.0;
  double pause = 1.0;    // seconds from one step to the next
  int32_t period = 0;    // of a model that repeats itself; 0: it does not
  bool recites = false;  // a model that says the same whatever it is asked, another token at every place

  // What was met, in tokens and blocks
  int64_t num_hidden = 0;
  int64_t num_uncached = 0;
  int64_t num_restored = 0;
  int64_t num_projected = 0;
  int64_t num_rounded = 0;
  int64_t num_in_int8 = 0;      // read
  int64_t num_loaded = 0;       // blocks, from the host tier
  int64_t num_step_loaded = 0;  // of these, while their step ran
  int64_t num_fetched = 0;
  int64_t num_lost = 0;
  int64_t num_pulled = 0;
  int64_t num_unpulled = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_guessed = 0;

  // The tiers: whether a move that is under way ends now, and whether the disk loses the block.
  std::function<bool()> ends_move = [] { return true; };
  std::function<bool()> loses_block = [] { return false; };
  std::function<bool()> fails_sample = [] { return false; };  // the model gives no token

  AddStatus add(RequestSpec spec, Tokens prompt, std::string salt = "", Tokens stops = {}) {
    spec.prompt = prompt;
    spec.cache_salt = salt;
    spec.stop_token_ids = stops;
    const AddStatus status = scheduler.add_request(spec);
    if (status == AddStatus::kOk)
      requests[spec.id] = {salt, prompt, {}, spec.max_tokens, stops, {}, kNone, spec.min_tokens};
    return status;
  }

  AddStatus add(uint64_t id, const std::string& session, Tokens prompt, int64_t max_tokens) {
    RequestSpec spec;
    spec.id = id;
    spec.max_tokens = max_tokens;
    spec.arrival_time = now;
    spec.session_id = session;
    return add(spec, std::move(prompt));
  }

  SessionState advise(const std::string& session, AdvisoryEvent event, double lease = 100.0, Tokens draft = {},
                      const std::string& salt = "") {
    return scheduler.advise({{"", salt, session}, event, lease, draft}, now);
  }

  AddStatus add(uint64_t id, Tokens prompt, int64_t max_tokens, int64_t priority = 0) {
    RequestSpec spec;
    spec.id = id;
    spec.max_tokens = max_tokens;
    spec.priority = priority;
    return add(spec, std::move(prompt));
  }

  bool abort(uint64_t id) {
    if (!scheduler.abort(id)) return false;
    CHECK(requests.at(id).reason == FinishReason::kNone);
    requests.at(id).reason = FinishReason::kAbort;
    return true;
  }

  // One step; `between` runs while the plan is open, and may want to see it. Returns the plan as it was.
  template <typename Between>
  BatchPlan step(Between&& between) {
    end_moves();
    const bool has_work = scheduler.has_work();
    const BatchPlan& plan = scheduler.schedule(now);
    if (plan.empty()) CHECK(!has_work || scheduler.has_moves());
    BatchPlan copy = plan;
    begin_moves(plan);
    if (plan.empty()) {
      spoil_loaded();
      now += pause;
      return copy;
    }
    check_no_ping_pong(plan);
    const Tokens sampled = execute(plan);
    if constexpr (std::invocable<Between, const BatchPlan&>) {
      between(copy);
    } else {
      between();
    }
    read(scheduler.commit(sampled, now));
    now += pause;
    return copy;
  }
  BatchPlan step() {
    return step([] {});
  }

  void run(int32_t max_steps = 100000) {
    for (int32_t i = 0; scheduler.has_work(); ++i) {
      CHECK(i < max_steps);
      step();
      scheduler.check_invariants();
    }
  }

  // Until no move is under way; what that allows is done too.
  void settle() {
    for (int32_t i = 0; i < 1000; ++i) {
      step();
      if (!scheduler.has_moves() && !scheduler.has_work() && !scheduler.has_background_work()) return;
    }
    CHECK(false);
  }

  // The engine starts anew with the disk of `other`.
  void take_disk(const FakeEngine& other) {
    disk_ = other.disk_;
    std::vector<BlockKey> keys;
    for (const auto& [name, content] : disk_) keys.push_back({name.first, name.second});
    scheduler.note_on_disk(keys);
  }

  // The disk drops about every other block.
  void shrink_disk() {
    std::vector<BlockKey> keys;
    for (auto it = disk_.begin(); it != disk_.end();) {
      if (loses_block()) {
        keys.push_back({it->first.first, it->first.second});
        it = disk_.erase(it);
      } else {
        ++it;
      }
    }
    scheduler.forget_on_disk(keys);
  }
  size_t num_on_disk() const { return disk_.size(); }

  // A peer has what the disk of `other` has, and says so of it.
  void take_peer(const FakeEngine& other, int32_t peer) {
    peer_ = other.disk_;
    std::vector<BlockKey> keys;
    for (const auto& [name, content] : peer_) keys.push_back({name.first, name.second});
    scheduler.note_on_peer(keys, peer);
  }

  // What the request must have answered, computed without any scheduler.
  Tokens expected_output(const FakeRequest& request) const {
    Tokens tokens = request.prompt;
    Tokens output;
    uint64_t hash = salt_hash(request.salt);
    for (const int32_t token : tokens) hash = mix(hash, token);
    while (std::ssize(output) < request.max_tokens &&
           std::ssize(request.prompt) + std::ssize(output) < config_.max_model_len) {
      output.push_back(next_token(hash, tokens));
      tokens.push_back(output.back());
      hash = mix(hash, output.back());
      const bool is_stop = std::ranges::count(request.stops, output.back()) > 0;
      if (is_stop && std::ssize(output) >= request.min_tokens) break;
    }
    return output;
  }

  const Tokens& output(uint64_t id) const { return requests.at(id).output; }

 private:
  // A function of all tokens so far; where it repeats itself, mostly of the one `period` tokens ago.
  int32_t next_token(uint64_t hash, const Tokens& tokens) const {
    if (recites) return static_cast<int32_t>(1000 + tokens.size());
    const bool repeats = period > 0 && std::ssize(tokens) >= period && (hash >> 32) % 8 != 0;
    return repeats ? tokens[tokens.size() - period] : static_cast<int32_t>(hash % vocab_size_);
  }
  static uint64_t salt_hash(const std::string& salt) { return mix(1, std::hash<std::string>{}(salt)); }

  // ---- the tiers' part ----

  using Content = std::vector<uint64_t>;  // [units_per_block][block_size]
  struct MoveUnderWay {
    int32_t id;
    MoveKind kind;
    int32_t slot;
    Tokens units;
    BlockKey key;
    int32_t peer;
    Content content;
  };

  // Saves read the device now, whatever becomes of the units; loads for the step may be there at once.
  void begin_moves(const BatchPlan& plan) {
    const auto num_units = static_cast<size_t>(config_.units_per_block());
    CHECK_EQ(plan.moves.units.size(), plan.moves.ids.size() * num_units);
    for (size_t i = 0; i < plan.moves.ids.size(); ++i) {
      const auto units = std::span(plan.moves.units).subspan(i * num_units, num_units);
      MoveUnderWay move{plan.moves.ids[i],
                        static_cast<MoveKind>(plan.moves.kinds[i]),
                        plan.moves.slots[i],
                        {units.begin(), units.end()},
                        plan.moves.keys[i],
                        plan.moves.peers[i],
                        {}};
      CHECK(move.peer == kNone || move.kind == MoveKind::kFetch);
      if (move.kind == MoveKind::kSave) {
        for (const int32_t unit : move.units) {
          const auto begin = pool_.begin() + std::ptrdiff_t{unit} * config_.block_size;
          move.content.insert(move.content.end(), begin, begin + config_.block_size);
        }
      }
      CHECK_EQ(move.kind == MoveKind::kSave, static_cast<int32_t>(i) < plan.moves.num_saves);
      moves_.push_back(std::move(move));
    }
    int32_t num_step_loads = 0;
    for (auto move = moves_.end() - std::ssize(plan.moves.ids); move != moves_.end(); ++move) {
      if (move->kind != MoveKind::kStepLoad) continue;
      ++num_step_loads;
      load(*move);
    }
    CHECK_EQ(plan.moves.num_step_loads, num_step_loads);
    CHECK(num_step_loads == 0 || !plan.empty());
    num_step_loaded += num_step_loads;
  }

  // Loads write the device at any time until they end, but for what a plan has yet to project.
  void spoil_loaded() {
    for (const MoveUnderWay& move : moves_) {
      if (move.kind != MoveKind::kLoad) continue;
      for (const int32_t unit : move.units)
        std::fill_n(pool_.begin() + unit * config_.block_size, config_.block_size, 0);
    }
  }

  void load(const MoveUnderWay& move) {
    ++num_loaded;
    for (size_t i = 0; i < move.units.size(); ++i) {
      std::copy_n(host_.at(move.slot).begin() + static_cast<std::ptrdiff_t>(i) * config_.block_size, config_.block_size,
                  pool_.begin() + std::ptrdiff_t{move.units[i]} * config_.block_size);
    }
  }

  void end_moves() {
    std::vector<int32_t> done, failed;
    std::erase_if(moves_, [&](MoveUnderWay& move) {
      if (!ends_move()) return false;
      (end_move(move) ? done : failed).push_back(move.id);
      return true;
    });
    scheduler.complete_moves(done, failed);
  }

  bool end_move(const MoveUnderWay& move) {
    const std::pair name{move.key.low, move.key.high};
    switch (move.kind) {
      case MoveKind::kSave:
        host_[move.slot] = move.content;
        return true;
      case MoveKind::kLoad:
        load(move);
        return true;
      case MoveKind::kStepLoad:
        return true;
      case MoveKind::kStore:
        disk_[name] = host_.at(move.slot);
        return true;
      case MoveKind::kFetch:
        if (move.peer != kNone) return pull(move);
        if (loses_block() || !disk_.contains(name)) {
          disk_.erase(name);
          ++num_lost;
          return false;
        }
        ++num_fetched;
        host_[move.slot] = disk_.at(name);
        return true;
    }
    return false;
  }

  bool pull(const MoveUnderWay& move) {
    const auto found = peer_.find({move.key.low, move.key.high});
    if (loses_block() || found == peer_.end()) {
      ++num_unpulled;
      return false;
    }
    ++num_pulled;
    host_[move.slot] = found->second;
    return true;
  }

  // A draft's tokens are the scheduler's own.
  const FakeRequest& request_of(uint64_t id) {
    if (!Scheduler::is_draft_id(id)) return requests.at(id);
    const auto tokens = scheduler.known_tokens(id);
    return drafts_[id] = {scheduler.cache_salt(id), {tokens.begin(), tokens.end()}, {}, 1, {}, {}, kNone};
  }
  const FakeRequest& request_of(uint64_t id) const {
    return Scheduler::is_draft_id(id) ? drafts_.at(id) : requests.at(id);
  }

  // ---- the worker's part ----

  Tokens execute(const BatchPlan& plan) {
    check_shape(plan);
    copy_to_host(plan);
    read_projected(plan);
    read_rounded(plan);
    spoil_loaded();
    for (size_t i = 0; i < plan.table.index.size(); ++i) {
      tables_.at(plan.table.index[i]) = plan.table.unit[i];
    }
    write_projected(plan);
    write_rounded(plan);
    copy_to_device(plan);
    for (int32_t s = 0; s < plan.num_seqs(); ++s) write_sequence(plan, s);
    for (int32_t s = 0; s < plan.num_seqs(); ++s) read_sequence(plan, s);
    Tokens sampled;
    for (const int32_t s : plan.sample_seqs) {
      const int32_t token = next_token(prefix_hashes(plan, s).back(), tokens_of(plan, s));
      sampled.push_back(fails_sample() ? kNoToken : token);
    }
    return sampled;
  }

  void check_shape(const BatchPlan& plan) {
    CHECK(plan.num_tokens() <= config_.max_num_batched_tokens);
    CHECK(plan.num_seqs() <= config_.max_num_seqs);
    CHECK_EQ(plan.query_start.size(), plan.num_seqs() + 1);
    CHECK_EQ(plan.query_start.back(), plan.num_tokens());
    std::vector<uint8_t> row_used(config_.max_num_seqs, 0);
    Tokens samples;
    bool in_prefills = false;
    for (int32_t s = 0; s < plan.num_seqs(); ++s) {
      const FakeRequest& request = request_of(plan.request_ids[s]);
      CHECK(request.reason == FinishReason::kNone);
      const Tokens known = tokens_of(plan, s);
      const bool is_guess = std::ssize(known) > std::ssize(known_tokens(request));
      CHECK_EQ(row_used.at(plan.rows[s])++ > 0, is_guess);
      if (is_guess) CHECK_EQ(plan.request_ids[s - 1], plan.request_ids[s]);
      num_guessed += is_guess;
      const int32_t num_query = plan.query_start[s + 1] - plan.query_start[s];
      CHECK(num_query >= 1 && plan.seq_lens[s] <= std::ssize(known));
      for (int32_t i = 0; i < num_query; ++i) {
        const int32_t token = plan.query_start[s] + i;
        const int32_t position = plan.seq_lens[s] - num_query + i;
        CHECK_EQ(plan.positions[token], position);
        CHECK_EQ(plan.token_ids[token], known[position]);
        CHECK_EQ(plan.token_row[token], plan.rows[s]);
      }
      const bool reaches_end = plan.seq_lens[s] == std::ssize(known);
      const bool is_decode = num_query == 1 && reaches_end;
      CHECK(!(in_prefills && is_decode));
      in_prefills = !is_decode;
      if (is_guess) CHECK(is_decode);
      if (Scheduler::is_draft_id(plan.request_ids[s])) num_draft_tokens += num_query;
      if (reaches_end) samples.push_back(s);
    }
    CHECK_EQ(plan.sample_seqs, samples);
    check_forms(plan);
  }

  void check_forms(const BatchPlan& plan) const {
    Tokens recomputed;
    const size_t num_kinds = plan.forms.cache_kinds.size();
    CHECK(num_kinds == 0 || num_kinds == plan.rows.size());
    CHECK_EQ(plan.forms.missing_tokens.size(), config_.has_forms() ? num_kinds : 0);
    for (size_t s = 0; num_kinds == 0 && s < plan.rows.size(); ++s)
      CHECK_EQ(scheduler.num_missing_tokens(plan.rows[s]), 0);
    for (size_t s = 0; s < plan.forms.missing_tokens.size(); ++s) {
      CHECK_EQ(plan.forms.missing_tokens[s], scheduler.num_missing_tokens(plan.rows[s]));
      const Tokens known = known_tokens(request_of(plan.request_ids[s]));
      recomputed.insert(recomputed.end(), known.begin(), known.begin() + plan.forms.uncached_tokens[s]);
    }
    CHECK_EQ(plan.forms.uncached_token_ids, recomputed);
    CHECK_EQ(plan.forms.projected_units.size(), plan.forms.projections.size() * config_.hidden_units_per_block());
    for (const Projection& projection : plan.forms.projections) CHECK(scheduler.is_row_in_use(projection.row));
    CHECK_EQ(plan.forms.rounded_units.size(), plan.forms.roundings.size() * config_.units_per_block());
    for (const Rounding& rounding : plan.forms.roundings) CHECK(scheduler.is_row_in_use(rounding.row));
  }

  static Tokens known_tokens(const FakeRequest& request) {
    Tokens known = request.prompt;
    known.insert(known.end(), request.output.begin(), request.output.end());
    return known;
  }

  // What the sequence attends to, and more: the known tokens, and those that are guessed up to it.
  Tokens tokens_of(const BatchPlan& plan, int32_t s) const {
    Tokens tokens = known_tokens(request_of(plan.request_ids[s]));
    const auto num_guesses = plan.seq_lens[s] - static_cast<int32_t>(std::ssize(tokens));
    for (int32_t i = num_guesses; i > 0; --i) tokens.push_back(plan.token_ids.at(plan.query_start[s - i + 1]));
    return tokens;
  }

  std::vector<uint64_t> prefix_hashes(const BatchPlan& plan, int32_t s) const {
    const FakeRequest& request = request_of(plan.request_ids[s]);
    std::vector<uint64_t> hashes;
    uint64_t hash = salt_hash(request.salt);
    const Tokens known = tokens_of(plan, s);
    for (int32_t p = 0; p < plan.seq_lens[s]; ++p) hashes.push_back(hash = mix(hash, known[p]));
    return hashes;
  }

  uint64_t& vector_at(Row row, int32_t part, int32_t position) {
    const size_t entry =
        (size_t(row) * config_.units_per_block() + part) * config_.max_blocks_per_seq() + position / config_.block_size;
    return pool_.at(size_t(tables_.at(entry)) * config_.block_size + position % config_.block_size);
  }

  // Nobody loses memory to growth within block_size steps of an admission (device_memory.h). Under priority a request
  // may be displaced in the step that admits another.
  void check_no_ping_pong(const BatchPlan& plan) {
    for (const uint64_t id : plan.preempted_ids) running_.erase(id);
    bool any_admitted = false;
    for (const uint64_t id : plan.request_ids) any_admitted |= running_.insert(id).second;
    const bool is_for_growth = config_.policy == "fcfs" && !config_.enable_partial_caching &&
                               config_.num_host_units == 0 && !plan.preempted_ids.empty();
    const int32_t num_steps = (config_.block_size - 1) / (1 + config_.max_guessed_tokens) + 1;
    if (is_for_growth) CHECK(plan.step_id - last_admission_ >= num_steps);
    if (any_admitted) last_admission_ = plan.step_id;
  }

  // ---- forms: what a position's vectors are, and where ----

  static uint64_t vector_of(uint64_t hash, CacheKind kind, int32_t part) {
    return mix(hash, 1000 * static_cast<int32_t>(kind) + part);
  }
  int32_t num_parts(CacheKind kind) const {
    return kind == CacheKind::kKv ? config_.units_per_block() : config_.compact_units_per_block();
  }
  void write_position(Row row, int32_t position, uint64_t hash, CacheKind kind) {
    for (int32_t part = 0; part < num_parts(kind); ++part) vector_at(row, part, position) = vector_of(hash, kind, part);
  }
  void check_position(Row row, int32_t position, uint64_t hash, CacheKind kind) {
    for (int32_t part = 0; part < num_parts(kind); ++part) {
      CHECK_EQ(vector_at(row, part, position), vector_of(hash, kind, part));
    }
  }

  struct Saved {
    std::vector<uint64_t> hashes;
    CacheKind kind;
  };

  std::vector<uint64_t> hashes_of(uint64_t id) const {
    const FakeRequest& request = request_of(id);
    std::vector<uint64_t> hashes;
    uint64_t hash = salt_hash(request.salt);
    for (const int32_t token : known_tokens(request)) hashes.push_back(hash = mix(hash, token));
    return hashes;
  }

  // The host's copy is taken on trust as far as hidden states of a KV row go: nobody has kept them here.
  void copy_to_host(const BatchPlan& plan) {
    for (const HostTransfer& t : plan.transfers) {
      if (!t.is_to_host) continue;
      CHECK_EQ(t.begin_token, 0);
      const auto hashes = hashes_of(t.request_id);
      CHECK(t.end_token <= std::ssize(hashes));
      saved_[t.request_id] = {{hashes.begin(), hashes.begin() + t.end_token}, t.kind};
    }
  }

  void copy_to_device(const BatchPlan& plan) {
    for (const HostTransfer& t : plan.transfers) {
      if (t.is_to_host) continue;
      const Saved& saved = saved_.at(t.request_id);
      CHECK(saved.kind == t.kind && std::ssize(saved.hashes) == t.end_token && t.begin_token < t.end_token);
      const CacheKind kind = kind_of_row(plan, t.row);
      CHECK(t.kind == CacheKind::kHidden || kind == CacheKind::kKv);
      num_restored += t.end_token - t.begin_token;
      for (int32_t p = t.begin_token; p < t.end_token; ++p) write_position(t.row, p, saved.hashes[p], kind);
      saved_.erase(t.request_id);
    }
  }

  CacheKind kind_of_row(const BatchPlan& plan, Row row) const {
    const auto s = std::ranges::find(plan.rows, row) - plan.rows.begin();
    if (s == std::ssize(plan.rows) || plan.forms.cache_kinds.empty()) return CacheKind::kKv;
    return static_cast<CacheKind>(plan.forms.cache_kinds[s]);
  }

  void read_projected(const BatchPlan& plan) {
    projected_.clear();
    const int32_t num_units = config_.hidden_units_per_block();
    for (size_t i = 0; i < plan.forms.projections.size(); ++i) {
      for (int32_t part = 0; part < num_units; ++part) {
        const int32_t unit = plan.forms.projected_units.at(i * num_units + part);
        for (int32_t k = 0; k < config_.block_size; ++k) {
          projected_.push_back(pool_.at(size_t(unit) * config_.block_size + k));
        }
      }
    }
  }

  // Where the hidden states are those of the row's request, K and V become its K and V, also if it computes nothing in
  // this step.
  void write_projected(const BatchPlan& plan) {
    for (int32_t s = 0; s < plan.num_seqs(); ++s) request_of_row_[plan.rows[s]] = plan.request_ids[s];
    size_t next = 0;
    for (const Projection& projection : plan.forms.projections) {
      const auto hashes = hashes_of(request_of_row_.at(projection.row));
      for (int32_t part = 0; part < config_.hidden_units_per_block(); ++part) {
        for (int32_t k = 0; k < config_.block_size; ++k, ++next) {
          const int32_t p = projection.block_index * config_.block_size + k;
          if (part > 0 || p >= std::ssize(hashes)) continue;
          if (projected_[next] != vector_of(hashes[p], CacheKind::kHidden, part)) continue;
          write_position(projection.row, p, hashes[p], CacheKind::kKv);
          ++num_projected;
        }
      }
    }
  }

  void read_rounded(const BatchPlan& plan) {
    rounded_.clear();
    for (const int32_t unit : plan.forms.rounded_units) {
      for (int32_t k = 0; k < config_.block_size; ++k)
        rounded_.push_back(pool_.at(size_t(unit) * config_.block_size + k));
    }
  }

  // Where K and V of a layer group are those of the row's request, they become its K and V in int8.
  void write_rounded(const BatchPlan& plan) {
    for (int32_t s = 0; s < plan.num_seqs(); ++s) request_of_row_[plan.rows[s]] = plan.request_ids[s];
    size_t next = 0;
    for (const Rounding& rounding : plan.forms.roundings) {
      const auto hashes = hashes_of(request_of_row_.at(rounding.row));
      for (int32_t group = 0; group < config_.num_groups(); ++group, next += size_t(2) * config_.block_size) {
        for (int32_t k = 0; k < config_.block_size; ++k) {
          const int32_t p = rounding.block_index * config_.block_size + k;
          if (p >= std::ssize(hashes)) continue;
          const bool is_k = rounded_[next + k] == vector_of(hashes[p], CacheKind::kKv, 2 * group);
          const bool is_v =
              rounded_[next + config_.block_size + k] == vector_of(hashes[p], CacheKind::kKv, 2 * group + 1);
          if (!is_k || !is_v) continue;
          vector_at(rounding.row, group, p) = vector_of(hashes[p], CacheKind::kInt8, group);
          ++num_rounded;
        }
      }
    }
  }

  int32_t num_recomputed(const BatchPlan& plan, int32_t s) const {
    return plan.forms.uncached_tokens.empty() ? 0 : plan.forms.uncached_tokens[s];
  }
  int32_t num_missing(const BatchPlan& plan, int32_t s) const {
    return plan.forms.missing_tokens.empty() ? 0 : plan.forms.missing_tokens[s];
  }
  void write_sequence(const BatchPlan& plan, int32_t s) {
    const auto hashes = prefix_hashes(plan, s);
    const Row row = plan.rows[s];
    const int32_t num_query = plan.query_start[s + 1] - plan.query_start[s];
    const CacheKind kind =
        plan.forms.cache_kinds.empty() ? CacheKind::kKv : static_cast<CacheKind>(plan.forms.cache_kinds[s]);
    const auto write = [&](int32_t p) {
      if (p >= num_missing(plan, s)) write_position(row, p, hashes[p], kind);
    };
    for (int32_t p = 0; p < num_recomputed(plan, s); ++p) write(p);
    for (int32_t p = plan.seq_lens[s] - num_query; p < plan.seq_lens[s]; ++p) write(p);
  }

  void read_sequence(const BatchPlan& plan, int32_t s) {
    const auto hashes = prefix_hashes(plan, s);
    const Row row = plan.rows[s];
    const int32_t begin = plan.seq_lens[s] - (plan.query_start[s + 1] - plan.query_start[s]);
    const CacheKind kind =
        plan.forms.cache_kinds.empty() ? CacheKind::kKv : static_cast<CacheKind>(plan.forms.cache_kinds[s]);
    const int32_t hidden = plan.forms.hidden_tokens.empty() ? 0 : plan.forms.hidden_tokens[s];
    const bool is_whole = kind == CacheKind::kInt8;
    num_hidden += hidden;
    num_in_int8 += is_whole ? plan.seq_lens[s] : 0;
    num_uncached += num_recomputed(plan, s);
    for (int32_t p = 0; p < plan.seq_lens[s]; ++p) {
      if (p < num_missing(plan, s)) {
        CHECK(p < num_recomputed(plan, s) || p >= begin);  // at hand in this step
      } else {
        check_position(row, p, hashes[p], is_whole || p >= begin - hidden ? kind : CacheKind::kKv);
      }
    }
  }

  // ---- the engine loop's part ----

  void read(const StepOutput& output) {
    for (size_t i = 0; i < output.request_ids.size(); ++i) {
      FakeRequest& request = requests.at(output.request_ids[i]);
      CHECK(request.reason == FinishReason::kNone);
      request.reason = static_cast<FinishReason>(output.finish_reasons[i]);
      CHECK_EQ(request.reason == FinishReason::kError, output.token_ids[i] == kNoToken);
      if (request.reason == FinishReason::kError) continue;
      request.output.push_back(output.token_ids[i]);
      CHECK_EQ(output.num_output_tokens[i], request.output.size());
      if (request.output.size() == 1) request.num_cached_tokens = output.num_cached_tokens[i];
      CHECK_EQ(output.num_cached_tokens[i], request.num_cached_tokens);
      CHECK(request.num_cached_tokens >= 0 && request.num_cached_tokens < std::ssize(request.prompt));
      if (request.reason != FinishReason::kNone) CHECK_EQ(request.output, expected_output(request));
    }
  }

  const SchedulerConfig config_;
  const int32_t vocab_size_;
  std::vector<uint64_t> pool_;  // [num_units][block_size]
  std::set<uint64_t> running_;
  int64_t last_admission_ = 0;  // step_id
  std::map<uint64_t, Saved> saved_;
  std::vector<MoveUnderWay> moves_;
  std::map<int32_t, Content> host_;  // by slot
  std::map<std::pair<uint64_t, uint64_t>, Content> disk_;
  std::map<std::pair<uint64_t, uint64_t>, Content> peer_;
  std::map<uint64_t, FakeRequest> drafts_;
  std::vector<uint64_t> projected_;
  std::vector<uint64_t> rounded_;
  std::map<Row, uint64_t> request_of_row_;  // the last one
  std::vector<int32_t> tables_;             // [max_num_seqs][units_per_block][max_blocks_per_seq]
};

}  // namespace hocket::testing
