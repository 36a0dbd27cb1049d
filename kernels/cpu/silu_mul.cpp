#include "silu_mul.h"

#include "kernels.h"
#include "linear/linear_epilogue.h"
#include "simd.h"
#include "threads/parallel.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

void silu_mul_row(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, silu(load(gate + i)) * load(up + i));
  if (i < n) store_first(out + i, silu(load_first(gate + i, n - i)) * load_first(up + i, n - i), n - i);
}

}  // namespace

Status silu_mul(const SiluMulArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  constexpr int64_t kSpan = 1024;  // a row is cut, so that a single one has work for several threads
  const int64_t n = args.intermediate;
  const int64_t spans = ceil_div(n, kSpan);

  parallel_ranges(args.num_tokens * spans, 8 * min(n, kSpan), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / spans, first = i % spans * kSpan;
      const float* gate = static_cast<const float*>(args.gate_up) + token * 2 * n + first;
      float* out = static_cast<float*>(args.out) + token * n + first;
      silu_mul_row(gate, gate + n, out, min(kSpan, n - first));
    }
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
