#include "attention/attend.h"
#include "isa/kernels.h"

namespace SB_NS {

void add_attention(sb::KernelTable& table) {
  table.tile[SB_F32][SB_ATTEND] = attend_tile<F32>;
  table.tile[SB_BF16][SB_ATTEND] = attend_tile<Bf16>;
}

}  // namespace SB_NS
