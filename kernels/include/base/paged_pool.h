// The unit pool and its block tables, as kernels see them.
//
// A unit holds block_size consecutive tokens x layers_per_unit consecutive layers x one vector kind (K = 0, V = 1, or
// X, the input of the attention projections). d_kv = num_kv_heads * head_dim, heads in order.
//
// K and V: the vector of token p of the request in row r, layer l, kind k is the d_kv contiguous elements at
//   data[block_table[r][l / layers_per_unit][k][p / block_size]][l % layers_per_unit][p % block_size]
//
// Int8: each head's elements are integers from -127 to 127 times a scale in bfloat16, its own for each token. A unit's
// layer then holds the integers, [block_size][d_kv], and behind them the scales, [block_size][num_kv_heads].
// store_head() of cpu/cache/int8_heads.h says how they are rounded. K and V only, and on CPU.
//
// Int8 rows: a pool of a floating dtype, on CPU, may have rows of the table whose blocks hold K and V in int8, both in
// one unit per layer group, which stands where that of X would (below). A layer of it holds K in the first half of its
// bytes and V in the second, each laid out as a layer of an int8 pool. Vectors of two bytes an element are as long as
// that takes, vector_size = num_kv_heads * (head_dim + 2); those of four are long enough. Ordinary tokens stay dense,
// d_kv elements apart; what is behind them in a layer is not used.
//
// X: a block has one unit per layer group. A row's 2 x num_groups places are counted on over groups and kinds, and the
// unit of group g stands at place g, so that X is the first hidden_size <= d_kv elements at
//   data[block_table[r][g / 2][g % 2][p / block_size]][l % layers_per_unit][p % block_size],  g = l / layers_per_unit
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hocket {

struct PagedPool {
  void* data;                  // [num_units][layers_per_unit][block_size * vector_size], contiguous
  const int32_t* block_table;  // [max_num_seqs][num_groups][2][max_blocks], contiguous
  int64_t layers_per_unit;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_groups;
  int64_t max_blocks;   // per sequence
  int64_t vector_size;  // elements that a layer has for each token: d_kv, or more for int8, see above
  DType dtype;
  const uint8_t* int8_rows;  // [max_num_seqs], read in every call: not 0 where the row is in int8; null: none is
};

}  // namespace hocket
