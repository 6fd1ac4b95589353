#include "isa/kernels.h"
#include "states/convolution.h"
#include "states/gated_norm.h"
#include "states/scan.h"

namespace SB_NS {

template <class E>
static void add_states_of(sb::TileFunction (&tile)[SB_NUM_KINDS]) {
  tile[SB_CONVOLVE] = convolve_tile;
  tile[SB_SCAN] = scan_tile;
  tile[SB_GATED_NORM] = gated_norm_tile<E>;
}

void add_states(sb::KernelTable& table) {
  add_states_of<F32>(table.tile[SB_F32]);
#if defined(__AVX512BF16__)
  add_states_of<Bf16>(table.tile[SB_BF16]);
#endif
}

}  // namespace SB_NS
