#include <cstring>

#include "bindings.h"

namespace py = pybind11;

namespace hocket {
namespace {

// A read-only property that views `field` of *(object.*source).
#define HOCKET_VIEW(source, field) \
  def_property_readonly(#field, [](Object& object) { return object.field.get(object.source->field, object.owner); })

// Likewise of a part of the plan, under the name that Python knows.
#define HOCKET_PLAN_VIEW(name, field) \
  def_property_readonly(#name, [](Object& object) { return object.name.get(object.plan->field, object.owner); })

py::list transfers(const PlanObject& object) {
  py::list list;
  for (const HostTransfer& t : object.plan->transfers) {
    list.append(py::make_tuple(t.request_id, t.row, t.begin_token, t.end_token, t.num_units, t.is_to_host,
                               static_cast<int>(t.kind)));
  }
  return list;
}

// A copy of pairs, as an array of two columns.
template <typename To, typename Pair>
py::array_t<To> two_columns(const std::vector<Pair>& pairs) {
  static_assert(sizeof(Pair) == 2 * sizeof(To));
  py::array_t<To> array({static_cast<py::ssize_t>(pairs.size()), py::ssize_t{2}});
  if (!pairs.empty()) std::memcpy(array.mutable_data(), pairs.data(), pairs.size() * sizeof(Pair));
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

py::array_t<uint64_t> move_keys(const PlanObject& object) { return two_columns<uint64_t>(object.plan->moves.keys); }
py::array_t<int32_t> projections(const PlanObject& object) {
  return two_columns<int32_t>(object.plan->forms.projections);
}
py::array_t<int32_t> roundings(const PlanObject& object) { return two_columns<int32_t>(object.plan->forms.roundings); }

void bind_batch_plan(py::module_& module) {
  using Object = PlanObject;
  py::class_<PlanObject>(module, "BatchPlan")
      .def_property_readonly("step_id", [](const PlanObject& object) { return object.plan->step_id; })
      .def_property_readonly("num_tokens", [](const PlanObject& object) { return object.plan->num_tokens(); })
      .def_property_readonly("num_seqs", [](const PlanObject& object) { return object.plan->num_seqs(); })
      .def_property_readonly("num_saves", [](const PlanObject& object) { return object.plan->moves.num_saves; })
      .def_property_readonly("num_step_loads",
                             [](const PlanObject& object) { return object.plan->moves.num_step_loads; })
      .HOCKET_VIEW(plan, token_ids)
      .HOCKET_VIEW(plan, positions)
      .HOCKET_VIEW(plan, token_row)
      .HOCKET_VIEW(plan, request_ids)
      .HOCKET_VIEW(plan, rows)
      .HOCKET_VIEW(plan, query_start)
      .HOCKET_VIEW(plan, seq_lens)
      .HOCKET_VIEW(plan, sample_seqs)
      .HOCKET_PLAN_VIEW(block_table_index, table.index)
      .HOCKET_PLAN_VIEW(block_table_unit, table.unit)
      .HOCKET_VIEW(plan, preempted_ids)
      .HOCKET_PLAN_VIEW(cache_kinds, forms.cache_kinds)
      .HOCKET_PLAN_VIEW(uncached_tokens, forms.uncached_tokens)
      .HOCKET_PLAN_VIEW(hidden_tokens, forms.hidden_tokens)
      .HOCKET_PLAN_VIEW(missing_tokens, forms.missing_tokens)
      .HOCKET_PLAN_VIEW(uncached_token_ids, forms.uncached_token_ids)
      .HOCKET_PLAN_VIEW(recomputed_layers, forms.recomputed_layers)
      .HOCKET_PLAN_VIEW(copy_slots, forms.copy_slots)
      .HOCKET_PLAN_VIEW(projected_units, forms.projected_units)
      .HOCKET_PLAN_VIEW(rounded_units, forms.rounded_units)
      .def_property_readonly("projections", &projections)
      .def_property_readonly("roundings", &roundings)
      .HOCKET_PLAN_VIEW(move_ids, moves.ids)
      .HOCKET_PLAN_VIEW(move_kinds, moves.kinds)
      .HOCKET_PLAN_VIEW(move_slots, moves.slots)
      .HOCKET_PLAN_VIEW(move_peers, moves.peers)
      .HOCKET_PLAN_VIEW(move_units, moves.units)
      .def_property_readonly("move_keys", &move_keys)
      .def_property_readonly("transfers", &transfers)
      .def("__bool__", [](const PlanObject& object) { return !object.plan->empty(); });
}

void bind_step_output(py::module_& module) {
  using Object = OutputObject;
  py::class_<OutputObject>(module, "StepOutput")
      .HOCKET_VIEW(output, request_ids)
      .HOCKET_VIEW(output, token_ids)
      .HOCKET_VIEW(output, finish_reasons)
      .HOCKET_VIEW(output, num_output_tokens)
      .HOCKET_VIEW(output, num_cached_tokens)
      .HOCKET_VIEW(output, sample_indices);
}

#undef HOCKET_VIEW
#undef HOCKET_PLAN_VIEW

}  // namespace

void bind_plan(py::module_& module) {
  bind_batch_plan(module);
  bind_step_output(module);
}

}  // namespace hocket
