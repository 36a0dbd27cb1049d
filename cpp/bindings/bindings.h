// The Python module schedcore._core, one function per group of classes. schedcore/_core.pyi is the contract.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>

#include "base/batch_plan.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_output.h"

namespace hocket {

// A numpy view of one vector, made on first use and handed out again for as long as the vector's place and size stay
// the same: in steady decoding a view costs one comparison. Views are read-only and keep the scheduler alive.
class ArrayView {
 public:
  template <typename T>
  pybind11::object get(const std::vector<T>& values, const pybind11::object& owner) {
    if (!view_ || data_ != values.data() || size_ != values.size()) {
      pybind11::array_t<T> view({values.size()}, {sizeof(T)}, values.data(), owner);
      pybind11::detail::array_proxy(view.ptr())->flags &= ~pybind11::detail::npy_api::NPY_ARRAY_WRITEABLE_;
      view_ = std::move(view);
      data_ = values.data();
      size_ = values.size();
    }
    return view_;
  }

 private:
  pybind11::object view_;
  const void* data_ = nullptr;
  size_t size_ = 0;
};

// The scheduler's one plan and one step output as Python objects. `owner` is a capsule that keeps the scheduler alive
// without a reference to these objects, so that there is no cycle.
struct PlanObject {
  const BatchPlan* plan;
  pybind11::object owner;
  ArrayView token_ids, positions, token_row, request_ids, rows, query_start, seq_lens, sample_seqs;
  ArrayView block_table_index, block_table_unit, preempted_ids, cache_kinds, uncached_tokens, hidden_tokens;
  ArrayView missing_tokens, uncached_token_ids, projected_units, rounded_units, recomputed_layers, copy_slots;
  ArrayView move_ids, move_kinds, move_slots, move_peers, move_units;
};

struct OutputObject {
  const StepOutput* output;
  pybind11::object owner;
  ArrayView request_ids, token_ids, finish_reasons, num_output_tokens, num_cached_tokens, sample_indices;
};

void bind_advisor(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_enums(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_scheduler(pybind11::module_& module);
void bind_system(pybind11::module_& module);

}  // namespace hocket
