#include "cache/hidden_gather.h"

#include "cache/paged.h"
#include "cache/rope_head.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

template <class T>
Status run(const HiddenGatherArgs& args) {
  const HiddenLayer<T> layer(args.pool, args.layer);
  float* out = static_cast<float*>(args.out);
  parallel_ranges(args.num_tokens, args.hidden_size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy_row(layer.vector(args.token_row[i], args.positions[i]), out + i * args.hidden_size, args.hidden_size);
    }
  });
  return Status::kOk;
}

}  // namespace

Status hidden_gather(const HiddenGatherArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  return with_type(args.pool.dtype, [&](auto zero) { return run<const decltype(zero)>(args); });
}

}  // namespace hocket::cpu::HOCKET_ISA
