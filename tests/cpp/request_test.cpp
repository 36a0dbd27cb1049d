#include "request.h"

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

}  // namespace
}  // namespace hocket
