// A product, with whatever its weight is made of, in the registers that suit its rows.
#pragma once

#include "matmul/coded.h"
#include "matmul/coded_tiles.h"
#include "matmul/linear.h"

namespace SB_NS {

template <class E, class Q>
SB_INLINE void coded_product_tile(const sb::Phase& phase, const sb::Claim& claim) {
#if defined(__AMX_INT8__)
  if (phase.rows > kFewRows) return tiled_coded<E, Q>(phase, claim);
#endif
  coded_tile<E, Q>(phase, claim);
}

template <class E>
static void product_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.op->format == SB_PLAIN) return linear_tile<E>(phase, claim);
  sb::with_format(phase.op->format, [&](auto format) {
    coded_product_tile<E, decltype(format)>(phase, claim);
  });
}

}  // namespace SB_NS
