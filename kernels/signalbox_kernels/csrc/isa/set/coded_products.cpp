#include "matmul/coded.h"
#include "matmul/coded_tiles.h"

namespace SB_NS {

template <class Q, class G>
static void product_of(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
#if defined(__AMX_INT8__)
  if (phase.rows > kFewRows) return tiled_coded<Q, G>(phase, claim, finish);
#endif
  coded_tile<Q, G>(phase, claim, finish);
}

void coded_product_tile(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
  sb::with_blocks(phase.op->storage, [&](auto q) SB_LAMBDA {
    if (phase.src_code_bytes == 2) return product_of<decltype(q), WideGroup>(phase, claim, finish);
    product_of<decltype(q), CodedGroup>(phase, claim, finish);
  });
}

}  // namespace SB_NS
