// A product, in the arithmetic that the rows on its left are made for.
#pragma once

#include "matmul/bfloats.h"
#include "matmul/floats.h"

namespace SB_NS {

// Of codes, by quantised weights; a unit of its own, so that two processors share the compilation.
void coded_product_tile(const sb::Phase& phase, const sb::Claim& claim, Finish finish);

template <class E>
static void product_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.src_code_bytes) return coded_product_tile(phase, claim, finish<E>);
#if defined(__AVX512BF16__)
  if constexpr (E::G == 2) {
    if (!sb::is_float_codes(phase.op->storage)) return bfloat_tile<sb::Bfloat16>(phase, claim);
    return sb::with_float_codes(phase.op->storage,
                                [&](auto s) SB_LAMBDA { bfloat_tile<decltype(s)>(phase, claim); });
  }
#endif
  sb::with_storage(phase.op->storage,
                   [&](auto s) SB_LAMBDA { float_tile<decltype(s)>(phase, claim); });
}

}  // namespace SB_NS
