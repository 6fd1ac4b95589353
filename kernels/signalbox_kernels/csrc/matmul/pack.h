// Maps columns of a packed matrix to rows of the original one.
//
// A panel holds 32 columns. An interleaved matrix is [gate; up]: a panel holds 16 columns of gate,
// then the same 16 of up, so that silu(gate) * up needs no other panel.
#pragma once

#include "program/step.h"

namespace sb {

// Returns the row of a column; -1 for padding.
inline int64_t row_of(int64_t column, int64_t n, bool interleaved) {
  if (!interleaved) return column < n ? column : -1;
  constexpr int64_t half = kPanel / 2;
  const int64_t within = column % kPanel, index = column / kPanel * half + within % half;
  if (index >= n / 2) return -1;
  return within < half ? index : n / 2 + index;
}

inline int64_t padded_columns(int64_t n, bool interleaved) {
  return interleaved ? round_up(n / 2, kPanel / 2) * 2 : round_up(n, kPanel);
}

}  // namespace sb
