#include "speculation/row_costs.h"

#include <cmath>

#include "testing.h"

namespace hocket {
namespace {

BatchFeatures decodes(int32_t num) {
  BatchFeatures batch;
  for (int32_t i = 0; i < num; ++i) batch.add_decode(100);
  return batch;
}

void observe(RowCosts* costs, int32_t num_rows, bool has_guesses, double off, int times = 500) {
  for (int i = 0; i < times; ++i) costs->observe(decodes(num_rows), has_guesses, 0.010, 0.010 * off);
}

bool is_near(double a, double b) { return std::abs(a - b) < 0.03; }

TEST(row_costs, the_model_is_believed_before_anything_is_seen) {
  const RowCosts costs;
  for (const double n : {0.0, 1.0, 9.0, 1000.0}) CHECK_EQ(costs.factor(n, false), 1.0);
  CHECK_EQ(costs.factor(9, true), 1.0);
}

TEST(row_costs, steps_are_learnt_by_their_rows_and_forgotten) {
  RowCosts costs;
  observe(&costs, 9, false, 1.5);
  observe(&costs, 8, false, 1.0);
  CHECK(is_near(costs.factor(9, false), 1.5));
  CHECK(is_near(costs.factor(8, false), 1.0));
  observe(&costs, 9, false, 1.0);
  CHECK(is_near(costs.factor(9, false), 1.0));
}

TEST(row_costs, steps_with_guesses_are_learnt_apart_and_at_first_whatever_their_rows) {
  RowCosts costs;
  observe(&costs, 8, false, 1.0);
  observe(&costs, 10, true, 1.4);
  CHECK(is_near(costs.factor(10, true), 1.4));
  CHECK(is_near(costs.factor(12, true), 1.4));
  CHECK(is_near(costs.factor(10, false), 1.0));
}

TEST(row_costs, what_guesses_cost_fades_while_nobody_guesses) {
  RowCosts costs;
  observe(&costs, 10, true, 1.4);
  observe(&costs, 8, false, 1.0, 3000);
  CHECK(is_near(costs.factor(10, true), 1.0));
  observe(&costs, 10, true, 1.4, 1);
  CHECK(is_near(costs.factor(10, true), 1.4));
}

TEST(row_costs, a_pause_of_the_machine_is_hardly_believed) {
  RowCosts costs;
  observe(&costs, 4, false, 100.0, 1);
  CHECK(costs.factor(4, false) > 1.0 && costs.factor(4, false) < 1.5);
}

TEST(row_costs, steps_of_very_many_rows_are_learnt_together) {
  RowCosts costs;
  observe(&costs, RowCosts::kMost + 9, true, 1.4);
  for (const int32_t n : {RowCosts::kMost, RowCosts::kMost + 1, 1000}) CHECK(is_near(costs.factor(n, true), 1.4));
}

TEST(row_costs, prompts_and_steps_that_took_no_time_teach_nothing) {
  RowCosts costs;
  BatchFeatures mixed = decodes(4);
  mixed.add_chunk(0, 100);
  costs.observe(mixed, false, 0.010, 0.020);
  costs.observe(decodes(4), false, 0.010, 0.0);
  costs.observe(decodes(4), false, 0.0, 0.010);
  CHECK_EQ(costs.factor(4, false), 1.0);
}

}  // namespace
}  // namespace hocket
