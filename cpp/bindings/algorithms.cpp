#include "algorithms.h"

#include "solvers/knapsack.h"

namespace py = pybind11;

namespace hocket {
namespace {

KnapsackCandidates knapsack_candidates(const Array<float>& pending_seconds, const Array<int32_t>& kv_units,
                                       const Array<int32_t>& compact_units, const Array<uint8_t>& flags,
                                       const Array<float>& keep_seconds) {
  const KnapsackCandidates candidates{as_span(pending_seconds), as_span(kv_units), as_span(compact_units),
                                      as_span(flags), as_span(keep_seconds)};
  const size_t n = candidates.kv_units.size();
  require(candidates.pending_seconds.size() == n && candidates.compact_units.size() == n &&
              candidates.flags.size() == n && candidates.keep_seconds.size() == n,
          "the candidates' arrays must have one length");
  return candidates;
}

}  // namespace

void bind_knapsack(py::module_& m) {
  py::class_<Knapsack>(m, "Knapsack")
      .def(py::init([](double compact_seconds_per_unit, double past_target_decay, double kept_share) {
             return Knapsack({compact_seconds_per_unit, past_target_decay, kept_share});
           }),
           py::kw_only(), py::arg("compact_seconds_per_unit") = 0.0, py::arg("past_target_decay") = 0.0,
           py::arg("kept_share") = 0.0)
      .def(
          "solve",
          [](Knapsack& self, const Array<float>& pending_seconds, const Array<int32_t>& kv_units,
             const Array<int32_t>& compact_units, const Array<uint8_t>& flags, const Array<float>& keep_seconds,
             int64_t capacity) {
            require(capacity >= 0, "capacity must not be negative");
            const KnapsackResult result = self.solve(
                knapsack_candidates(pending_seconds, kv_units, compact_units, flags, keep_seconds), capacity);
            return py::make_tuple(as_array(result.choices), result.value, result.units);
          },
          py::arg("pending_seconds"), py::arg("kv_units"), py::arg("compact_units"), py::arg("flags"),
          py::arg("keep_seconds"), py::arg("capacity"));
  m.def("knapsack_compact_units", &knapsack_compact_units, py::arg("kv_units"), py::arg("compact_ratio"),
        py::arg("block_units"));
  m.attr("PAST_TARGET") = KnapsackCandidates::kPastTarget;
  m.attr("MUST_SCHEDULE") = KnapsackCandidates::kMustSchedule;
  m.attr("RESIDENT_KV") = KnapsackCandidates::kResidentKv;
  m.attr("RESIDENT_COMPACT") = KnapsackCandidates::kResidentCompact;
}

void bind_algorithms(py::module_& core) {
  py::module_ m = core.def_submodule("algorithms", "The core's algorithms one by one.");
  bind_knapsack(m);
  bind_latency(m);
  bind_memory(m);
  bind_offline(m);
}

}  // namespace hocket
