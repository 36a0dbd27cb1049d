#include "system/giving_way.h"

#include "testing.h"

namespace hocket {
namespace {

constexpr double kTurn = GivingWay::kTurnSeconds, kRest = GivingWay::kRestSeconds;

// Turns and rests until `end`, with `share` of the core and rests that end `late`. Returns how many rests.
int64_t run(GivingWay& work, double& now, double& cpu, double end, double share, double late) {
  const int64_t before = work.num_rests();
  while (now < end) {
    now += kTurn;
    cpu += share * kTurn;
    if (!work.must_rest(now, cpu)) continue;
    const double began = now;
    now += kRest + late;
    work.rested(began, now, cpu);
  }
  return work.num_rests() - before;
}

TEST(giving_way, a_core_of_ones_own_is_used_without_a_rest) {
  GivingWay work;
  double now = 100.0, cpu = 5.0;
  work.begin(now, cpu);
  CHECK_EQ(run(work, now, cpu, 101.0, 1.0, 0.0), 0);
}

TEST(giving_way, who_gets_less_than_a_whole_core_rests_between_turns) {
  GivingWay work;
  double now = 100.0, cpu = 5.0;
  work.begin(now, cpu);
  const int64_t rests = run(work, now, cpu, 101.0, 0.5, 0.0);
  CHECK_EQ(rests, static_cast<int64_t>(1.0 / (kTurn + kRest)) + 1);
}

TEST(giving_way, a_rest_that_ends_late_says_that_the_core_is_wanted) {
  GivingWay work;
  double now = 100.0, cpu = 5.0;
  work.begin(now, cpu);
  run(work, now, cpu, 100.01, 0.5, 0.0);
  const double late = 2 * GivingWay::kLateSeconds, began = now;
  const int64_t rests = run(work, now, cpu, 101.0, 1.0, late);
  CHECK_EQ(rests, static_cast<int64_t>((101.0 - began) / (kTurn + kRest + late)) + 1);
}

TEST(giving_way, soon_after_the_others_are_gone_it_rests_no_more) {
  GivingWay work;
  double now = 100.0, cpu = 5.0;
  work.begin(now, cpu);
  run(work, now, cpu, 100.5, 0.5, 0.0);
  run(work, now, cpu, 100.5 + 2 * GivingWay::kMemorySeconds, 1.0, 0.0);
  CHECK_EQ(run(work, now, cpu, 101.0, 1.0, 0.0), 0);
}

}  // namespace
}  // namespace hocket
