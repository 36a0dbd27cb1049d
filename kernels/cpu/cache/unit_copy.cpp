#include "cache/unit_copy.h"

#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"

namespace hocket::cpu::HOCKET_ISA {

Status unit_copy(const UnitCopyArgs& args) {
  constexpr int64_t kPiece = 64 * 1024;  // a unit is cut, so that a few have work for several threads
  const int64_t pieces = ceil_div(args.unit_bytes, kPiece);
  auto* to = static_cast<uint8_t*>(args.to);
  const auto* from = static_cast<const uint8_t*>(args.from);

  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i / pieces, first = i % pieces * kPiece;
      const int64_t to_unit = args.to_units == nullptr ? unit : args.to_units[unit];
      const int64_t from_unit = args.from_units == nullptr ? unit : args.from_units[unit];
      __builtin_memcpy(to + to_unit * args.unit_bytes + first, from + from_unit * args.unit_bytes + first,
                       static_cast<size_t>(min(kPiece, args.unit_bytes - first)));
    }
  };
  if (args.is_alone) {
    copy(0, args.num_units * pieces);
  } else {
    parallel_ranges(args.num_units * pieces, min(args.unit_bytes, kPiece) / 4, copy);
  }
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
