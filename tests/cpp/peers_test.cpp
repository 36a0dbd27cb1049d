// Peers: what another engine has computed comes from its host to ours, or is computed; and never anything else.

#include <random>
#include <set>

#include "base/block_key.h"
#include "fake_engine.h"
#include "testing.h"
#include "tiers/tier_index.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::Tokens;

// Blocks of 4 tokens and 2 units.
SchedulerConfig peer_config(int32_t num_blocks, int32_t num_host_blocks, bool enable_disk = false) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 4 * num_blocks;
  config.num_host_blocks = num_host_blocks;
  config.enable_disk = enable_disk;
  return config;
}

Tokens prompt(int32_t first, int32_t num) {
  Tokens tokens(num);
  for (int32_t i = 0; i < num; ++i) tokens[i] = first + i;
  return tokens;
}

const SessionName kSession{"", "", "s"};

// Has computed a session of 41 tokens.
struct Source : FakeEngine {
  Source() : FakeEngine(peer_config(20, 100, true)) {
    add(1, "s", prompt(1, 41), 1);
    run();
    settle();
  }
};

TierCounters counters(const FakeEngine& engine) { return engine.scheduler.stats().tiers; }

TEST(peers, an_index_forgets_what_it_heard_longest_ago_of_peers) {
  TierIndex index(2);
  const int32_t most = index.max_on_peers();
  for (int32_t i = 0; i < most + 10; ++i) index.set_on_peer({static_cast<uint64_t>(i), 1}, i % 3);
  index.check_invariants();
  CHECK_EQ(index.num_on_peers(), most);
  CHECK_EQ(index.find({9, 1}), kNone);
  CHECK_EQ(index.peer(index.find({10, 1})), 1);
  index.set_on_peer({10, 1}, 2);  // the last one counts, and it is the newest now
  CHECK_EQ(index.peer(index.find({10, 1})), 2);
  index.set_on_peer({0, 2}, 0);
  CHECK_EQ(index.find({11, 1}), kNone);
  const EntryId arriving = index.take_slot({12, 1});
  index.clear_peer(0);
  index.check_invariants();
  CHECK_EQ(index.peer(arriving), kNone);
  CHECK_EQ(index.find({15, 1}), kNone);
  index.fail_arrival(arriving);
  CHECK_EQ(index.find({12, 1}), kNone);
  index.clear_peer(1);
  index.clear_peer(2);
  index.check_invariants();
  CHECK_EQ(index.num_on_peers(), 0);
}

TEST(peers, an_advised_session_comes_from_its_peer) {
  const Source there;
  FakeEngine here(peer_config(20, 100));
  CHECK(!here.advise("s", AdvisoryEvent::kTyping).is_known);
  here.take_peer(there, 7);
  CHECK(here.scheduler.adopt_session(kSession, there.scheduler.session_tokens(kSession)));
  const SessionState report = here.advise("s", AdvisoryEvent::kTyping);
  CHECK_EQ(report.action, SessionAction::kPrefetch);
  CHECK((report.tier_tokens == std::array<int32_t, 3>{}));
  here.settle();
  CHECK_EQ(here.num_pulled, 10);
  CHECK_EQ(here.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 40);
  Tokens next = prompt(1, 41);
  next.insert(next.end(), {7, 7, 7, 7});
  here.add(2, "s", next, 3);
  here.run();
  CHECK_EQ(here.requests.at(2).num_cached_tokens, 40);
  CHECK_EQ(counters(here).num_pulled_blocks, 10);
  here.scheduler.check_invariants();
}

TEST(peers, a_session_is_pulled_to_the_host_without_an_announcement) {
  const Source there;
  FakeEngine here(peer_config(20, 100, true));
  here.take_peer(there, 0);
  CHECK_EQ(here.scheduler.pull_session(kSession), 0);  // it is unknown
  here.scheduler.adopt_session(kSession, there.scheduler.session_tokens(kSession));
  CHECK_EQ(here.scheduler.pull_session(kSession), 10);
  CHECK_EQ(here.scheduler.pull_session(kSession), 0);  // it is under way
  here.settle();
  const SessionState report = here.advise("s", AdvisoryEvent::kQuery);
  CHECK_EQ(report.tier_tokens[1], 40);
  CHECK_EQ(here.num_on_disk(), 10u);  // what came from a peer is ours
  CHECK_EQ(here.scheduler.stats().num_leases, 0);
}

TEST(peers, what_a_peer_does_not_give_is_computed) {
  for (int32_t which = 1; which <= 10; ++which) {
    const Source there;
    FakeEngine here(peer_config(20, 100));
    here.take_peer(there, 1);
    int32_t num_pulls = 0;
    here.loses_block = [&] { return ++num_pulls >= which; };
    here.add(2, "s", prompt(1, 41), 2);
    here.run();
    CHECK_EQ(here.requests.at(2).num_cached_tokens, 4 * (which - 1));
    CHECK_EQ(counters(here).num_pulled_blocks, which - 1);
    CHECK_EQ(counters(here).num_unpulled_blocks, 10 - (which - 1));
    here.settle();
    here.scheduler.check_invariants();
  }
}

TEST(peers, a_peer_that_is_slower_than_computing_is_not_asked) {
  for (const double bytes_per_second : {1.0, 1e9}) {
    Estimates estimates;
    LatencyCoefficients k;
    k.prefill_token = 0.01;
    k.decode_seq = 0.01;
    estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
    estimates.unit_bytes = 100;
    estimates.host_bytes_per_second = 1e9;
    FakeEngine here(peer_config(20, 100), 5, estimates);
    const Source there;
    for (int32_t i = 0; i < 100; ++i) here.scheduler.note_peer_rate(3, bytes_per_second);
    here.take_peer(there, 3);
    here.add(2, "s", prompt(1, 41), 1);
    here.run();
    CHECK_EQ(here.num_pulled > 0, bytes_per_second > 1.0);
  }
}

// A pull that is under way for a session keeps its request waiting only while that is sooner than computing.
TEST(peers, a_request_that_comes_early_does_not_wait_for_a_pull_that_takes_too_long) {
  for (const double bytes_per_second : {1.0, 1e9}) {
    Estimates estimates;
    LatencyCoefficients k;
    k.prefill_token = 0.01;
    k.decode_seq = 0.01;
    estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
    estimates.unit_bytes = 100;
    estimates.host_bytes_per_second = 1e9;
    FakeEngine here(peer_config(20, 100), 5, estimates);
    const Source there;
    here.take_peer(there, 3);
    here.scheduler.adopt_session(kSession, there.scheduler.session_tokens(kSession));
    here.advise("s", AdvisoryEvent::kTyping);
    bool ends = false;
    here.ends_move = [&] { return ends; };
    here.step();
    here.step();
    for (int32_t i = 0; i < 100; ++i) here.scheduler.note_peer_rate(3, bytes_per_second);
    here.add(2, "s", prompt(1, 45), 1);
    for (int32_t i = 0; i < 20; ++i) here.step();
    CHECK_EQ(here.requests.at(2).reason != FinishReason::kNone, bytes_per_second == 1.0);
    ends = true;
    here.run();
    here.settle();
    here.scheduler.check_invariants();
  }
}

TEST(peers, what_is_lent_stays_where_it_is) {
  FakeEngine engine(peer_config(10, 12));
  engine.add(1, prompt(1, 29), 1);
  engine.run();
  engine.settle();
  std::vector<BlockKey> keys;
  append_block_keys(root_key("", ""), prompt(1, 28), 4, &keys);
  keys.push_back({1, 2});
  std::vector<int32_t> slots, again;
  engine.scheduler.lend(keys, &slots);
  CHECK_EQ(slots.size(), 8u);
  CHECK_EQ(slots.back(), kNone);
  CHECK_EQ(std::set<int32_t>(slots.begin(), slots.end()).size(), 8u);
  for (uint64_t i = 2; i < 5; ++i) {
    engine.add(i, prompt(100000 * static_cast<int32_t>(i), 36), 1);
    engine.run();
  }
  engine.settle();
  engine.scheduler.lend(keys, &again);
  CHECK(slots == again);
  keys.pop_back();
  engine.scheduler.take_back(keys);
  engine.scheduler.take_back(keys);
  engine.add(9, prompt(900000, 36), 1);
  engine.run();
  engine.settle();
  engine.scheduler.check_invariants();
}

TEST(peers, a_session_that_no_request_could_have_is_not_adopted) {
  FakeEngine engine(peer_config(10, 12));
  CHECK(!engine.scheduler.adopt_session({"", "", ""}, prompt(1, 8)));
  CHECK(!engine.scheduler.adopt_session(kSession, {}));
  CHECK(!engine.scheduler.adopt_session(kSession, Tokens{1, -2}));
  CHECK(!engine.scheduler.adopt_session(kSession, prompt(1, 400)));
  CHECK(engine.scheduler.adopt_session({"t", "salt", "id"}, prompt(1, 8)));
  CHECK(engine.scheduler.adopt_session({"t", "salt", "id"}, prompt(1, 12)));
  CHECK_EQ(engine.scheduler.session_tokens({"t", "salt", "id"}).size(), 12u);
  int32_t num_seen = 0;
  engine.scheduler.visit_recent_sessions(10, [&](const SessionName& name) {
    ++num_seen;
    CHECK(name.tenant == "t" && name.salt == "salt" && name.id == "id");
  });
  CHECK_EQ(num_seen, 1);
}

// The fake engine compares every vector that is read with what a run without any cache would have written.
TEST(peers, whatever_peers_say_give_and_lose_tokens_are_right) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    const auto roll = [&](uint64_t n) { return random() % n; };
    FakeEngine there(peer_config(30, 200, true));
    for (uint64_t id = 1; id <= 6; ++id) {
      there.add(id, "s" + std::to_string(id % 3), prompt(static_cast<int32_t>(1 + id % 3), 20 + 10 * (id / 3)), 4);
      there.run();
    }
    there.settle();
    FakeEngine here(peer_config(12, 16, seed % 2 == 0));
    here.ends_move = [&] { return roll(3) > 0; };
    here.loses_block = [&] { return roll(8) == 0; };
    std::vector<std::vector<BlockKey>> lent;
    uint64_t next_id = 100;
    for (int32_t i = 0; i < 200; ++i) {
      const std::string session = "s" + std::to_string(roll(3));
      const SessionName name{"", "", session};
      const auto first = static_cast<int32_t>(1 + roll(3));
      switch (roll(9)) {
        case 0:
          here.take_peer(there, static_cast<int32_t>(roll(3)));
          break;
        case 1:
          here.scheduler.adopt_session(name, there.scheduler.session_tokens(name));
          break;
        case 2:
          here.scheduler.pull_session(name);
          break;
        case 3:
          here.advise(session, roll(2) ? AdvisoryEvent::kTyping : AdvisoryEvent::kCancel, 20.0);
          break;
        case 4:
          here.add(next_id++, session, prompt(first, static_cast<int32_t>(5 + roll(35))), 1 + roll(4));
          break;
        case 5:
          if (next_id > 100) here.abort(100 + roll(next_id - 100));
          break;
        case 6:
          here.scheduler.forget_peer(static_cast<int32_t>(roll(3)));
          break;
        case 7: {
          std::vector<BlockKey> keys, found;
          append_block_keys(root_key("", ""), prompt(first, 12), 4, &keys);
          std::vector<int32_t> slots;
          if (lent.size() < 2) {
            here.scheduler.lend(keys, &slots);
            for (size_t k = 0; k < slots.size(); ++k) {
              if (slots[k] != kNone) found.push_back(keys[k]);
            }
            lent.push_back(found);
          }
          break;
        }
        default:
          if (!lent.empty()) {
            here.scheduler.take_back(lent.back());
            lent.pop_back();
          }
      }
      here.step();
      here.scheduler.check_invariants();
    }
    for (const auto& keys : lent) here.scheduler.take_back(keys);
    here.ends_move = [] { return true; };
    here.run();
    here.settle();
    here.scheduler.check_invariants();
    for (const auto& [id, request] : here.requests) {
      if (request.reason == FinishReason::kLength) CHECK(request.output == here.expected_output(request));
    }
  }
}

}  // namespace
}  // namespace hocket
