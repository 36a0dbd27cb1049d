// The launchers that store, gather and move cached vectors, as Python functions.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings.h"
#include "cache/hidden_gather.h"
#include "cache/hidden_write.h"
#include "cache/int8_blocks.h"
#include "cache/project_rope_write.h"
#include "cache/unit_copy.h"
#include "landing.h"

namespace py = pybind11;

namespace hocket {
namespace {

void hidden_write(Pointer x, Pointer tokens, Pointer positions, Pointer token_row, const PagedPool& pool, int64_t layer,
                  int64_t num_tokens, int64_t hidden_size, int64_t x_stride, int dtype, int64_t stream) {
  const HiddenWriteArgs args{to_pointer(x),
                             to_const<int32_t>(tokens),
                             to_const<int32_t>(positions),
                             to_const<int32_t>(token_row),
                             pool,
                             layer,
                             num_tokens,
                             hidden_size,
                             x_stride,
                             static_cast<DType>(dtype)};
  HOCKET_LAUNCH(hidden_write, args, stream);
}

void hidden_gather(Pointer out, Pointer positions, Pointer token_row, const PagedPool& pool, int64_t layer,
                   int64_t num_tokens, int64_t hidden_size, int dtype, int64_t stream) {
  const HiddenGatherArgs args{
      to_pointer(out), to_const<int32_t>(positions), to_const<int32_t>(token_row), pool, layer, num_tokens,
      hidden_size,     static_cast<DType>(dtype)};
  HOCKET_LAUNCH(hidden_gather, args, stream);
}

void project_rope_write(Pointer k, Pointer v, Pointer k_norm, Pointer cos_sin, Pointer positions, Pointer token_row,
                        const PagedPool& pool, int64_t layer, int64_t num_tokens, int64_t rotary_dim, int64_t k_stride,
                        int64_t v_stride, float norm_eps, int dtype, int64_t stream) {
  const ProjectRopeWriteArgs args{to_pointer(k),
                                  to_pointer(v),
                                  to_pointer(k_norm),
                                  to_const<float>(cos_sin),
                                  to_const<int32_t>(positions),
                                  to_const<int32_t>(token_row),
                                  pool,
                                  layer,
                                  num_tokens,
                                  rotary_dim,
                                  k_stride,
                                  v_stride,
                                  norm_eps,
                                  static_cast<DType>(dtype)};
  HOCKET_LAUNCH(project_rope_write, args, stream);
}

void int8_blocks(const PagedPool& pool, Pointer from_units, Pointer to_units, int64_t num_blocks, Pointer workspace) {
  check(int8_blocks_cpu(
      {pool, to_const<int32_t>(from_units), to_const<int32_t>(to_units), num_blocks, to_pointer(workspace)}));
}

void unit_copy(Pointer to, Pointer from, Pointer to_units, Pointer from_units, int64_t num_units, int64_t unit_bytes,
               bool is_alone, int64_t stream) {
  const UnitCopyArgs args{
      to_pointer(to), to_pointer(from), to_const<int32_t>(to_units), to_const<int32_t>(from_units), num_units,
      unit_bytes,     is_alone};
  HOCKET_LAUNCH(unit_copy, args, stream);
}

using Indices = py::array_t<int32_t, py::array::c_style>;

// A place of blocks of several units each, and one of units.
class BlockSaver {
 public:
  BlockSaver(Pointer host, Pointer pool, int64_t num_slots, int64_t num_units, int64_t units_per_block,
             int64_t unit_bytes)
      : host_(host),
        pool_(pool),
        num_slots_(num_slots),
        num_units_(num_units),
        units_per_block_(units_per_block),
        unit_bytes_(unit_bytes) {}

  // host[slots[i], j] = pool[units[i * units_per_block + j]]. Throws py::index_error for what is not there, and then
  // copies nothing.
  void save(const Indices& slots, const Indices& units) {
    if (units.size() != slots.size() * units_per_block_) throw py::index_error("blocks and units differ in number");
    host_units_.clear();
    for (py::ssize_t i = 0; i < slots.size(); ++i) {
      const int32_t slot = slots.data()[i];
      if (slot < 0 || slot >= num_slots_) throw py::index_error("there is no such slot");
      for (int64_t j = 0; j < units_per_block_; ++j) {
        host_units_.push_back(static_cast<int32_t>(slot * units_per_block_ + j));
      }
    }
    for (py::ssize_t i = 0; i < units.size(); ++i) {
      if (units.data()[i] < 0 || units.data()[i] >= num_units_) throw py::index_error("there is no such unit");
    }
    const UnitCopyArgs args{
        to_pointer(host_), to_pointer(pool_), host_units_.data(), units.data(), units.size(), unit_bytes_, false};
    const py::gil_scoped_release no_lock;
    check(unit_copy_cpu(args));
  }

 private:
  const Pointer host_, pool_;
  const int64_t num_slots_, num_units_, units_per_block_, unit_bytes_;
  std::vector<int32_t> host_units_;  // scratch
};

}  // namespace

void bind_cache(py::module_& module) {
  const auto no_lock = py::call_guard<py::gil_scoped_release>();
  module.def("hidden_write", &hidden_write, no_lock);
  module.def("hidden_gather", &hidden_gather, no_lock);
  module.def("project_rope_write", &project_rope_write, no_lock);
  module.def("int8_blocks", &int8_blocks, no_lock);
  module.def("unit_copy", &unit_copy, no_lock);
  py::class_<BlockSaver>(module, "BlockSaver")
      .def(py::init<Pointer, Pointer, int64_t, int64_t, int64_t, int64_t>())
      .def("save", &BlockSaver::save, py::arg().noconvert(), py::arg().noconvert());
  module.def(
      "land", [](Pointer counter, int32_t num_groups) { land(static_cast<int32_t*>(to_pointer(counter)), num_groups); },
      no_lock);
  module.def(
      "wait_until_landed", [](Pointer counter, int64_t group) { wait_until_landed(to_const<int32_t>(counter), group); },
      no_lock);
}

}  // namespace hocket
