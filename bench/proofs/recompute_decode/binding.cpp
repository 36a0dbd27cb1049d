// _recompute_decode: the fused kernel as a Python function. Arguments by name, pointers as integers; fused.py checks.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>

#include "recompute_decode.h"

namespace py = pybind11;

namespace hocket {
namespace {

RecomputeDecodeArgs read_arguments(const py::dict& given) {
  const auto number = [&](const char* name) { return given[name].cast<int64_t>(); };
  const auto pointer = [&](const char* name) { return reinterpret_cast<void*>(given[name].cast<uintptr_t>()); };
  const auto ints = [&](const char* name) { return static_cast<const int32_t*>(pointer(name)); };
  const auto dtype = static_cast<DType>(number("dtype"));
  const PagedPool pool{.data = pointer("data"),
                       .block_table = ints("block_table"),
                       .layers_per_unit = number("layers_per_unit"),
                       .block_size = number("block_size"),
                       .num_kv_heads = number("num_kv_heads"),
                       .head_dim = number("head_dim"),
                       .num_groups = number("num_groups"),
                       .max_blocks = number("max_blocks"),
                       .vector_size = number("num_kv_heads") * number("head_dim"),
                       .dtype = dtype,
                       .int8_rows = nullptr};
  const PagedAttentionArgs attention{.out = pointer("out"),
                                     .q = pointer("q"),
                                     .rows = ints("rows"),
                                     .query_start = ints("query_start"),
                                     .seq_lens = ints("seq_lens"),
                                     .pool = pool,
                                     .layer = number("layer"),
                                     .num_tokens = number("num_tokens"),
                                     .num_seqs = number("num_seqs"),
                                     .num_heads = number("num_heads"),
                                     .q_stride = number("q_stride"),
                                     .sliding_window = number("sliding_window"),
                                     .max_query_len = number("max_query_len"),
                                     .max_seq_len = number("max_seq_len"),
                                     .scale = given["scale"].cast<float>(),
                                     .dtype = dtype,
                                     .workspace = pointer("workspace")};
  return {attention, number("num_decodes"), number("recompute_threads")};
}

void run(const py::dict& given, uintptr_t stream) {
  switch (recompute_decode_cuda(read_arguments(given), reinterpret_cast<void*>(stream))) {
    case Status::kOk:
      return;
    case Status::kUnsupportedShape:
      throw std::runtime_error("no kernel for this shape");
    default:
      throw std::runtime_error("the kernel was not launched");
  }
}

}  // namespace
}  // namespace hocket

PYBIND11_MODULE(_recompute_decode, module) {
  module.def("recompute_decode", &hocket::run);
  module.def("workspace_bytes", [](const pybind11::dict& given) {
    return hocket::recompute_decode_workspace_bytes(hocket::read_arguments(given));
  });
}
