// A product, in the arithmetic that the rows on its left are made for.
#pragma once

#include "matmul/bfloats.h"
#include "matmul/coded.h"
#include "matmul/coded_tiles.h"
#include "matmul/floats.h"

namespace SB_NS {

template <class Q>
SB_INLINE void coded_product_tile(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
#if defined(__AMX_INT8__)
  if (phase.rows > kFewRows) return tiled_coded<Q>(phase, claim, finish);
#endif
  coded_tile<Q>(phase, claim, finish);
}

template <class E>
static void product_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.reads_codes)
    return sb::with_blocks(phase.op->storage, [&](auto q) SB_LAMBDA {
      coded_product_tile<decltype(q)>(phase, claim, finish<E>);
    });
#if defined(__AVX512BF16__)
  if constexpr (E::G == 2) return bfloat_tile(phase, claim);
#endif
  sb::with_storage(phase.op->storage,
                   [&](auto s) SB_LAMBDA { float_tile<decltype(s)>(phase, claim); });
}

}  // namespace SB_NS
