#include "attention/attend.h"
#include "isa/kernels.h"

namespace SB_NS {

void add_attention(sb::KernelTable& table) {
  table.tile[SB_F32][SB_ATTEND] = attend_tile<F32>;
#if defined(__AVX512BF16__)
  table.tile[SB_BF16][SB_ATTEND] = attend_tile<Bf16>;
#endif
}

}  // namespace SB_NS
