// Whose requests come in, where several tenants' wait.

#include <string>

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::world_config;

void wait_for_bob(PolicyWorld* w, int32_t num) {
  for (int32_t i = 1; i <= num; ++i) w->waits("b" + std::to_string(i), {.arrival = 1.0 * i, .tenant = "bob"});
}

TEST(tenant_order, hocket_lets_half_of_a_tenants_requests_into_a_step_of_somebody_else) {
  PolicyWorld w(world_config("hocket"));
  wait_for_bob(&w, 5);
  w.waits("c", {.arrival = 9, .tenant = "carol"});
  CHECK_EQ(w.grants(), (Names{"b1+10", "b2+10", "b3+10", "b4+10", "b5+10", "c+10"}));  // nobody's tokens are due
  w.runs("a", 1, {.tenant = "alice"});
  CHECK_EQ(w.grants(), (Names{"a:1", "b1+10", "b2+10", "b3+10", "c+10"}));
}

TEST(tenant_order, hocket_lets_all_of_a_tenants_requests_into_a_step_of_its_own) {
  PolicyWorld w(world_config("hocket"));
  wait_for_bob(&w, 4);
  w.waits("c1", {.arrival = 8, .tenant = "carol"});
  w.waits("c2", {.arrival = 9, .tenant = "carol"});
  w.runs("b", 1, {.tenant = "bob"});
  CHECK_EQ(w.grants(), (Names{"b:1", "b1+10", "b2+10", "b3+10", "b4+10", "c1+10"}));
}

TEST(tenant_order, hocket_lets_in_whoever_starves_beside_the_half) {
  SchedulerConfig config = world_config("hocket");
  config.max_wait_ms = 5000;
  PolicyWorld w(config);
  w.now = 7.5;  // b1 and b2 have waited longer
  wait_for_bob(&w, 6);
  w.runs("a", 1, {.arrival = 7, .tenant = "alice"});
  CHECK_EQ(w.grants(), (Names{"a:1", "b1+10", "b2+10", "b3+10", "b4+10"}));
}

// Of one who sends so many that always some are in time, those would keep out whoever waits until it is late.
TEST(tenant_order, hocket_serves_first_who_was_served_less_even_late) {
  PolicyWorld w(world_config("hocket"));
  w.now = 9.0;
  w.waits("a1", {.arrival = 8.5, .ttft_target = 1.0, .tenant = "alice"});
  w.waits("a2", {.arrival = 7.5, .ttft_target = 1.0, .tenant = "alice"});
  w.waits("b1", {.arrival = 7.0, .ttft_target = 1.0, .tenant = "bob"});
  w.waits("b2", {.arrival = 8.8, .ttft_target = 1.0, .tenant = "bob"});
  w.tenants.begin_step();
  CHECK_EQ(w.grants(), (Names{"a1+10", "b2+10", "b1+10", "a2+10"}));
  w.tenants.on_served(w.slot_of("a1"), 20000, 0);
  w.tenants.begin_step();
  CHECK_EQ(w.grants(), (Names{"b2+10", "b1+10", "a1+10", "a2+10"}));
}

// The one row is for whoever was served less, and nobody else is weighed.
TEST(tenant_order, hocket_gives_rows_to_who_was_served_less) {
  SchedulerConfig config = world_config("hocket", /*num_rows=*/1);
  config.num_units = 20;
  PolicyWorld w(config);
  w.waits("a1", {.arrival = 1.0, .num_prompt = 60, .tenant = "alice"});
  w.waits("b1", {.arrival = 2.0, .num_prompt = 60, .first_token = 1000, .tenant = "bob"});
  w.tenants.on_served(w.slot_of("a1"), 20000, 0);
  w.tenants.begin_step();
  CHECK_EQ(w.grants().front(), std::string("b1+60"));
}

// Nobody's step is longer because whoever was served most waits, or has waited: 1.8 times its decode's 31.5 ms.
TEST(tenant_order, hocket_lengthens_no_step_for_who_was_served_more) {
  for (const bool is_ahead : {false, true}) {
    SchedulerConfig config = world_config("hocket");
    config.max_decode_step_ms = 0;
    PolicyWorld w(config);
    w.now = 20.0;
    w.estimates = linear_seconds(0.0305, 0.001);
    w.max_num_tokens = 500;
    w.runs("a", 1, {.num_prompt = 40, .first_token = 1000, .tenant = "alice"});
    w.waits("b", {.num_prompt = 400, .tenant = "bob"});
    if (is_ahead) w.tenants.on_served(w.slot_of("b"), 20000, 0);
    w.tenants.begin_step();
    CHECK_EQ(w.grants(), (Names{"a:1", is_ahead ? "b+25" : "b+400"}));
  }
}

}  // namespace
}  // namespace hocket
