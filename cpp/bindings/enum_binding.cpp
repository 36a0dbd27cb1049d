// Every enumeration and list of names that Python needs, too: written down in the core, and nowhere a second time.
// Members are called as in _core.pyi; tests/schedcore/test_core_enums.py compares.
#include <pybind11/native_enum.h>

#include "base/cache_form.h"
#include "base/request_class.h"
#include "base/tier_moves.h"
#include "bindings.h"
#include "policies/policy.h"
#include "requests/request.h"
#include "scheduler/step_output.h"
#include "sessions/announcements.h"
#include "simulation/simulation_records.h"
#include "solvers/overlap_planner.h"
#include "solvers/residency.h"

namespace py = pybind11;

namespace hocket {
namespace {

constexpr auto kIntEnum = "enum.IntEnum";

void bind_requests(py::module_& module) {
  py::native_enum<AddStatus>(module, "AddStatus", "enum.Enum")
      .value("OK", AddStatus::kOk)
      .value("QUEUE_FULL", AddStatus::kQueueFull)
      .value("OVERLOADED", AddStatus::kOverloaded)
      .value("TOO_LONG", AddStatus::kTooLong)
      .value("DUPLICATE_ID", AddStatus::kDuplicateId)
      .value("INVALID", AddStatus::kInvalid)
      .finalize();
  py::native_enum<RequestClass>(module, "RequestClass", kIntEnum)
      .value("ONLINE", kOnlineClass)
      .value("OFFLINE", kOfflineClass)
      .value("ADVISORY", kAdvisoryClass)
      .finalize();
  py::native_enum<FinishReason>(module, "FinishReason", kIntEnum)
      .value("NONE", FinishReason::kNone)
      .value("STOP", FinishReason::kStop)
      .value("LENGTH", FinishReason::kLength)
      .value("ABORT", FinishReason::kAbort)
      .value("ERROR", FinishReason::kError)
      .finalize();
}

void bind_sessions(py::module_& module) {
  py::native_enum<AdvisoryEvent>(module, "AdvisoryEvent", kIntEnum)
      .value("TYPING", AdvisoryEvent::kTyping)
      .value("AGENT_STEP", AdvisoryEvent::kAgentStep)
      .value("CANCEL", AdvisoryEvent::kCancel)
      .value("QUERY", AdvisoryEvent::kQuery)
      .value("RELEASE", AdvisoryEvent::kRelease)
      .finalize();
  py::native_enum<SessionAction>(module, "SessionAction", kIntEnum)
      .value("NONE", SessionAction::kNone)
      .value("PIN", SessionAction::kPin)
      .value("PREFETCH", SessionAction::kPrefetch)
      .value("DRAFT_PREFILL", SessionAction::kDraftPrefill)
      .value("RELEASE", SessionAction::kRelease)
      .value("REFUSED", SessionAction::kRefused)
      .finalize();
}

void bind_plans(py::module_& module) {
  py::native_enum<CacheKind>(module, "CacheKind", kIntEnum)
      .value("KV", CacheKind::kKv)
      .value("HIDDEN", CacheKind::kHidden)
      .value("INT8", CacheKind::kInt8)
      .finalize();
  py::native_enum<MoveKind>(module, "MoveKind", kIntEnum)
      .value("SAVE", MoveKind::kSave)
      .value("LOAD", MoveKind::kLoad)
      .value("STORE", MoveKind::kStore)
      .value("FETCH", MoveKind::kFetch)
      .value("STEP_LOAD", MoveKind::kStepLoad)
      .finalize();
  py::native_enum<RatioReason>(module, "RatioReason", kIntEnum)
      .value("RECOMPUTES", RatioReason::kRecomputes)
      .value("NOT_ALLOWED", RatioReason::kNotAllowed)
      .value("MEMORY_SUFFICES", RatioReason::kMemorySuffices)
      .value("UNKNOWN_TIMES", RatioReason::kUnknownTimes)
      .value("OTHERS_GIVE_WAY", RatioReason::kOthersGiveWay)
      .value("NOBODY_MAY_LACK", RatioReason::kNobodyMayLack)
      .value("TOO_FEW_BLOCKS", RatioReason::kTooFewBlocks)
      .value("COSTS_MORE", RatioReason::kCostsMore)
      .value("TARGETS", RatioReason::kTargets)
      .finalize();
  py::native_enum<SimulatedOutcome>(module, "SimulatedOutcome", kIntEnum)
      .value("PENDING", SimulatedOutcome::kPending)
      .value("FINISHED", SimulatedOutcome::kFinished)
      .value("QUEUE_FULL", SimulatedOutcome::kQueueFull)
      .value("TOO_LONG", SimulatedOutcome::kTooLong)
      .value("OVERLOADED", SimulatedOutcome::kOverloaded)
      .finalize();
}

}  // namespace

void bind_enums(py::module_& module) {
  bind_requests(module);
  bind_sessions(module);
  bind_plans(module);
  py::tuple policies(policy_names().size());
  for (size_t i = 0; i < policy_names().size(); ++i) policies[i] = py::str(std::string(policy_names()[i]));
  module.attr("POLICIES") = policies;
  module.attr("MAX_LAYERS_IN_FLIGHT") = kMaxLayersInFlight;
  module.attr("NO_TOKEN") = kNoToken;
}

}  // namespace hocket
