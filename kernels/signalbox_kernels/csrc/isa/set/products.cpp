#include "isa/kernels.h"
#include "matmul/product_tile.h"

namespace SB_NS {

template <class E>
static void add_products_of(sb::TileFunction (&tile)[SB_NUM_KINDS]) {
  tile[SB_LINEAR] = product_tile<E>;
  tile[SB_HEAD] = product_tile<E>;
  tile[SB_SHRINK] = shrink_tile<E>;
}

void add_products(sb::KernelTable& table) {
  add_products_of<F32>(table.tile[SB_F32]);
#if defined(__AVX512BF16__)
  add_products_of<Bf16>(table.tile[SB_BF16]);
#endif
}

}  // namespace SB_NS
