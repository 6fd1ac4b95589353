#include "matmul/coded.h"
#include "matmul/coded_tiles.h"

namespace SB_NS {

template <class Q>
static void product_of(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
#if defined(__AMX_INT8__)
  if (phase.rows > kFewRows) return tiled_coded<Q>(phase, claim, finish);
#endif
  coded_tile<Q>(phase, claim, finish);
}

void coded_product_tile(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
  sb::with_blocks(phase.op->storage,
                  [&](auto q) SB_LAMBDA { product_of<decltype(q)>(phase, claim, finish); });
}

}  // namespace SB_NS
