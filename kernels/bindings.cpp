// worker._kernels: the launchers as Python functions. Pointers are integers (Tensor.data_ptr()), strides are in
// elements. Nothing is checked here; that is the work of worker/ops. The interpreter lock is released while a kernel
// runs. A status other than kOk raises RuntimeError.
#include "bindings.h"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cache/rope_kv_write.h"
#include "cpu.h"
#include "gemv.h"
#include "linear.h"
#include "machine_limits.h"
#include "paged_attention.h"
#include "rms_norm.h"
#include "silu_mul.h"

namespace py = pybind11;

namespace hocket {

void check(Status status) {
  switch (status) {
    case Status::kOk:
      return;
    case Status::kUnsupportedDType:
      throw std::runtime_error("no kernel for this combination of dtypes");
    case Status::kUnsupportedShape:
      throw std::runtime_error("no kernel for this shape");
    case Status::kWrongPacking:
      throw std::runtime_error("the weight was packed for another instruction set");
    case Status::kDeviceError:
      throw std::runtime_error("the CUDA runtime refused the launch");
  }
}

namespace {

// What all layers of one step have in common: the pool and the flattened batch. Built once per step.
struct Step {
  PagedPool pool;
  const int32_t* positions;
  const int32_t* token_row;
  const int32_t* rows;
  const int32_t* query_start;
  const int32_t* seq_lens;
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t max_query_len;
  int64_t max_seq_len;
};

PagedPool make_pool(Pointer data, Pointer block_table, int64_t layers_per_unit, int64_t block_size,
                    int64_t num_kv_heads, int64_t head_dim, int64_t num_groups, int64_t max_blocks, int64_t vector_size,
                    int dtype, Pointer int8_rows) {
  return {to_pointer(data),
          to_const<int32_t>(block_table),
          layers_per_unit,
          block_size,
          num_kv_heads,
          head_dim,
          num_groups,
          max_blocks,
          vector_size,
          static_cast<DType>(dtype),
          to_const<uint8_t>(int8_rows)};
}

Step make_step(const PagedPool& pool, Pointer positions, Pointer token_row, Pointer rows, Pointer query_start,
               Pointer seq_lens, int64_t num_tokens, int64_t num_seqs, int64_t max_query_len, int64_t max_seq_len) {
  return {pool,
          to_const<int32_t>(positions),
          to_const<int32_t>(token_row),
          to_const<int32_t>(rows),
          to_const<int32_t>(query_start),
          to_const<int32_t>(seq_lens),
          num_tokens,
          num_seqs,
          max_query_len,
          max_seq_len};
}

void rms_norm(Pointer out, Pointer x, Pointer weight, Pointer residual, int64_t num_outer, int64_t num_inner,
              int64_t hidden, int64_t outer_stride, int64_t inner_stride, float eps, int dtype, int64_t stream) {
  const RmsNormArgs args{to_pointer(out),
                         to_pointer(x),
                         to_pointer(weight),
                         to_pointer(residual),
                         num_outer,
                         num_inner,
                         hidden,
                         outer_stride,
                         inner_stride,
                         eps,
                         static_cast<DType>(dtype)};
  HOCKET_LAUNCH(rms_norm, args, stream);
}

void silu_mul(Pointer out, Pointer gate_up, int64_t num_tokens, int64_t intermediate, int dtype, int64_t stream) {
  const SiluMulArgs args{to_pointer(out), to_pointer(gate_up), num_tokens, intermediate, static_cast<DType>(dtype)};
  HOCKET_LAUNCH(silu_mul, args, stream);
}

void gemv(Pointer out, Pointer x, Pointer weight, Pointer bias, int64_t num_rows, int64_t in_features,
          int64_t out_features, int64_t x_stride, bool is_gated, int dtype, int64_t stream) {
  [[maybe_unused]] const GemvArgs args{
      to_pointer(out), to_pointer(x), to_pointer(weight), to_pointer(bias), num_rows,
      in_features,     out_features,  x_stride,           is_gated,         static_cast<DType>(dtype)};
  (void)stream;
  HOCKET_LAUNCH_CUDA(gemv, args, stream);
}

void rope_kv_write(Pointer q, Pointer k, Pointer v, Pointer cos_sin, const Step& step, int64_t layer, int64_t num_heads,
                   int64_t rotary_dim, int64_t q_stride, int64_t k_stride, int64_t v_stride, int dtype, Pointer q_norm,
                   Pointer k_norm, float norm_eps, int64_t stream) {
  const RopeKvWriteArgs args{to_pointer(q),
                             to_pointer(k),
                             to_pointer(v),
                             to_const<float>(cos_sin),
                             step.positions,
                             step.token_row,
                             step.pool,
                             layer,
                             step.num_tokens,
                             num_heads,
                             rotary_dim,
                             q_stride,
                             k_stride,
                             v_stride,
                             static_cast<DType>(dtype),
                             to_pointer(q_norm),
                             to_pointer(k_norm),
                             norm_eps};
  HOCKET_LAUNCH(rope_kv_write, args, stream);
}

PagedAttentionArgs attention_args(Pointer out, Pointer q, const Step& step, int64_t layer, int64_t num_heads,
                                  int64_t q_stride, int64_t sliding_window, float scale, int dtype, Pointer workspace) {
  return {to_pointer(out),      to_pointer(q),    step.rows, step.query_start,
          step.seq_lens,        step.pool,        layer,     step.num_tokens,
          step.num_seqs,        num_heads,        q_stride,  sliding_window,
          step.max_query_len,   step.max_seq_len, scale,     static_cast<DType>(dtype),
          to_pointer(workspace)};
}

// Returns the keys that sequences read with others.
int64_t paged_attention(Pointer out, Pointer q, const Step& step, int64_t layer, int64_t num_heads, int64_t q_stride,
                        int64_t sliding_window, float scale, int dtype, Pointer workspace, int64_t stream) {
  PagedAttentionArgs args =
      attention_args(out, q, step, layer, num_heads, q_stride, sliding_window, scale, dtype, workspace);
  int64_t num_shared_keys = 0;
  args.num_shared_keys = &num_shared_keys;
  HOCKET_LAUNCH(paged_attention, args, stream);
  return num_shared_keys;
}

int64_t workspace_bytes(const Step& step, int64_t num_heads, int dtype, int64_t stream) {
#ifdef HOCKET_HAS_CUDA
  if (stream == kCpu) return 0;
  return paged_attention_workspace_bytes(attention_args(0, 0, step, 0, num_heads, 0, 0, 0, dtype, 0));
#else
  static_cast<void>(step), static_cast<void>(num_heads), static_cast<void>(dtype), static_cast<void>(stream);
  return 0;
#endif
}

void linear(Pointer out, Pointer x, Pointer packed, Pointer bias, int64_t num_tokens, int64_t in_features,
            int64_t out_features, int64_t x_stride, int64_t out_stride, int64_t panel_width, int dtype, int x_dtype,
            int out_dtype, bool is_gated, bool is_added) {
  check(linear_cpu({to_pointer(out), to_pointer(x), to_pointer(packed), to_const<float>(bias), num_tokens, in_features,
                    out_features, x_stride, out_stride, panel_width, static_cast<DType>(dtype),
                    static_cast<DType>(x_dtype), static_cast<DType>(out_dtype), is_gated, is_added}));
}

void set_isa(const std::string& name) {
  if (!cpu::set_isa(name.c_str())) throw std::invalid_argument("this CPU or build has no instruction set " + name);
}

}  // namespace
}  // namespace hocket

PYBIND11_MODULE(_kernels, m) {
  using namespace hocket;
  const auto no_lock = py::call_guard<py::gil_scoped_release>();

  m.def("set_num_threads", &cpu::set_num_threads, no_lock);
  m.def("num_threads", &cpu::num_threads);
  m.def("set_isa", &set_isa);
  m.def("isa", &cpu::isa);
  m.def("set_shared_keys", &cpu::set_shared_keys);

#ifdef HOCKET_HAS_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif

  py::class_<PagedPool>(m, "PagedPool", py::module_local()).def(py::init(&make_pool));
  py::class_<Step>(m, "Step", py::module_local()).def(py::init(&make_step));

  m.def("rms_norm", &rms_norm, no_lock);
  m.def("silu_mul", &silu_mul, no_lock);
  m.def("gemv", &gemv, no_lock);
  m.def("rope_kv_write", &rope_kv_write, no_lock);
  m.def("paged_attention", &paged_attention, no_lock);
  m.def("paged_attention_workspace_bytes", &workspace_bytes);
  m.def("linear", &linear, no_lock);
  m.def("linear_panel_width", &linear_panel_width);

  bind_cache(m);
  bind_decoder(m);

  m.def("read_limit", [](Pointer data, int64_t bytes) { return read_limit_cpu(to_pointer(data), bytes); }, no_lock);
  m.def(
      "arithmetic_limit",
      [](int64_t rounds, int dtype) { return arithmetic_limit_cpu(rounds, static_cast<DType>(dtype)); }, no_lock);
}
