#include "requests/request.h"

#include <limits>

#include "testing.h"

namespace hocket {
namespace {

const std::vector<int32_t> kPrompt = {5, 6, 7};
const std::vector<int32_t> kStops = {2, 66};  // 66 and 2 share a bit of the mask

RequestSpec spec(int64_t max_tokens, int64_t min_tokens = 0) {
  RequestSpec result;
  result.id = 1;
  result.prompt = kPrompt;
  result.max_tokens = max_tokens;
  result.min_tokens = min_tokens;
  result.stop_token_ids = kStops;
  return result;
}

FinishReason append(RequestTable* table, Slot slot, int32_t token) {
  table->append_token(slot, token);
  return table->finish_reason(slot, token);
}

TEST(request, ends_at_max_tokens) {
  RequestTable table;
  const Slot slot = table.add(spec(2), 100);
  CHECK_EQ(append(&table, slot, 9), FinishReason::kNone);
  CHECK_EQ(append(&table, slot, 9), FinishReason::kLength);
  CHECK_EQ(table.known_tokens(slot), (std::vector<int32_t>{5, 6, 7, 9, 9}));
  CHECK_EQ(table.num_output_tokens(slot), 2);
}

// Whoever asks for them between any two, or never.
TEST(request, all_tokens_are_known_however_many_came_since_they_were_asked_for) {
  for (const int32_t pause : {1, 7, 15, 16, 100}) {
    RequestTable table;
    Slot slot = table.add(spec(100), 1000);
    table.append_token(slot, 1);
    table.free(slot);  // with a token that nobody has asked for
    slot = table.add(spec(100), 1000);
    std::vector<int32_t> expected = kPrompt;
    for (int32_t i = 0; i < 60; ++i) {
      table.append_token(slot, 100 + i);
      expected.push_back(100 + i);
      if (i % pause == 0) CHECK_EQ(table.known_tokens(slot), expected);
    }
    table.num_computed_tokens[slot] = 50;
    expected.resize(50);
    CHECK_EQ(table.computed_tokens(slot), expected);
  }
}

TEST(request, ends_at_the_length_of_the_model) {
  RequestTable table;
  const Slot slot = table.add(spec(int64_t{1} << 40), 4);
  CHECK_EQ(append(&table, slot, 9), FinishReason::kLength);
}

TEST(request, ends_at_a_stop_token_and_only_at_one) {
  RequestTable table;
  const Slot slot = table.add(spec(10), 100);
  CHECK_EQ(append(&table, slot, 130), FinishReason::kNone);  // same bit as 2 and 66
  CHECK_EQ(append(&table, slot, 66), FinishReason::kStop);
}

TEST(request, a_stop_token_before_min_tokens_does_not_end_it) {
  RequestTable table;
  const Slot slot = table.add(spec(10, 3), 100);
  CHECK_EQ(append(&table, slot, 2), FinishReason::kNone);
  CHECK_EQ(append(&table, slot, 2), FinishReason::kNone);
  CHECK_EQ(append(&table, slot, 2), FinishReason::kStop);
}

TEST(request, prior_tokens_are_output) {
  RequestTable table;
  RequestSpec later = spec(2, 3);
  later.prompt = kPrompt;
  later.num_prior_tokens = 1;
  later.arrival_time = 10.0;
  later.last_token_time = 14.0;
  later.targets.tpot = 2.0;
  const Slot slot = table.add(later, 100);
  CHECK_EQ(table.num_prompt_tokens[slot], 2);
  CHECK_EQ(table.num_output_tokens(slot), 1);
  CHECK_EQ(table.pending_seconds(slot, 15.0), 1.0);
  CHECK_EQ(table.cumulative_deadline(slot), 16.0);
  CHECK_EQ(append(&table, slot, 2), FinishReason::kNone);  // the second of at least three
  CHECK_EQ(append(&table, slot, 2), FinishReason::kStop);  // and the last of two to come
}

TEST(request, with_a_ttft_target_deadlines_count_from_arrival_wherever_it_goes_on) {
  RequestTable table;
  RequestSpec later = spec(20);
  later.num_prior_tokens = 2;
  later.arrival_time = 10.0;
  later.last_token_time = 14.0;
  later.targets = {.ttft = 3.0, .tpot = 2.0};
  CHECK_EQ(table.cumulative_deadline(table.add(later, 100)), 17.0);
}

TEST(request, a_stop_token_as_the_last_token_is_a_stop) {
  RequestTable table;
  const Slot slot = table.add(spec(1), 100);
  CHECK_EQ(append(&table, slot, 2), FinishReason::kStop);
}

TEST(request, slots_are_recycled_and_ids_found) {
  RequestTable table;
  const Slot first = table.add(spec(1), 100);
  CHECK_EQ(table.find(1), first);
  table.forget_id(first);
  CHECK_EQ(table.find(1), kNone);
  table.free(first);
  CHECK_EQ(table.num_live(), 0);
  CHECK_EQ(table.add(spec(5), 100), first);
  CHECK_EQ(table.sequence[first], 1);
  CHECK_EQ(table.num_slots(), 1);
}

// ---- time ----

RequestSpec timed(double arrival, const Targets& targets) {
  RequestSpec result = spec(1000);
  result.arrival_time = arrival;
  result.targets = targets;
  return result;
}

void sample(RequestTable* table, Slot slot, double now) {
  table->append_token(slot, 9);
  table->note_token(slot, now);
}

TEST(request, the_first_token_is_due_from_arrival_and_others_from_the_last) {
  RequestTable table;
  const Slot slot = table.add(timed(10.0, {.ttft = 2.0, .itl = 0.5}), 100);
  CHECK_EQ(table.deadline(slot), 12.0);
  CHECK_EQ(table.pending_seconds(slot, 11.0), 1.0);
  sample(&table, slot, 11.5);
  CHECK_EQ(table.deadline(slot), 12.0);
  CHECK_EQ(table.pending_seconds(slot, 11.75), 0.25);
  sample(&table, slot, 20.0);
  CHECK_EQ(table.deadline(slot), 20.5);
}

TEST(request, cumulative_deadlines_count_from_when_the_first_token_was_due) {
  RequestTable table;
  const Slot slot = table.add(timed(10.0, {.ttft = 2.0, .tpot = 0.5}), 100);
  CHECK_EQ(table.deadline(slot), 12.0);
  sample(&table, slot, 10.5);  // early: that is its own
  CHECK_EQ(table.cumulative_deadline(slot), 12.5);
  sample(&table, slot, 10.75);
  CHECK_EQ(table.cumulative_deadline(slot), 13.0);
  CHECK_EQ(table.gap_deadline(slot), std::numeric_limits<double>::infinity());
  CHECK_EQ(table.deadline(slot), 13.0);
}

TEST(request, without_a_ttft_target_cumulative_deadlines_count_from_the_first_token) {
  RequestTable table;
  const Slot slot = table.add(timed(10.0, {.tpot = 0.5}), 100);
  CHECK_EQ(table.deadline(slot), std::numeric_limits<double>::infinity());
  sample(&table, slot, 30.0);
  CHECK(!table.delays[slot].is_late);
  CHECK_EQ(table.deadline(slot), 30.5);
  sample(&table, slot, 30.125);
  CHECK_EQ(table.deadline(slot), 31.0);
}

TEST(request, the_tighter_of_the_two_deadlines_counts) {
  RequestTable table;
  const Slot slot = table.add(timed(10.0, {.ttft = 2.0, .itl = 1.0, .tpot = 0.5}), 100);
  sample(&table, slot, 11.0);
  CHECK_EQ(table.deadline(slot), 12.0);  // last token + ITL
  sample(&table, slot, 12.5);
  CHECK_EQ(table.deadline(slot), 13.0);  // arrival + TTFT + 2 TPOT
}

TEST(request, without_targets_nothing_is_due_and_nobody_is_late) {
  RequestTable table;
  const Slot slot = table.add(spec(1000), 100);
  CHECK_EQ(table.deadline(slot), std::numeric_limits<double>::infinity());
  for (int32_t i = 0; i < 50; ++i) sample(&table, slot, 1000.0 * i);
  CHECK(!table.delays[slot].is_late);
  CHECK_EQ(table.deadline(slot), std::numeric_limits<double>::infinity());
}

TEST(request, a_first_token_after_its_target_is_late_for_good) {
  RequestTable table;
  const Slot timely = table.add(timed(10.0, {.ttft = 2.0, .itl = 100.0}), 100);
  sample(&table, timely, 12.0);  // just in time
  CHECK(!table.delays[timely].is_late);
  RequestTable other;
  const Slot late = other.add(timed(10.0, {.ttft = 2.0, .itl = 100.0}), 100);
  sample(&other, late, 12.25);
  CHECK(other.delays[late].is_late);
  sample(&other, late, 12.5);
  CHECK(other.delays[late].is_late);
}

// Lateness of a request whose gaps before the given output tokens exceed the target.
bool is_late_after(int32_t num_output, const std::vector<int32_t>& late_before) {
  RequestTable table;
  const Slot slot = table.add(timed(0.0, {.ttft = 1.0, .itl = 1.0}), 2000);
  double now = 0.0;
  for (int32_t token = 1; token <= num_output; ++token) {
    now += std::ranges::count(late_before, token) > 0 ? 1.5 : 1.0;
    sample(&table, slot, now);
  }
  return table.delays[slot].is_late != 0;
}

TEST(request, one_long_gap_is_forgiven_and_another_in_every_hundred) {
  CHECK(!is_late_after(2, {2}));
  CHECK(!is_late_after(500, {40}));
  CHECK(is_late_after(3, {2, 3}));
  CHECK(is_late_after(99, {2, 99}));
  CHECK(!is_late_after(100, {2, 100}));
  CHECK(!is_late_after(200, {2, 100, 200}));
  CHECK(is_late_after(199, {2, 100, 199}));
}

// Lateness of a request each of whose tokens is due one second after the one before, and comes so many seconds late.
bool is_late_after(const std::vector<double>& lateness) {
  RequestTable table;
  const Slot slot = table.add(timed(0.0, {.ttft = 1.0, .tpot = 1.0}), 2000);
  double due = 1.0;
  for (const double late : lateness) sample(&table, slot, due++ + late);
  return table.delays[slot].is_late;
}

TEST(request, tokens_behind_their_cumulative_deadlines_are_forgiven_as_long_gaps_are) {
  CHECK(!is_late_after({-0.5, -0.75, 0.0}));
  CHECK(!is_late_after({-0.5, 0.5, -0.5, 0.0}));  // a gap of two seconds, and it has caught up
  CHECK(is_late_after({0.0, 0.5, 0.25}));         // no gap is as long, and it lags behind
  std::vector<double> tokens(100, 0.0);
  tokens[1] = tokens[99] = 0.5;
  CHECK(!is_late_after(tokens));
  tokens[50] = 0.5;
  CHECK(is_late_after(tokens));
}

TEST(request, who_ran_ahead_may_pause_without_being_late_for_good) {
  RequestTable table;
  const Slot slot = table.add(timed(0.0, {.ttft = 1.0, .tpot = 1.0}), 2000);
  for (int32_t i = 1; i <= 10; ++i) sample(&table, slot, 0.1 * i);
  sample(&table, slot, 11.0);  // token 10 is due at 1 + 10
  CHECK_EQ(table.delays[slot].num_late_tokens, 0);
}

TEST(request, a_recycled_slot_has_forgotten_who_it_was) {
  RequestTable table;
  const Slot slot = table.add(timed(0.0, {.ttft = 1.0, .itl = 1.0, .tpot = 1.0}), 100);
  for (int32_t i = 1; i <= 4; ++i) sample(&table, slot, 10.0 * i);
  CHECK(table.delays[slot].is_late);
  table.is_starved[slot] = 1;
  table.forget_id(slot);
  table.free(slot);
  CHECK_EQ(table.add(timed(50.0, {.ttft = 1.0, .itl = 1.0}), 100), slot);
  CHECK(!table.delays[slot].is_late);
  CHECK(!table.is_starved[slot]);
  CHECK_EQ(table.delays[slot].num_late_gaps, 0);
  CHECK_EQ(table.delays[slot].num_late_tokens, 0);
  CHECK_EQ(table.deadline(slot), 51.0);
  CHECK_EQ(table.pending_seconds(slot, 51.0), 1.0);
  CHECK_EQ(table.num_saved_tokens[slot], 0);
}

}  // namespace
}  // namespace hocket
