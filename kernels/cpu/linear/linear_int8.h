// The product of int8 or int4 by int8 in blocks: int32 sums within a block, exact, times both scales into float32 sums
// over the blocks in ascending order. So a row's result depends neither on its company nor on the instruction set.
#pragma once

#include "linear/linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// Panels that are best taken together for so many rows.
int64_t int8_panels_together(int64_t num_rows);

// As linear_panels(). x: rows as int8_rows.h has them. REQUIRES: is_in_blocks(weight.dtype).
void int8_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                 int64_t end);

// x, float32, as int8_panels() takes it, on the thread pool and in its scratch memory.
ProductInput to_int8_rows(const ProductInput& x, int64_t in_features);

}  // namespace hocket::cpu::HOCKET_ISA
