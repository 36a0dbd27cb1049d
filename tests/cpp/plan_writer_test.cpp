#include "scheduler/plan_writer.h"

#include "testing.h"

namespace hocket {
namespace {

using Ints = std::vector<int32_t>;

struct Requests {
  RequestTable table;
  std::vector<Slot> running;

  Slot add(uint64_t id, const Ints& tokens, int32_t num_computed, int32_t num_scheduled) {
    RequestSpec spec;
    spec.id = id;
    spec.prompt = tokens;
    spec.max_tokens = 10;
    const Slot slot = table.add(spec, 100);
    table.row[slot] = static_cast<Row>(running.size()) + 10;
    table.num_computed_tokens[slot] = num_computed;
    table.num_scheduled_tokens[slot] = num_scheduled;
    running.push_back(slot);
    return slot;
  }
};

TEST(plan_writer, decodes_come_first_then_chunks_each_in_running_order) {
  Requests r;
  r.add(1, {1, 2, 3, 4, 5}, 1, 3);  // a chunk that does not reach the end
  r.add(2, {6, 7}, 1, 1);           // a decode
  r.add(3, {8, 9, 10}, 0, 3);       // a chunk that does
  r.add(4, {11}, 0, 0);             // nothing this step
  r.add(5, {12, 13, 14}, 2, 1);     // a decode
  r.add(6, {15, 16, 17}, 0, 1);     // a chunk of one token

  BatchPlan plan;
  PlanWriter writer;
  writer.write(r.table, r.running, GuessCounts(&r.table), &plan);
  CHECK_EQ(plan.request_ids, (std::vector<uint64_t>{2, 5, 1, 3, 6}));
  CHECK_EQ(plan.rows, (Ints{11, 14, 10, 12, 15}));
  CHECK_EQ(plan.query_start, (Ints{0, 1, 2, 5, 8, 9}));
  CHECK_EQ(plan.token_ids, (Ints{7, 14, 2, 3, 4, 8, 9, 10, 15}));
  CHECK_EQ(plan.positions, (Ints{1, 2, 1, 2, 3, 0, 1, 2, 0}));
  CHECK_EQ(plan.token_row, (Ints{11, 14, 10, 10, 10, 12, 12, 12, 15}));
  CHECK_EQ(plan.seq_lens, (Ints{2, 3, 4, 3, 1}));
  CHECK_EQ(plan.sample_seqs, (Ints{0, 1, 3}));
  CHECK_EQ(writer.seq_slots().size(), 5);
}

TEST(plan_writer, a_smaller_step_leaves_nothing_of_the_larger_one) {
  Requests r;
  const Slot first = r.add(1, {1, 2, 3}, 0, 3);
  r.add(2, {4, 5}, 0, 2);
  BatchPlan plan;
  PlanWriter writer;
  writer.write(r.table, r.running, GuessCounts(&r.table), &plan);
  CHECK_EQ(plan.num_tokens(), 5);
  r.table.num_scheduled_tokens[first] = 0;
  writer.write(r.table, r.running, GuessCounts(&r.table), &plan);
  CHECK_EQ(plan.token_ids, (Ints{4, 5}));
  CHECK_EQ(plan.query_start, (Ints{0, 2}));
  CHECK_EQ(plan.sample_seqs, (Ints{0}));
}

TEST(plan_writer, nothing_scheduled_is_an_empty_plan) {
  Requests r;
  BatchPlan plan;
  PlanWriter writer;
  writer.write(r.table, r.running, GuessCounts(&r.table), &plan);
  CHECK(plan.empty());
  CHECK_EQ(plan.query_start, (Ints{0}));
}

TEST(plan_writer, projections_of_a_row_that_was_given_up_are_dropped_with_their_units) {
  BatchPlan plan;
  plan.forms.projections = {{3, 0}, {5, 0}, {3, 1}, {5, 2}};
  plan.forms.projected_units = {10, 11, 20, 21, 12, 13, 22, 23};
  plan.forms.roundings = {{3, 0}, {5, 1}};
  plan.forms.rounded_units = {1, 2, 3, 4};
  plan.forms.drop_changes(3);
  CHECK_EQ(plan.forms.roundings.size(), 1);
  CHECK_EQ(plan.forms.rounded_units, (Ints{3, 4}));
  CHECK_EQ(plan.forms.projections.size(), 2);
  CHECK_EQ(plan.forms.projections[0].row, 5);
  CHECK_EQ(plan.forms.projections[1].block_index, 2);
  CHECK_EQ(plan.forms.projected_units, (Ints{20, 21, 22, 23}));
  plan.forms.drop_changes(4);
  CHECK_EQ(plan.forms.projections.size(), 2);
}

}  // namespace
}  // namespace hocket
