// A product, with whatever its weight is made of, in the registers that suit its rows.
#pragma once

#include "coded.h"
#include "coded_tiles.h"
#include "linear.h"

namespace SB_NS {

template <class E, class Q>
SB_INLINE void coded_product_tile(const sb::Phase& phase, int32_t tile, char* scratch) {
#if defined(__AMX_INT8__)
  if (phase.rows > kFewRows) return tiled_coded<E, Q>(phase, tile, scratch);
#endif
  coded_tile<E, Q>(phase, tile, reinterpret_cast<float*>(scratch));
}

template <class E>
static void product_tile(const sb::Phase& phase, int32_t tile, char* scratch) {
  if (phase.op->format == SB_PLAIN) return linear_tile<E>(phase, tile, scratch);
  sb::with_format(phase.op->format, [&](auto format) {
    coded_product_tile<E, decltype(format)>(phase, tile, scratch);
  });
}

}  // namespace SB_NS
