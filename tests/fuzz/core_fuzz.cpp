// The scheduling core under libFuzzer: the input's bytes decide a configuration and then call after call, requests that
// make no sense among them. FakeEngine executes what is planned and notices every wrong token; invariants are checked
// after every call.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "byte_decisions.h"
#include "random_history.h"

namespace {

using hocket::RequestSpec;
using hocket::fuzz::ByteDecisions;
using hocket::testing::Tokens;

constexpr int32_t kMaxCalls = 400;

using History = hocket::testing::History<ByteDecisions>;

// Numbers that a caller should not send, and may.
double hostile_double(ByteDecisions* random) {
  constexpr double kValues[] = {0.0, -1.0, 1e308, -1e308, 1e-308};
  const int32_t which = random->between(0, 7);
  if (which < 5) return kValues[which];
  if (which == 5) return std::numeric_limits<double>::quiet_NaN();
  return which == 6 ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

int64_t hostile_integer(ByteDecisions* random) {
  constexpr int64_t kValues[] = {0,
                                 -1,
                                 1,
                                 std::numeric_limits<int64_t>::max(),
                                 std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int32_t>::max(),
                                 std::numeric_limits<int32_t>::min(),
                                 1000};
  return kValues[random->between(0, 7)];
}

void add_hostile(History* history) {
  ByteDecisions& random = history->random;
  RequestSpec spec;
  spec.id = random.chance(50) ? history->next_id++ : static_cast<uint64_t>(random.between(0, 20));
  if (history->engine.requests.contains(spec.id)) spec.id = history->next_id++;
  history->next_id = std::max(history->next_id, spec.id + 1);
  spec.max_tokens = random.chance(50) ? hostile_integer(&random) : 3;
  spec.min_tokens = random.chance(50) ? hostile_integer(&random) : 0;
  spec.priority = hostile_integer(&random);
  spec.request_class = random.between(-1, 3);
  spec.arrival_time = hostile_double(&random);
  spec.targets.ttft = hostile_double(&random);
  (spec.id % 3 == 0 ? spec.targets.tpot : spec.targets.itl) = hostile_double(&random);
  const std::string session = random.chance(30) ? history->session_name() : std::string();
  spec.session_id = session;
  Tokens prompt(random.between(0, 60));
  for (int32_t& token : prompt) token = random.between(-1, 2);
  history->num_accepted +=
      history->engine.add(spec, prompt, "", random.chance(30) ? Tokens{2, -1} : Tokens{}) == hocket::AddStatus::kOk;
}

void advise_hostile(History* history) {
  ByteDecisions& random = history->random;
  const auto event = static_cast<hocket::AdvisoryEvent>(random.between(0, hocket::kNumAdvisoryEvents - 1));
  Tokens draft(random.between(0, 40));
  for (int32_t& token : draft) token = random.between(-1, 2);
  const double lease = hostile_double(&random);
  const std::string session = history->session_name();
  history->engine.advise(session, event, lease, draft);
  if (event == hocket::AdvisoryEvent::kQuery) history->engine.scheduler.remember_session({"", "", session}, draft);
}

void run(const uint8_t* data, size_t size) {
  History history(ByteDecisions(data, size));
  ByteDecisions& random = history.random;
  if (random.chance(20)) history.engine.fails_sample = [&random] { return random.chance(5); };
  for (int32_t i = 0; i < kMaxCalls && !history.random.is_empty(); ++i) {
    const int32_t choice = history.random.between(0, 15);
    if (choice == 0) {
      add_hostile(&history);
    } else if (choice == 1) {
      advise_hostile(&history);
    } else {
      history.act();
    }
    history.engine.scheduler.check_invariants();
  }
  history.engine.run();
  history.check_end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    run(data, size);
  } catch (const std::invalid_argument&) {  // a configuration that cannot be
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    __builtin_trap();
  }
  return 0;
}
