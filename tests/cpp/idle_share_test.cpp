// What stands back behind others: offline work behind online requests without an ITL target, drafts behind everybody.
// They lengthen a step by next to nothing, once in kSteps by what was saved up, and run freely when nobody is served.

#include "stages/idle_share.h"

#include <set>

#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::linear_seconds;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;
using testing::Tokens;

constexpr double kBase = 0.010;  // seconds of a step
constexpr double kToken = 0.0001;
constexpr double kLongest = 0.020;  // that offline work and drafts may make of a step
constexpr double kRounding = 1e-9;

SchedulerConfig idle_config(int32_t num_rows = 16) {
  SchedulerConfig config = timed_config("hocket", /*num_blocks=*/4000, num_rows);
  config.max_offline_step_ms = 1000 * kLongest;
  config.max_model_len = 2000;
  return config;
}

bool has_others(const Event& event, uint64_t id) { return event.served.size() > 1 || !event.served.contains(id); }

TEST(idle_share, what_is_saved_is_a_share_of_the_time_and_is_spent_in_one_step) {
  IdleShare share;
  double now = 0.0;
  for (int32_t i = 0; i < IdleShare::kSteps; ++i) {
    CHECK_EQ(share.saved_seconds(now), 0.0);
    share.note_step(true, i % 2 == 0, now += 0.5);
  }
  CHECK_EQ(share.saved_seconds(now), IdleShare::kShare * now);
  share.note_step(true, false, now += 0.5);  // nobody wanted it
  CHECK_EQ(share.saved_seconds(now), IdleShare::kShare * now);
  share.note_step(true, true, now += 0.5);
  CHECK_EQ(share.saved_seconds(now), 0.0);
}

TEST(idle_share, nothing_is_saved_while_nobody_is_served) {
  IdleShare share;
  for (int32_t i = 0; i < 2 * IdleShare::kSteps; ++i) share.note_step(i % 100 != 0, true, i);
  CHECK_EQ(share.saved_seconds(1000.0), 0.0);
}

TEST(idle_share, beside_others_its_tokens_are_bounded_whatever_the_predictions_say) {
  CHECK_EQ(IdleShare::room_beside(1.0, 1, 0.0).tokens, 0);
  CHECK_EQ(IdleShare::room_beside(1.0, 40, 0.0).tokens, 2);
  CHECK(IdleShare::room_beside(1.0, 40, 0.1).tokens > 1000);  // what was saved is of time
}

// Gaps of an online request beside work that stands back: how many were longer than its share allows.
struct Gaps {
  int32_t num_long = 0;
  int32_t num_with_others = 0;
  double seconds = 0.0;
};
Gaps decode_beside_others(TimedEngine* engine, uint64_t id, int32_t num_steps) {
  Gaps gaps;
  for (int32_t i = 0; i < num_steps; ++i) {
    const Event event = engine->step();
    CHECK(event.sampled.contains(id));
    const double seconds = event.end - event.begin;
    CHECK(seconds <= kLongest + kRounding);
    gaps.num_long += seconds > (1 + IdleShare::kShare) * (kBase + kToken) + kRounding;
    gaps.num_with_others += has_others(event, id);
    gaps.seconds += seconds;
  }
  return gaps;
}

TEST(idle_share, offline_work_lengthens_few_gaps_and_does_not_stop) {
  TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
  for (int32_t i = 0; i < 4; ++i) {
    engine.add({.num_prompt = 8, .request_class = kOfflineClass, .max_tokens = 700});
  }
  engine.step();
  const uint64_t chat = engine.add({.num_prompt = 8, .max_tokens = 800});
  engine.step();
  for (int32_t i = 0; i < 4; ++i) engine.add({.num_prompt = 400, .request_class = kOfflineClass});
  const Gaps gaps = decode_beside_others(&engine, chat, 600);
  CHECK(gaps.num_long >= 1 && gaps.num_long * IdleShare::kSteps <= 600);
  CHECK(gaps.num_with_others >= gaps.num_long && gaps.num_with_others * IdleShare::kSteps <= 600);
  CHECK(gaps.seconds <= 600 * (kBase + kToken) * (1 + 2 * IdleShare::kShare) + kRounding);
}

TEST(idle_share, beside_many_that_decode_a_few_tokens_of_offline_work_go_along_in_every_step) {
  TimedEngine engine(idle_config(/*num_rows=*/64), linear_seconds(kBase, kToken));
  for (int32_t i = 0; i < 8; ++i) {
    engine.add({.num_prompt = 8, .request_class = kOfflineClass, .max_tokens = 700});
  }
  engine.step();
  std::set<uint64_t> chats;
  for (int32_t i = 0; i < 40; ++i) chats.insert(engine.add({.num_prompt = 8, .max_tokens = 800}));
  while (engine.step().sampled.size() < 40) {
  }
  for (int32_t i = 0; i < 100; ++i) CHECK_EQ(engine.step().served.size(), chats.size() + 2);
}

TEST(idle_share, who_waits_for_the_first_token_without_a_target_feels_it_no_more_than_who_decodes) {
  TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
  for (int32_t i = 0; i < 8; ++i) engine.add({.num_prompt = 400, .request_class = kOfflineClass});
  engine.step();
  const uint64_t chat = engine.add({.num_prompt = 40, .max_tokens = 1});
  const Event event = engine.step();
  CHECK(event.sampled.contains(chat));
  CHECK(event.end - event.begin <= (1 + IdleShare::kShare) * (kBase + 40 * kToken) + kRounding);
}

TEST(idle_share, an_itl_target_says_how_much_offline_work_may_be_felt) {
  TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
  const uint64_t chat = engine.add({.num_prompt = 8, .itl_target = 0.0195, .max_tokens = 800});
  engine.step();
  for (int32_t i = 0; i < 8; ++i) engine.add({.num_prompt = 400, .request_class = kOfflineClass});
  for (int32_t i = 0; i < 20; ++i) {
    const Event event = engine.step();
    CHECK(event.sampled.contains(chat) && event.end - event.begin <= 0.0195 + kRounding);
    CHECK(event.end - event.begin > 1.3 * kBase);
  }
}

TEST(idle_share, offline_work_runs_freely_when_nobody_decodes_online) {
  TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
  const uint64_t bulk = engine.add({.num_prompt = 400, .request_class = kOfflineClass});
  const Event event = engine.step();
  CHECK(event.served.contains(bulk) && event.end - event.begin > 0.8 * kLongest);
}

// A session of its own, and an announcement with a draft of so many tokens.
void announce(TimedEngine* engine, const std::string& name, uint64_t id, int32_t num_tokens) {
  Tokens prompt(9, static_cast<int32_t>(id));
  engine->engine.add(id, name, prompt, 1);
  engine->engine.run();
  Tokens draft = prompt;
  for (int32_t i = 9; i < num_tokens; ++i) draft.push_back(static_cast<int32_t>(id) + i);
  const auto report = engine->engine.advise(name, AdvisoryEvent::kTyping, 1e6, draft);
  CHECK_EQ(report.action, SessionAction::kDraftPrefill);
}

TEST(idle_share, drafts_lengthen_few_gaps_of_who_decodes_and_do_not_stop) {
  for (const int32_t request_class : {kOnlineClass, kOfflineClass}) {
    TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
    for (uint64_t i = 0; i < 4; ++i) announce(&engine, "s" + std::to_string(i), 1000000 + i, 1800);
    engine.engine.now += 1.0;
    const uint64_t reader = engine.add({.num_prompt = 8, .request_class = request_class, .max_tokens = 800});
    engine.step();
    const int64_t num_before = engine.engine.num_draft_tokens;
    const Gaps gaps = decode_beside_others(&engine, reader, 600);
    CHECK(gaps.num_long >= 1 && gaps.num_long * IdleShare::kSteps <= 600);
    CHECK(gaps.seconds <= 600 * (kBase + kToken) * (1 + 2 * IdleShare::kShare) + kRounding);
    CHECK(engine.engine.num_draft_tokens > num_before);
  }
}

TEST(idle_share, a_draft_alone_makes_no_step_longer_than_an_arrival_may_wait) {
  TimedEngine engine(idle_config(), linear_seconds(kBase, kToken));
  announce(&engine, "s", 1000000, 1800);
  int32_t num_steps = 0;
  for (Event event = engine.step(); !event.plan.empty(); event = engine.step(), ++num_steps) {
    CHECK(event.end - event.begin <= kLongest + kRounding);
  }
  CHECK(num_steps >= 1800 / 100);
  CHECK_EQ(engine.engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 1800 / 4 * 4);
}

}  // namespace
}  // namespace hocket
