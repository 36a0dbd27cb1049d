#include "cache/hidden_write.h"

#include "cache/paged.h"
#include "cache/rope_head.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

template <class T>
Status run(const HiddenWriteArgs& args) {
  const HiddenLayer<T> layer(args.pool, args.layer);
  parallel_ranges(args.num_tokens, args.hidden_size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = args.tokens == nullptr ? i : args.tokens[i];
      copy_row(static_cast<const float*>(args.x) + from * args.x_stride,
               layer.vector(args.token_row[i], args.positions[i]), args.hidden_size);
    }
  });
  return Status::kOk;
}

}  // namespace

Status hidden_write(const HiddenWriteArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  return with_type(args.pool.dtype, [&](auto zero) { return run<decltype(zero)>(args); });
}

}  // namespace hocket::cpu::HOCKET_ISA
